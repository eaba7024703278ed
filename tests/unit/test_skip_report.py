"""What a run of the tests says about those that were skipped."""

from types import SimpleNamespace
from typing import Any

import machines
import pytest


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> Any:
    plugins = request.config.pluginmanager.get_plugins()
    return next(p for p in plugins if getattr(p, "__file__", "") == str(request.config.rootpath / "tests/conftest.py"))


def test_skips_are_told_a_line_for_each_reason(conftest: Any):
    lines: list[str] = []
    reasons = ["Skipped: no device", "Skipped: no\n  compiler", "Skipped: no device"]
    stats = {"skipped": [SimpleNamespace(longrepr=("test_x.py", 3, reason)) for reason in reasons]}
    write = SimpleNamespace(stats=stats, write_sep=lambda _, title: lines.append(title), write_line=lines.append)
    conftest.pytest_terminal_summary(write)
    assert lines == ["3 skipped", "   2  no device", "   1  no compiler", machines.description()]


def test_a_run_without_skips_says_nothing_but_the_machine(conftest: Any):
    lines: list[str] = []
    conftest.pytest_terminal_summary(SimpleNamespace(stats={}, write_line=lines.append))
    assert lines == [machines.description()]
