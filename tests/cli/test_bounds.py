"""Builds within bounds of time and memory; `tests/errors` has the texts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of
from onnx import TensorProto, helper


def build(model: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "occ.cli", "build", str(model), "-o", str(model.with_suffix(".occ")), "--no-cache"]
    return subprocess.run([*command, *more], capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model with 300 MB in a node, where nothing is mapped."""
    data = helper.make_tensor("c", TensorProto.FLOAT, [75_000_000], bytes(300_000_000), raw=True)
    nodes = [helper.make_node("Constant", [], ["c"], value=data), helper.make_node("Add", ["x", "c"], ["y"])]
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    graph = helper.make_graph(nodes, "g", info, [helper.make_empty_tensor_value_info("y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_time_is_bounded_and_nothing_is_left(tmp_path: Path) -> None:
    layers = "".join(f"h{k + 1} = Sigmoid (h{k}) " for k in range(3000))
    onnx.save(model_of(f"g (float[4] h0) => (float[4] h3000) {{ {layers} }}"), tmp_path / "m.onnx")
    ran = build(tmp_path / "m.onnx", "-t", "cpu-jit", "--timeout", "1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error[OCC0606]: the build takes longer than 1 seconds")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_memory_is_bounded_and_nothing_is_left(large: Path) -> None:
    ran = build(large, "-t", "interp", "--memory-limit", "4e8")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error[OCC0607]: the build takes more than 400000000 bytes of memory")
    assert [p.name for p in large.parent.iterdir()] == ["m.onnx"]


def test_bounds_that_are_wide_enough(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    ran = build(tmp_path / "m.onnx", "-t", "interp", "--timeout", "100", "--memory-limit", "4e9")
    assert ran.returncode == 0, ran.stderr


def endless(path: Path) -> Path:
    """A model whose Loop ends when an input says so, which a negative one never does."""
    body = "b (int64 i, bool going, float[2] x) => (bool goes_on, float[2] z) { z = Add(x, step)  goes_on = Greater(limit, two) }"
    model = model_of(
        "g (float[2] x, float[2] step, float limit) => (float[2] y)"
        f" {{ two = Constant<value = float {{2.0}}>()  y = Loop<body = {body}>(, , x) }}"
    )
    model.graph.node[-1].name = "wait"
    onnx.save(model, path)
    return path


def until(known: Callable[[], Any]) -> Any:
    """What is known at last."""
    for _ in range(60_000):
        if found := known():
            return found
        time.sleep(0.01)
    raise TimeoutError


def run(*arguments: object, how: Sequence[str] = ("-m", "occ.cli")) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *how, "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("limits")
    feeds = {"x": np.zeros(2, np.float32), "step": np.ones(2, np.float32)}
    for name, limit in (("once", 1), ("ever", 3)):
        np.savez(folder / f"{name}.npz", **feeds, limit=np.float32(limit))
    return {"model": endless(folder / "m.onnx"), **{n: folder / f"{n}.npz" for n in ("once", "ever")}}


# `occ` whose bound begins when the model has been compiled, however long that takes.
COMPILED_FIRST = """
import sys, time
from occ.cli import deadline, main
notes, write, wait = [], deadline._write, deadline._wait

def written(note, text):
    notes.append(note)
    write(note, text)

def waited(child, seconds):
    while notes[0][:].startswith(b"the model was still being read"):
        time.sleep(0.01)
    return wait(child, seconds)

deadline._write, deadline._wait = written, waited
sys.argv[0] = "occ"
main()
"""


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_run_that_never_ends_is_ended(target: str, limits: dict[str, Path]) -> None:
    """In native code, which no signal ends, as well as in Python."""
    given = (limits["model"], "-t", target, "--inputs", limits["ever"], "--timeout", 2)
    ran = run(*given, how=("-c", COMPILED_FIRST))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "error[OCC0508]: the run takes longer than 2 seconds; data decide how often `wait` (Loop) runs" in ran.stderr


def test_run_that_ends_in_time_is_as_one_without_a_bound(limits: dict[str, Path]) -> None:
    given = (limits["model"], "-t", "interp", "--inputs", limits["once"])
    bounded, free = run(*given, "--timeout", 100), run(*given)
    assert (bounded.returncode, bounded.stdout) == (0, free.stdout)
    assert "first run" in bounded.stderr
    refused = run(limits["model"], "-t", "interp", "--input", f"x={limits['model']}", "--timeout", 100, "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["code"] == "OCC0501"


def test_interrupt_ends_a_run_in_native_code(limits: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "occ.cli", "run", limits["model"], "-t", "cpu-jit", "--inputs", limits["ever"]]
    started = subprocess.Popen(
        [*command, "--timeout", "1000"], start_new_session=True, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it, and so would this
    )  # fmt: skip
    try:
        (child,) = until(lambda: Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split())
        until(lambda: "memfd:m " in Path(f"/proc/{child}/maps").read_text())  # the library of the model
        time.sleep(1)
        os.killpg(started.pid, signal.SIGINT)
        _, said = started.communicate(timeout=600)
        assert (started.returncode, said.strip()) == (130, b"interrupted")
        assert not Path(f"/proc/{child}").exists()
    finally:
        started.kill()


def test_build_in_native_code_ends_too() -> None:
    """Handlers of signals wait until native code is done, as LLVM where it compiles a large function."""
    code = """
import ctypes, signal
from occ.cli import resource_limits
resource_limits._GRACE = 0.5
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
with resource_limits.bounded(0.5, None):
    ctypes.CDLL(None).sleep(3600)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error[OCC0606]: the build takes longer than 0.5 seconds")


def test_bound_that_falls_into_a_finalizer_is_raised_after_it() -> None:
    """Python prints and drops what a finalizer raises."""
    code = """
import sys, time
from occ.cli import resource_limits
class Finalized:
    def __del__(self):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
resource_limits._GRACE = 3600
try:
    with resource_limits.bounded(0.1, None):
        x = Finalized()
        del x
        time.sleep(3600)
except Exception as e:
    print(str(e).splitlines()[0])
print(sys.unraisablehook is sys.__unraisablehook__)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert ran.stdout == "error[OCC0606]: the build takes longer than 0.1 seconds\nTrue\n"
    assert ran.stderr == ""


@pytest.mark.thinned
@pytest.mark.parametrize("command", ["build", "run"])
def test_times_that_are_none(command: str, limits: dict[str, Path]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "occ.cli", command, limits["model"], "--timeout", "nan"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "NaN has no place in an order" in ran.stderr
