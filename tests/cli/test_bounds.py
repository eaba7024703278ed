"""Builds within bounds of time and memory; `tests/errors` has the texts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from building import mlp, model_of
from onnx import TensorProto, helper


def build(model: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "occ.cli", "build", str(model), "-o", str(model.with_suffix(".occ")), "--no-cache"]
    return subprocess.run([*command, *more], capture_output=True, text=True, check=False, timeout=120)


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
    start = time.perf_counter()
    ran = build(tmp_path / "m.onnx", "-t", "cpu-jit", "--timeout", "1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error[OCC0606]: the build takes longer than 1 seconds")
    assert time.perf_counter() - start < 60
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
