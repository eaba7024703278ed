"""The backend suite of `onnx`: whole on `interp` and `cpu-jit`, a fixed tenth on `cpu` and with LLVM's
whole optimisation, and whole there with the slow tests.

`make test` leaves three kinds of cases to `make test-more`: the large nets, but for two; on targets that compile, operators
that are expanded, whose data is that of the case that they expand and whose parts have cases of their own; and on `cpu-jit` two
thirds of the cases of large families.
"""

from __future__ import annotations

import fcntl
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import suite
from onnx.backend.test import loader

from occ.compiler.cache.cache import cache_dir
from occ.compiler.tuning.warm import warm

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
NETS = {case.name.removeprefix("test_") for case in loader.load_model_tests(kind="real")} - {
    "squeezenet",
    "bvlc_alexnet",
}


def thinned(least: int = 20) -> set[str]:
    """Two thirds of the cases of each operator with at least this many cases, named by it: `reduce_max_..`."""
    families: dict[str, list[str]] = {}
    for name in NAMES:
        if name not in NETS and "_expanded" not in name:
            families.setdefault(name.partition("_")[0], []).append(name)
    return {n for names in families.values() if len(names) >= least for k, n in enumerate(names) if k % 3}


THINNED = thinned()


def marks(name: str, *, compiled: bool) -> list[pytest.MarkDecorator]:
    """What keeps a case out of `make test`."""
    return [pytest.mark.more] if name in NETS or (compiled and "_expanded" in name) else []


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> None:
    """Builds the kernels of all tests of the selected tests on `cpu` at once; the first of several test processes does."""
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


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(
            t, n, marks=[pytest.mark.more] if t == "cpu-jit" and n in THINNED else marks(n, compiled=t != "interp")
        )
        for t in ("interp", "cpu-jit")
        for n in NAMES
    ],
)
def test_backend(target: str, name: str) -> None:
    check(target, name)


A_TENTH = [pytest.param(n, marks=marks(n, compiled=True) if n in FAST else [pytest.mark.slow]) for n in NAMES]


@pytest.mark.parametrize("name", A_TENTH)
def test_backend_with_whole_optimisation(name: str) -> None:
    """Most kernels of the suite are small, and LLVM barely optimises those by default."""
    check("cpu-jit", name, llvm_optimize="always")


@pytest.mark.toolchain
@pytest.mark.parametrize("name", A_TENTH)
@pytest.mark.parametrize("target", ["cpu"])
def test_backend_with_toolchain(target: str, name: str, kernels: None) -> None:
    check(target, name)


def test_excluded_tests_exist() -> None:
    assert {name for name, _ in excluded()} <= set(NAMES)
    assert {target for _, target in excluded()} <= set(TARGETS)
