"""How `cpu-jit` reads: lanes a few elements apart are chosen from vectors, and a row that data name is a vector."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from building import model_of
from guarded_child import check_guarded
from machines import is_here

from occ.compiler.codegen_llvm.build import emit_module
from occ.compiler.codegen_llvm.machine import code_machine
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.targets.machine import machine_of

HERE = ["host", *(n for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2") if is_here(n))]
RNG = np.random.default_rng(2)
SLICES = ["x[::2]", "x[1::3]", "x[3::4]", "x[::5]", "x[::-1]", "x[::-2]", "x[-2::-3]", "x[::-4]"]
WINDOWS = {
    "strided convolution": "Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)",
    "convolution in threes": "Conv <strides = [3, 3]> (x, w)",
    "pool": "MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)",
    "averages": "AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
}


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("text", SLICES)
def test_slices(text: str, cpu: str) -> None:
    """Of each width of an element, whole vectors and the ends of rows, at the end of memory."""
    start, _, step = (int(n) if n else None for n in text[2:-1].split(":"))
    step = step or 1
    first = start if start is not None else 0 if step > 0 else -1
    for name in ("uint8", "float16", "float", "double"):
        kind = {"float": np.float32, "double": np.float64}.get(name) or np.dtype(name)
        for count in (7, 64, 131):
            x = RNG.integers(0, 100, (3, count)).astype(kind)
            model = model_of(
                f"g ({name}[3, {count}] x) => ({name}[3, k] y) <int64[1] a = {{{first}}}, int64[1] b = "
                f"{{{-(2**40) if step < 0 else 2**40}}}, int64[1] c = {{1}}, int64[1] s = {{{step}}}> {{ y = Slice(x, a, b, c, s) }}"
            )
            check_guarded(model, cpu, {"x": x}, x[:, slice(start, None, step)])


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("case", WINDOWS)
def test_windows(case: str, cpu: str) -> None:
    x, w = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 3, 11, 37), (5, 3, 3, 3)))
    for width in ("37", "w"):
        node = f"y = {WINDOWS[case]}"
        given = "float[5, 3, 3, 3] w" if "(x, w)" in node else "float[1] w"
        model = model_of(f"g (float[1, 3, 11, {width}] x, {given}) => (float[1, c, h, v] y) {{ {node} }}")
        feed = {"x": x, "w": w if "(x, w)" in node else np.zeros(1, np.float32)}
        want: Any = onnx.reference.ReferenceEvaluator(model).run(None, feed)[0]
        check_guarded(model, cpu, feed, want)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("columns", [1, 5, 33, 64])
def test_rows_that_data_name(columns: int, cpu: str) -> None:
    x, rows = RNG.standard_normal((9, columns)).astype(np.float32), np.array([[8, 0], [-1, -9], [3, 3]])
    model = model_of(f"g (float[9, {columns}] x, int64[3, 2] i) => (float[3, 2, {columns}] y) {{ y = Gather(x, i) }}")
    check_guarded(model, cpu, {"x": x, "i": rows}, x[rows])


@pytest.mark.parametrize(
    "text",
    [
        "g (float[9, 64] x, int64[3] i) => (float[3, 64] y) { y = Gather(x, i) }",
        "g (float[9, 64] x) => (float[9, 32] y) <int64[1] a = {0}, int64[1] b = {64}, int64[1] c = {1}, int64[1] s = {2}> "
        "{ y = Slice(x, a, b, c, s) }",
        "g (float[1, 8, 34, 34] x, float[8, 8, 3, 3] w) => (float[1, 8, 16, 16] y) { y = Conv <strides = [2, 2]> (x, w) }",
    ],
)
def test_no_lane_is_loaded_alone(text: str) -> None:
    target = PROCESSORS["x86-64-v4"]
    m = Compilation(model_of(text), Settings("cpu-jit", options={"halide.target": target})).advance("lowered")
    code = str(emit_module(m.te.values(), code_machine(target, machine_of(target).vector_bits)))
    lanes = [place for place in re.findall(r"insertelement <16 x float> .*, i32 (\d+)", code) if place != "0"]
    assert "x float>" in code
    assert not lanes
