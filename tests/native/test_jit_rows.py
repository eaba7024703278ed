"""Rows on `cpu-jit`: parts that are alike, what does not move along a row, and reductions in several chains."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of, onnxruntime_of
from machines import is_here

import occ
from occ.compiler.codegen_llvm.build import emit_module
from occ.compiler.codegen_llvm.machine import code_machine
from occ.compiler.ir.dtype import F32, I64
from occ.compiler.ir.te.expr import Axis, Index, Load, clamp, literal, wrap
from occ.compiler.ir.te.function import Param, TeFunc, TeStage
from occ.compiler.ir.te.piecewise import parts
from occ.compiler.ir.types import TensorType
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.targets.machine import machine_of

HERE = ["host", *(n for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2") if is_here(n))]
RNG = np.random.default_rng(5)
EXTENTS = (1, 33, 131, 1000)


def same_as_onnxruntime(model: onnx.ModelProto, cpu: str, feed: dict[str, np.ndarray], rtol: float = 0.0) -> None:
    session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
    want: Any = onnxruntime_of(model).run(None, feed)[0]
    np.testing.assert_allclose(session.run(feed)["y"], want, rtol=rtol, atol=rtol, strict=True)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(("left", "right"), [(3, 3), (0, 2), (4, 0), (0, 0), (-1, 3)])
def test_pads(left: int, right: int, mode: str, cpu: str) -> None:
    for extent in (5, 37):
        for name, kind in (("float", np.float32), ("float16", np.float16), ("int64", np.int64)):
            if name == "float16" and mode == "wrap":
                continue  # not in onnxruntime
            model = model_of(
                f"g ({name}[2, 3, 6, {extent}] x) => ({name}[2, 3, o, p] y) "
                f"<int64[8] n = {{0, 0, 2, {left}, 0, 0, 1, {right}}}> "
                f'{{ y = Pad <mode = "{mode}"> (x, n) }}'
            )
            same_as_onnxruntime(model, cpu, {"x": RNG.integers(0, 99, (2, 3, 6, extent)).astype(kind)})


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("size", [8, 16, 64, 100])
def test_rotary_embeddings(size: int, cpu: str) -> None:
    half = size // 2
    for interleaved in (0, 1):
        model = model_of(
            '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
            f"g (float[2, 3, 5, {size}] x, int64[2, 5] p, float[9, {half}] c, float[9, {half}] s) "
            f"=> (float[2, 3, 5, {size}] y) "
            f"{{ y = com.microsoft.RotaryEmbedding <interleaved = {interleaved}> (x, p, c, s) }}"
        )
        tables = {n: RNG.standard_normal((9, half)).astype(np.float32) for n in "cs"}
        x = RNG.standard_normal((2, 3, 5, size)).astype(np.float32)
        same_as_onnxruntime(model, cpu, {"x": x, "p": RNG.integers(0, 9, (2, 5)), **tables}, 1e-6)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("node", ["ReduceMax", "ReduceSum", "ReduceProd", "ReduceL2"])
def test_reductions_of_rows(node: str, extent: int, cpu: str) -> None:
    for n in (str(extent), "n"):
        model = model_of(
            f"g (float[3, {n}] x) => (float[3] y) <int64[1] a = {{1}}> {{ y = {node} <keepdims = 0> (x, a) }}"
        )
        x = RNG.uniform(0.9, 1.1, (3, extent)).astype(np.float32)
        same_as_onnxruntime(model, cpu, {"x": x}, 1e-4)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("node", ["ReduceMax", "ReduceMin"])
def test_extremes_of_rows_keep_nan(node: str, cpu: str) -> None:
    """In any chain, in a remainder of vectors, and in the masked end. numpy's rule, as ONNX has none."""
    fold = np.max if node == "ReduceMax" else np.min
    model = model_of(
        f"g (float[150, 150] x) => (float[150] y) <int64[1] a = {{1}}> {{ y = {node} <keepdims = 0> (x, a) }}"
    )
    session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
    x = RNG.standard_normal((150, 150)).astype(np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], fold(x, axis=1))
    np.fill_diagonal(x, np.nan)
    assert np.isnan(session.run({"x": x})["y"]).all()
    x = np.full_like(x, -np.inf if node == "ReduceMax" else np.inf)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x[0])


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("node", ["Softmax", "LogSoftmax"])
def test_softmax_of_rows(node: str, extent: int, cpu: str) -> None:
    x = (10 * RNG.standard_normal((5, extent))).astype(np.float32)
    for n in (str(extent), "n"):
        same_as_onnxruntime(
            model_of(f"g (float[5, {n}] x) => (float[5, {n}] y) {{ y = {node} (x) }}"), cpu, {"x": x}, 2e-5
        )


