"""What all tests share: a build cache of their own, and the command line run in this process."""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from thinning import kept

ROOT = Path(__file__).parents[1]
# Entries are named by their content, so a cache that outlives a test run only saves time.
os.environ.setdefault("OCC_CACHE_DIR", str(ROOT / "build" / "test-cache"))
os.environ.setdefault("OCC_NUM_THREADS", "2")
os.environ["OCC_CACHE_ARTIFACTS"] = (
    "0"  # tests replace parts of the compiler, which the key of an artifact does not see
)
# A forked child that frees a session of onnxruntime waits for threads that it does not have: garbage of before stays there.
os.register_at_fork(after_in_child=gc.freeze)
if os.environ.get("OCC_TEST_MACHINE"):
    import machines

    machines.begin()


@dataclass
class Ran:
    """What a command did: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Occ = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _no_builds_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `occ run` leave no processes that outlive a test."""
    from occ.cli import fill_cache

    monkeypatch.setattr(fill_cache, "start", lambda *_: None)


@pytest.fixture
def occ_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Occ:
    """`occ_cli("build", path, stdin=b"...")` runs the command line as `occ build PATH` would, in this process."""
    from occ.cli import cli
    from occ.cli.console import guarded

    def run(*args: object, stdin: bytes = b"") -> Ran:
        listed = [str(a) for a in args]
        monkeypatch.setattr(sys, "argv", ["occ", *listed])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = guarded(lambda: cli.main(listed, standalone_mode=False))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def tools_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`tools_only(NAME)` makes a build cache the current one that has nothing but the programs, which take long."""
    from building import mlp

    import occ
    from occ.compiler.cache.cache import cache_dir

    occ.build(mlp(), "cpu")
    tools = cache_dir() / "tool"

    def begin(name: str) -> Path:
        shutil.copytree(tools, tmp_path / name / "tool", ignore=_of_models)
        monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / name))
        return tmp_path / name

    return begin


def _of_models(_: str, names: list[str]) -> list[str]:
    """Native entries, which have a text each, and installed runtimes."""
    entries = {n.removesuffix(".ll") for n in names if n.endswith(".ll")}
    return [n for n in names if n.partition(".")[0] in entries or ".libocc" in n]


# A tree that passed once passes again: examples follow from the code. `make fuzz` looks for new ones, with the other profile.
# No example is too slow: a busy machine is not a fault.
QUIET = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **QUIET)
hypothesis.settings.register_profile("new", print_blob=True, **QUIET)
hypothesis.settings.load_profile("same")
# Nor do they follow from which modules are imported by then: Hypothesis reads constants off all of them, for examples to be made
# of. That also took each process of a cold run seconds.
providers._get_local_constants = lambda: providers._local_constants

# The collector of cyclic garbage took a tenth of a run: it goes through thousands of test items again and again. It is off while
# they are collected, and does not look at them afterwards.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


# What takes long comes first, so that no process of a parallel run is left with it while the others have nothing to do.
LONG = (
    "tests/docs/test_guides.py",
    "tests/models/",
    "tests/acl/test_whole_path.py",
    "tests/numeric/test_elementwise.py",
)


@pytest.hookimpl(tryfirst=True)  # before options deselect some
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("thinned"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        (marker,) = cases[0].iter_markers("thinned")
        stay = kept([case.callspec.indices for case in cases], **marker.kwargs)
        for case, stays in zip(cases, stay, strict=True):
            if not stays:
                case.add_marker(pytest.mark.more)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the expected texts again")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped, and why, a line for each reason; and the machine."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(" ".join(r.longrepr[2].removeprefix("Skipped: ").split()) for r in reports)
    if reasons:
        terminalreporter.write_sep("-", f"{len(reports)} skipped")
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        terminalreporter.write_line(f"{count:4}  {reason}")
    import machines  # which loads the compiler

    terminalreporter.write_line(machines.description())
