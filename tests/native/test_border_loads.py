"""Vectors that reach over a border are loaded under a mask, of any size and element type."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import model_of
from machines import TARGETS, opened
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.driver.compilation import Compilation, Settings

POOL = "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]"
SIZES = [(1, 1), (4, 5), (7, 16), (6, 33), (5, 49), (3, 100)]  # shorter than a vector, of half, whole, and several ones


@pytest.mark.toolchain
@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
@pytest.mark.parametrize(("target", "masked"), [("x86-64-v3", "vmaskmovps"), ("x86-64-v4", r"vmovups.*\{%k\d\}\{z\}")])
def test_no_element_at_a_border_is_loaded_alone(target: str, masked: str, tmp_path: Path) -> None:
    """Indices of the last vector of a row were clamped, and loaded one by one: a third of a pool's time."""
    model = model_of(f"g (float[1, 64, h, w] x) => (float[1, 64, a, b] y) {{ y = MaxPool <{POOL}> (x) }}", {})
    made = Compilation(model, Settings("cpu", options={"halide.target": TARGETS[target]})).artifact()
    (tmp_path / "model.so").write_bytes(made.code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "model.so")]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kernel = "".join(f for f in code.split("\n\n") if re.match(r"\w+ <maxpool\w*par_for", f))
    assert re.search(masked, kernel)
    assert "vpextrd" not in kernel


@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (f"y = MaxPool <{POOL}> (x)", "float"),
        (f"y = MaxPool <{POOL}> (x)", "uint8"),
        (f"y = AveragePool <{POOL}> (x)", "float"),
        ("y = AveragePool <kernel_shape = [2, 4], pads = [1, 3, 1, 2], count_include_pad = 1> (x)", "float"),
    ],
    ids=["max", "bytes", "average", "average with pads"],
)
def test_pools_of_any_size_at_their_borders(node: str, kind: str, target: str) -> None:
    model = model_of(f"g ({kind}[1, 3, h, w] x) => ({kind}[1, 3, a, b] y) {{ {node} }}", {})
    session = opened(occ.build(model, "cpu", options={"halide.target": TARGETS[target]}))
    reference: Any = ReferenceEvaluator(model)
    rng = np.random.default_rng(0)
    for height, width in SIZES:
        x = rng.normal(100, 20, (1, 3, height, width)).astype(np.float32 if kind == "float" else np.uint8)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, err_msg=f"{height}x{width}")


@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_rows_that_begin_before_their_buffer(target: str) -> None:
    """The first vector of a short row begins at a constant position, which Halide takes no negative one for."""
    model = model_of("g (float[n] x) => (float[m] y) { p = Pad(x, pads) y = Relu(p) }", {"pads": np.array([3, 1])})
    session = opened(occ.build(model, "cpu", options={"halide.target": TARGETS[target]}))
    for size in (0, 1, 4, 5, 12, 13, 40):
        x = np.arange(1, size + 1, dtype=np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.pad(x, (3, 1)))