def test_clamped_positions_end_parts() -> None:
    """`x[min(55, max(0, i - 3))]`: the first element, those in order, and the last one."""
    at = clamp(Index("i") - wrap(3), wrap(0), wrap(55))
    s = TeStage("y", (Axis("i", 62),), Load("x", (at,), F32))
    assert [(p.start, p.extent, str(p.expr)) for p in parts(s, clamps=True)] == [
        (0, 4, str(Load("x", (literal(0, I64),), F32))),
        (4, 54, str(Load("x", (Index("i") + wrap(1),), F32))),
        (58, 4, str(Load("x", (literal(55, I64),), F32))),
    ]
    assert parts(s) == ()


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("columns", [1, 5, 33, 64, 131])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattered_rows(reduction: str, columns: int, cpu: str) -> None:
    """Rows of which some are written more than once."""
    for name, kind in (("float", np.float32), ("int64", np.int64)):
        for c in (str(columns), "c"):
            model = model_of(
                f"g ({name}[9, {c}] x, int64[7, 1] i, {name}[7, {c}] u) => ({name}[9, {c}] y) "
                f'{{ y = ScatterND <reduction = "{reduction}"> (x, i, u) }}'
            )
            feed = {n: RNG.integers(1, 5, (rows, columns)).astype(kind) for n, rows in (("x", 9), ("u", 7))}
            i = np.array([3, 0, -2, 5, 8, 1, 2] if reduction == "none" else [3, 0, -2, 3, 8, 8, 3])[:, None]
            same_as_onnxruntime(model, cpu, {**feed, "i": i})


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("columns", [1, 5, 33, 64, 131])
def test_running_sums_of_columns(columns: int, cpu: str) -> None:
    for exclusive in (0, 1):
        model = model_of(
            f"g (float[6, {columns}] x) => (float[6, {columns}] y) <int64 a = {{0}}> "
            f"{{ y = CumSum <exclusive = {exclusive}> (x, a) }}"
        )
        same_as_onnxruntime(model, cpu, {"x": RNG.integers(-9, 9, (6, columns)).astype(np.float32)})


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 64, 33), (9, 5, 3), (20, 33, 70), (64, 16, 131), (0, 8, 9)])
def test_transposed_operands(rows: int, depth: int, columns: int, cpu: str) -> None:
    for name, kind in (("float", np.float32), ("float16", np.float16), ("double", np.float64)):
        for m, k, n in ((rows, depth, columns), ("m", "k", "n")):
            model = model_of(
                f"g ({name}[2, {m}, {k}] a, {name}[2, {n}, {k}] b) => ({name}[2, {m}, {n}] y) "
                '{ y = Einsum <equation = "bmk,bnk->bmn"> (a, b) }'
            )
            a, b = (RNG.integers(-4, 5, (2, e, depth)).astype(kind) for e in (rows, columns))
            session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
            want = np.einsum("bmk,bnk->bmn", a.astype(np.float64), b.astype(np.float64)).astype(kind)
            np.testing.assert_array_equal(session.run({"a": a, "b": b})["y"], want, strict=True)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 64, 16), (20, 160, 33), (40, 32, 5)])
def test_weights_of_few_bits(rows: int, depth: int, columns: int, bits: int, cpu: str) -> None:
    """Lanes of which several share a byte, and a scale."""
    blocks = depth // 32
    model = model_of(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
        f"g (float[m, {depth}] a) => (float[m, {columns}] y) {{ y = com.microsoft.MatMulNBits "
        f"<K = {depth}, N = {columns}, bits = {bits}, block_size = 32, accuracy_level = 0> (a, w, s) }}",
        {
            "w": RNG.integers(0, 256, (columns, blocks, 4 * bits)).astype(np.uint8),
            "s": RNG.uniform(0.5, 1, columns * blocks).astype(np.float32),
        },
    )
    same_as_onnxruntime(model, cpu, {"a": RNG.standard_normal((rows, depth)).astype(np.float32)}, 2e-3)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("columns", [1, 9, 40, 64, 131])
