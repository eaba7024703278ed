"""Sessions that get a plan for shapes that they see often: when it is built, when it takes over, and that nothing fails."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, reference

import occ
from occ import api, background, specialising
from occ.background import BackgroundBuild
from occ.compiler.diagnostics import CompileError
from occ.runtime.errors import RunError
from occ.runtime.session import Session
from occ.specialising import MOST, SEEN, TIMED, SpecialisingSession


class Other:
    """Stands for a session of one shape: what it returns shows that it ran."""

    def __init__(self, seconds: float = 0.0, problem: Exception | None = None) -> None:
        self.seconds, self.problem, self.runs = seconds, problem, 0

    def run(self, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        self.runs += 1
        if self.seconds:
            time.sleep(self.seconds)
        if self.problem is not None:
            raise self.problem
        return {"y": "other"}


def session_with(build: Callable[..., Any]) -> SpecialisingSession:
    return SpecialisingSession(occ.compile(mlp(), "interp"), build)


def of(n: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((n, 8), np.float32)}


def settle(session: SpecialisingSession) -> None:
    assert session._builder is not None
    session._builder.join(300)


def test_a_shape_gets_a_plan_when_it_has_been_seen_often_and_it_takes_over_if_it_is_faster():
    asked, other = [], Other()
    session = session_with(lambda shapes, _: asked.append(shapes) or other)
    for _ in range(SEEN - 1):
        session.run(of(3))
        session.run(of(4))
    assert asked == []
    session.run(of(3))
    settle(session)
    assert asked == [{"x": (3, 8)}]
    found = [isinstance(session.run(of(3))["y"], str) for _ in range(2 * TIMED + 1)]
    assert found == [True, False] * TIMED + [True]
    assert all(session.run(of(3))["y"] == "other" for _ in range(4))
    assert session.run(of(5))["y"].shape == (5, 4)


def test_a_plan_that_is_slower_is_dropped():
    other = Other(seconds=0.05)
    session = session_with(lambda *_: other)
    for _ in range(SEEN):
        session.run(of(3))
    settle(session)
    for _ in range(2 * TIMED + 8):
        session.run(of(3))
    assert other.runs == TIMED + 1
    assert session.run(of(3))["y"].shape == (3, 4)


@pytest.mark.parametrize("problem", [RunError("OCC0505", "no"), ValueError("no"), MemoryError()])
def test_a_plan_that_fails_is_dropped_and_the_run_succeeds(problem):
    other = Other(problem=problem)
    session = session_with(lambda *_: other)
    for _ in range(SEEN):
        session.run(of(3))
    settle(session)
    for _ in range(4):
        assert session.run(of(3))["y"].shape == (3, 4)
    assert other.runs == 1


def test_a_build_that_fails_changes_nothing_and_is_not_tried_again():
    tried = []

    def build(*_: Any) -> Session:
        tried.append(1)
        raise OSError("no room")

    session = session_with(build)
    for _ in range(SEEN):
        session.run(of(3))
    settle(session)
    for _ in range(SEEN):
        assert session.run(of(3))["y"].shape == (3, 4)
    assert tried == [1]


def test_no_more_shapes_than_some_get_a_plan_and_none_after_close():
    asked = []
    session = session_with(lambda shapes, _: asked.append(shapes))
    for n in range(1, MOST + 3):
        for _ in range(SEEN):
            session.run(of(n))
        settle(session)
    assert len(asked) == MOST
    other = session_with(lambda shapes, _: asked.append(shapes))
    other.close()
    for _ in range(SEEN + 1):
        other.run(of(1))
    assert len(asked) == MOST


def test_shapes_count_once_there_is_no_better_code_to_come():
    asked, go = [], Event()

    def better(_: Event) -> None:
        go.wait(300)

    session = SpecialisingSession(occ.compile(mlp(), "interp"), lambda shapes, _: asked.append(shapes), better)
    for _ in range(2 * SEEN):
        session.run(of(3))
    assert asked == []
    go.set()
    assert session._upgrade is not None
    session._upgrade.join(300)
    for _ in range(SEEN):
        session.run(of(3))
    settle(session)
    assert asked == [{"x": (3, 8)}]


def test_errors_of_inputs_are_those_of_the_model():
    session = session_with(lambda *_: None)
    with pytest.raises(RunError, match="OCC0501"):
        session.run({"z": 1})
    with pytest.raises(RunError, match="the model takes"):
        session.run({"x": np.ones((2, 9), np.float32)})
    assert session.run({"x": np.ones((2, 8), np.float32).tolist()} | of(2))["y"].shape == (2, 4)


@pytest.mark.parametrize("as_path", [True, False])
def test_another_process_builds_the_plan(as_path, tmp_path, monkeypatch):
    monkeypatch.setattr(specialising, "SEEN", 2)
    monkeypatch.setattr(background, "PRIORITY", 0)  # on a busy machine the lowest one waits for minutes
    path, model = tmp_path / "m.onnx", mlp()
    onnx.save(model, path)
    session = occ.compile(path if as_path else model, "cpu-jit", specialise="background", threads=1)
    assert isinstance(session, SpecialisingSession)
    for _ in range(2):
        session.run(of(5))
    assert session._builder is not None
    session._builder.join(300)
    (shape,) = session._shapes.values()
    assert shape.other is not None
    assert [str(i) for i in shape.other.inputs] == ["x: f32[5,8]"]
    for _ in range(2 * TIMED + 4):
        np.testing.assert_allclose(session.run(of(5))["y"], reference(model, of(5))[0], rtol=1e-5)


def test_a_model_that_was_changed_meanwhile_gets_no_plan(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path)
    settings = api.settings_of("cpu-jit", None, None, None)
    process = BackgroundBuild.of(path, settings, occ.compile(path, "interp"))
    path.write_bytes(b"other")
    assert process({"x": (3, 8)}, Event()) is None


def test_closing_ends_a_build(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path)
    build = BackgroundBuild.of(path, api.settings_of("cpu-jit", None, None, None), occ.compile(path, "interp"))
    process, stopped = subprocess.Popen(["sleep", "3600"]), Event()
    monkeypatch.setattr(background, "start", lambda *_, **__: process)
    stopped.set()
    assert build({}, stopped) is None
    assert process.poll() is not None


def test_what_another_process_cannot_build_is_refused():
    with pytest.raises(CompileError, match="needs an ONNX model"):
        occ.compile(occ.dump(mlp(), "canonical", "cpu-jit"), "cpu-jit", specialise="background")
    with pytest.raises(CompileError, match="paths of rule files"):
        occ.compile(mlp(), "cpu-jit", specialise="background", rules=[object()])
    with pytest.raises(CompileError, match="specialise is 'foreground'"):
        occ.compile(mlp(), "cpu-jit", specialise="foreground")
    fixed = occ.compile(mlp(), "cpu-jit", specialise="background", dims={"n": 2})
    assert not isinstance(fixed, SpecialisingSession)
