"""Sums of the lanes of several vectors, as attention has them: the code interleaves pairs of vectors."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from occ.compiler.driver.compilation import Compilation, Settings

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(
        not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64"
    ),
]
SKYLAKE = "x86-64-linux-avx-avx2-f16c-fma-sse41-avx512-avx512_skylake"


def test_pairs_of_vectors_are_interleaved(tmp_path: Path) -> None:
    """Halide added even lanes to odd ones, by two tables of lanes for each pair."""
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    operands, results = ["q", "k", "v", "", "pk", "pv"], ["y", "K", "V"]
    node = helper.make_node("Attention", operands, results, q_num_heads=16, kv_num_heads=4)
    inputs = [value("q", kind, [1, 1, 1024]), *(value(x, kind, [1, 1, 256]) for x in "kv")]
    inputs += [value(x, kind, [1, 4, "P", 64]) for x in ("pk", "pv")]
    outputs = [value("y", kind, [1, 1, 1024]), *(value(x, kind, [1, 4, "T", 64]) for x in "KV")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    made = Compilation(model, Settings("cpu", options={"halide.target": SKYLAKE, "caches": "growing"}))
    (tmp_path / "model.so").write_bytes(made.artifact().code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "model.so")]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "vunpcklps" in code
    assert "vpermt2ps" not in code
