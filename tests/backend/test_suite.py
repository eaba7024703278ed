"""The backend suite of `onnx`: whole on `interp` and `cpu-jit`, a fixed tenth on `cpu` and with LLVM's
whole optimisation, and whole there with the slow tests."""

from __future__ import annotations

import fcntl
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import suite

from occ.compiler.cache.cache import cache_dir
from occ.compiler.tools.warm import warm

TARGETS = ("interp", "cpu-jit", "cpu")
TENTH = 3  # which one
NOT_RUN = ("random", "rounding")  # reasons for which passing and failing are both right
NO_CASE = SimpleNamespace(params={})


@cache
def excluded() -> dict[tuple[str, str], str]:
    """Reasons by (test, target)."""
    lines = (Path(__file__).parent / "excluded.txt").read_text("utf-8").splitlines()
    rows = [line.split(None, 2) for line in lines if line and not line.startswith("#")]
    return {(name, target): reason for name, targets, reason in rows for target in targets.split(",")}


cases_of = cache(suite.tests)
NAMES = sorted(cases_of("interp"))
FAST = set(suite.part(NAMES, TENTH, 10))


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> None:
    """Builds the kernels of all tests on `cpu` that are asked for in one go; of several test processes the first does."""
    asked = {
        p.get("name")
        for p in (getattr(i, "callspec", NO_CASE).params for i in request.session.items)
        if p.get("target") == "cpu"
    }
    home = cache_dir()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "suite.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        warm((name, m) for name, m in suite.models() if name in asked)


def check(target: str, name: str, **options: str) -> None:
    reason = excluded().get((name, target))
    if reason is None:
        cases_of(target, **options)[name]()
        return
    if not reason.startswith(NOT_RUN):
        with pytest.raises(Exception):  # noqa: B017 - how it fails is not the point; that it fails is
            cases_of(target, **options)[name]()
    pytest.skip(reason)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_backend(target: str, name: str) -> None:
    check(target, name)


A_TENTH = [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in NAMES]


@pytest.mark.parametrize("name", A_TENTH)
def test_backend_with_whole_optimisation(name: str) -> None:
    """Most kernels of the suite are small, and LLVM does little for those unless it is told to."""
    check("cpu-jit", name, llvm_optimize="always")


@pytest.mark.toolchain
@pytest.mark.parametrize("name", A_TENTH)
@pytest.mark.parametrize("target", ["cpu"])
def test_backend_with_toolchain(target: str, name: str, kernels: None) -> None:
    check(target, name)


def test_excluded_tests_exist() -> None:
    assert {name for name, _ in excluded()} <= set(NAMES)
    assert {target for _, target in excluded()} <= set(TARGETS)
