"""Sessions that begin with code that is there soon: when better code takes over, and that runs go on meanwhile."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference

import occ
from occ import background
from occ.cli import fill_cache
from occ.compiler.codegen_halide import kernels
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.driver.sessions import compile_soon
from occ.compiler.driver.settings import Settings
from occ.runtime.errors import RunError
from occ.runtime.session import Session
from occ.tiered import TieredSession

X = {"x": np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)}


def doubled() -> Session:
    """A session on a model with the inputs of `mlp` and other results."""
    return occ.compile(model_of("g (float[n, 8] x) => (float[n, 8] y) { y = Add(x, x) }"), "interp")


def upgraded(session: TieredSession) -> TieredSession:
    assert session._upgrade is not None
    session._upgrade.join(300)
    assert session.is_settled
    return session


def test_runs_and_bindings_are_by_the_better_session_once_it_is_there():
    go, first, second = Event(), occ.compile(mlp(), "interp"), doubled()
    session = TieredSession(first, lambda _: second if go.wait(300) else None)
    (want,) = reference(mlp(), X)
    assert not session.is_settled
    early = session.bind(X)
    for found in (session.run(X)["y"], session(X["x"])[0], early()["y"]):
        np.testing.assert_allclose(found, want, rtol=1e-5)
    go.set()
    upgraded(session)
    for found in (session.run(X)["y"], session(X["x"])[0], session.bind(X)()["y"]):
        assert np.array_equal(found, 2 * X["x"])
    np.testing.assert_allclose(early()["y"], want, rtol=1e-5)  # a binding stays with what made it
    assert session.artifact is second.artifact
    assert session.engine is second.engine


def test_threads_that_run_meanwhile_get_whole_results():
    go, session = Event(), None
    second = doubled()
    session = TieredSession(occ.compile(mlp(), "interp"), lambda _: second if go.wait(300) else None)
    (want,) = reference(mlp(), X)

    def many(_: int) -> list[str]:
        kinds: list[str] = []
        while len(kinds) < 40 or kinds[-1] != "new":
            y = session.run(X)["y"]
            kinds.append("new" if y.shape == (3, 8) and np.array_equal(y, 2 * X["x"]) else "old")
            assert kinds[-1] == "new" or np.allclose(y, want, rtol=1e-5)
            if len(kinds) == 20:
                go.set()
        return kinds

    with ThreadPoolExecutor(4) as pool:
        for kinds in pool.map(many, range(4)):
            assert kinds == sorted(kinds, reverse=True)  # first old ones, then new ones


@pytest.mark.parametrize("problem", [None, OSError("no room"), RunError("OCC0505", "no")])
def test_a_build_that_fails_changes_nothing(problem):
    def better(_: Event) -> None:
        if problem is not None:
            raise problem

    session = upgraded(TieredSession(occ.compile(mlp(), "interp"), better))
    np.testing.assert_allclose(session.run(X)["y"], reference(mlp(), X)[0], rtol=1e-5)


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_a_build_ends_with_its_session(how):
    ended = Event()

    def better(stopped: Event) -> None:
        if stopped.wait(300):
            ended.set()

    session = TieredSession(occ.compile(mlp(), "interp"), better)
    if how == "closed":
        session.close()
    else:
        del session
        gc.collect()
    assert ended.wait(300)


@pytest.mark.toolchain
class TestKernels:
    """What kernels in the build cache decide."""

    @pytest.fixture(autouse=True)
    def _here(self, tools_only) -> None:
        tools_only("cache")

    def test_what_is_missing_is_run_by_a_target_that_is_there_sooner(self, monkeypatch):
        monkeypatch.setattr(background, "PRIORITY", 0)  # on a busy machine the lowest one waits for minutes
        session = occ.compile(mlp(), "cpu", specialise="background", threads=1)
        assert isinstance(session, TieredSession)
        first = session.run(X)["y"]
        upgraded(session)
        assert session.artifact.manifest.target == "cpu"
        np.testing.assert_allclose(session.run(X)["y"], first, rtol=1e-5)
        emitted: list[str] = []
        monkeypatch.setattr(
            kernels, "generator", lambda f, *a, **how: emitted.append(f.name) or generator(f, *a, **how)
        )
        soon = compile_soon(mlp(), Settings("cpu"))
        assert (soon.session.artifact.manifest.target, soon.missing) == ("cpu", 0)
        assert len(emitted) == len(set(emitted)) > 0  # what tells that none is missing is what is linked

    @pytest.mark.parametrize("options", [{"winograd": "off"}, {"precision": "bf16"}])
    def test_another_target_does_not_stand_in_where_it_lacks_an_option(self, options):
        soon = compile_soon(mlp(), Settings("cpu", options=options))
        assert (soon.session.artifact.manifest.target, soon.missing) == ("cpu", 0)

    def test_a_run_of_the_command_line_waits_for_nothing(self, occ_cli, tmp_path, monkeypatch):
        path, started = tmp_path / "m.onnx", list[tuple[Path, Settings]]()
        onnx.save(mlp(), path)
        monkeypatch.setattr(fill_cache, "start", lambda *how: started.append(how))
        ran = occ_cli("run", path)
        assert ran.code == 0
        assert "cpu-jit runs" in ran.err
        ((model, settings),) = started
        fill_cache.main(str(model), *background.options_of(settings))
        ran = occ_cli("run", path)
        assert ran.code == 0
        assert "cpu-jit" not in ran.err
        assert len(started) == 1

    @pytest.mark.parametrize("how", [("-t", "cpu"), ("--wait",), ("--profile",)])
    def test_who_asks_for_the_target_gets_it(self, occ_cli, tmp_path, how):
        path = tmp_path / "m.onnx"
        onnx.save(mlp(), path)
        ran = occ_cli("run", path, *how)
        assert ran.code == 0
        assert "cpu-jit" not in ran.err


def test_only_one_process_fills_the_cache_for_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path)
    options = background.options_of(Settings("cpu-jit"))
    cache = fill_cache.Cache()
    with cache.turn(fill_cache.digest(["fill", str(path), *options])):
        fill_cache.main(str(path), *options)
        assert not cache.has_any("kernel", ".o")
    fill_cache.main(str(path), *options)
    assert cache.has_any("kernel", ".o")


def test_options_of_the_command_line_say_what_settings_say(tmp_path):
    from occ.api import settings_of

    settings = settings_of(
        "cpu", {"x": (1, "n")}, {"b": 2, "h": "32..64:32"}, {"qdq": "float"}, ["y"], rules=[tmp_path]
    )
    said = background.options_of(settings)
    pairs = list(zip(said[::2], said[1::2], strict=True))
    assert pairs == [
        ("-t", "cpu"), ("--jobs", "1"), ("-C", "qdq=float"), ("--shape", "x=1,n"), ("--dim", "b=2"), ("--dim", "h=32..64:32"),
        ("--outputs", "y"), ("--rules", str(tmp_path)),
    ]  # fmt: skip