def test_elements_repeated_along_a_row(columns: int, cpu: str) -> None:
    x = RNG.integers(0, 99, (1, 2, 3, columns))
    for times in (2, 4, 3):
        for name, kind in (("float", np.float32), ("uint8", np.uint8)):
            model = model_of(
                f"g ({name}[1, 2, 3, {columns}] x) => ({name}[1, 2, 3, o] y) <float[4] s = {{1., 1., 1., {times}.}}> "
                '{ y = Resize <mode = "nearest", nearest_mode = "floor", '
                'coordinate_transformation_mode = "asymmetric"> (x, , s) }'
            )
            same_as_onnxruntime(model, cpu, {"x": x.astype(kind)})


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("extent", [1, 16, 37, 1000])
@pytest.mark.parametrize("node", ["ArgMax", "ArgMin", "Hardmax"])
def test_first_extremes_of_rows(node: str, extent: int, cpu: str) -> None:
    """Also where the extreme occurs twice, and of columns."""
    for name, kind in (("float", np.float32), ("int32", np.int32)):
        for axis in (0, 1):
            if node == "Hardmax" and name == "int32":
                continue
            out = f"{name}[5, {extent}]" if node == "Hardmax" else "int64[a, b]"
            model = model_of(f"g ({name}[5, {extent}] x) => ({out} y) {{ y = {node} <axis = {axis}> (x) }}")
            same_as_onnxruntime(model, cpu, {"x": RNG.integers(0, 30, (5, extent)).astype(kind)})


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("count", [16, 37, 3])
def test_exponentials(count: int, cpu: str) -> None:
    """Over the whole range: overflow to inf, results that are subnormal, underflow to 0, NaN. Of one number too."""
    ends = np.array(
        [-np.inf, -200, -104, -103.5, -100, -88, -1, -0.0, 0, 1e-9, 1, 88, 88.72, 88.8, 200, np.inf, np.nan]
    )
    model = model_of(
        f"g (float[{count}] x, float[1] z) => (float[{count}] y) {{ a = Exp (x)  b = Exp (z)  y = Add (a, b) }}"
    )
    session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
    for start in range(len(ends)):
        x = np.resize(np.roll(ends, -start), count).astype(np.float32)
        got = session.run({"x": x, "z": np.array([-np.inf], np.float32)})["y"]
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(got, np.exp(x.astype(np.float64)).astype(np.float32), rtol=3e-7, atol=3e-45)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("to", ["int32", "int64"])
@pytest.mark.parametrize("name", ["float", "double", "float16"])
def test_casts_to_integers(name: str, to: str, cpu: str) -> None:
    """Whole numbers near the ends, and fractions; beyond the ends they saturate (docs/numerics.md), and NaN is 0."""
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[name]
    number = {"int32": 6, "int64": 7}[to]
    limits = np.iinfo(to)
    model = model_of(f"g ({name}[n] x) => ({to}[n] y) {{ y = Cast <to = {number}> (x) }}")
    session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
    for count in (1, 16, 37):
        x = np.resize(np.array([-2.5, -0.5, 0.0, 1.75, 3000, -3000, np.nan, np.inf, -np.inf]), count).astype(kind)
        with np.errstate(invalid="ignore"):
            want = np.where(np.isfinite(x), x, 0).astype(to)
        want = np.where(x == np.inf, limits.max, np.where(x == -np.inf, limits.min, want))
        np.testing.assert_array_equal(session.run({"x": x})["y"], want, strict=True)
    if name != "float16":
        low, high = kind(limits.min), kind(limits.max)
        x = np.resize(
            np.array([low, np.nextafter(low, kind(0)), np.nextafter(kind(2.0 ** (limits.bits - 1)), kind(0))]), 16
        )
        np.testing.assert_array_equal(session.run({"x": x})["y"], x.astype(to), strict=True)
        assert (session.run({"x": np.full(20, 2 * high, kind)})["y"] == limits.max).all()


@pytest.mark.parametrize(("columns", "whole"), [(1, True), (2, False)])
def test_repeated_elements_in_a_column(columns: int, *, whole: bool) -> None:
    """`y[i] = x[i//4, last]`: a vector from the first lane's element on would pass the end of `x`, unless both adjoin."""
    x = Param("x", TensorType(F32, (16, columns)))
    at = (Index("i") // wrap(4), wrap(columns - 1))
    s = TeStage("y", (Axis("i", 64),), Load("x", at, F32))
    f = TeFunc("f", (), (x,), (s,), (Param("y", TensorType(F32, (64,))),))
    target = PROCESSORS["x86-64-v4"]
    code = str(emit_module([f], code_machine(target, machine_of(target).vector_bits)))
    assert bool(re.findall(r"load <\d+ x float>", code)) == whole
