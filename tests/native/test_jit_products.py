"""Products on `cpu-jit`: packed weights, tiles in registers, and the processor's instructions for products of bytes."""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from arm_program import ARM
from building import model_of
from machines import is_here
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_llvm.build import emit_module
from occ.compiler.codegen_llvm.machine import code_machine
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.standalone.emulated import Emulated, missing
from occ.compiler.targets.machine import machine_of

RNG = np.random.default_rng(11)
ENDS = np.array([127, 1, -128, 0, 64, -64], np.int8)
HERE = ["host", *(n for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2") if is_here(n))]
# What a processor multiplies bytes with: of any weight, and of one with 7 bits, whose pairs fit in 16.
INSTRUCTIONS = {
    "znver4": ("avx512.vpdpbusd.512", "avx512.vpdpbusd.512"),
    "x86-64-v4": ("avx512.pmaddw.d.512", "avx512.pmaddubs.w.512"),
    "x86-64-v3": ("avx2.pmadd.wd", "avx2.pmadd.ub.sw"),
    "x86-64-v2": ("sse2.pmadd.wd", "ssse3.pmadd.ub.sw"),
    "cortex-a76": ("neon.sdot.v4i32", "neon.sdot.v4i32"),
}


def integer_product(rows: int, depth: int, columns: int, *, bits: int = 8, dtype: type = np.uint8) -> Any:
    """`MatMulInteger` with a constant weight and a zero point of the run, and values at the ends of their range."""
    text = (
        f"g ({np.dtype(dtype).name}[m, {depth}] x, {np.dtype(dtype).name} z) => (int32[m, {columns}] y) "
        "{ y = MatMulInteger (x, w, z) }"
    )
    w = RNG.choice(ENDS, (depth, columns)) if bits == 8 else RNG.integers(-64, 64, (depth, columns)).astype(np.int8)
    model = model_of(text, {"w": w})
    info = np.iinfo(dtype)
    x = RNG.choice(np.array([info.min, info.max, 3], dtype), (rows, depth))
    return model, {"x": x, "z": np.array(7, dtype)}


def onnx_result(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    return np.asarray(y)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 64, 256), (2, 45, 33), (7, 5, 4), (13, 3, 100), (30, 130, 17), (0, 8, 32)]
)
def test_products_of_bytes_are_exact(rows: int, depth: int, columns: int, bits: int, dtype: type, cpu: str) -> None:
    model, feed = integer_product(rows, depth, columns, bits=bits, dtype=dtype)
    session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
    np.testing.assert_array_equal(session.run(feed)["y"], onnx_result(model, feed), strict=True)


CONVOLUTIONS = {
    "3x3": ((1, 9, 8, 21), (12, 9, 3, 3), "pads = [1, 1, 1, 1]"),
    "1x1": ((2, 64, 5, 7), (5, 64, 1, 1), "strides = [1, 1]"),
    "strided": ((1, 6, 9, 75), (7, 6, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "in threes": ((1, 3, 16, 40), (4, 3, 7, 7), "strides = [3, 3]"),
    "in fives": ((1, 4, 11, 90), (4, 4, 3, 3), "strides = [5, 5]"),
    "a row": ((1, 5, 37), (8, 5, 3), "dilations = [2]"),
}


def integer_convolution(case: str, *, bits: int = 8, dtype: type = np.uint8, symbolic: bool = False) -> Any:
    """`ConvInteger` with a constant weight and a zero point of the run."""
    shape, filters, attributes = CONVOLUTIONS[case]
    extents = [*map(str, shape[:-1]), "v" if symbolic else str(shape[-1])]
    name = np.dtype(dtype).name
    out = ",".join(f"o{k}" for k in range(len(shape)))
    w = RNG.choice(ENDS, filters) if bits == 8 else RNG.integers(-64, 64, filters).astype(np.int8)
    model = model_of(
        f"g ({name}[{','.join(extents)}] x, {name} z) => (int32[{out}] y) {{ y = ConvInteger <{attributes}> (x, w, z) }}",
        {"w": w},
    )
    info = np.iinfo(dtype)
    return model, {"x": RNG.choice(np.array([info.min, info.max, 3], dtype), shape), "z": np.array(7, dtype)}


def specified(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> Any:
    (y,) = ReferenceEvaluator(model).run(None, feed)
    return y


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_of_bytes_are_exact(case: str, bits: int, dtype: type, cpu: str) -> None:
    for symbolic in (False, True):
        model, feed = integer_convolution(case, bits=bits, dtype=dtype, symbolic=symbolic)
        session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)
        np.testing.assert_array_equal(session.run(feed)["y"], specified(model, feed), strict=True)


@pytest.mark.parametrize("cpu", INSTRUCTIONS)
@pytest.mark.parametrize("bits", [7, 8])
def test_instructions_of_convolutions(bits: int, cpu: str) -> None:
    text = llvm_text(integer_convolution("strided", bits=bits)[0], cpu)
    assert len(re.findall(rf"call .*{re.escape(INSTRUCTIONS[cpu][bits == 7])}", text)) >= 7


@pytest.mark.toolchain
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build on x86-64 for another machine")
@pytest.mark.skipif(bool(missing(ARM)), reason=f"apt install {missing(ARM)}")
@pytest.mark.parametrize("cpu", ["cortex-a76", "armv8-a"])
def test_products_of_bytes_are_exact_on_arm(cpu: str) -> None:
    for dtype in (np.uint8, np.int8):
        for model, feed in (integer_product(5, 45, 33, dtype=dtype), integer_convolution("strided", dtype=dtype)):
            built = occ.build(model, "cpu-jit", options={"halide.target": PROCESSORS[cpu]})
            got = Emulated(built, Cache()).run(feed)["y"]
            np.testing.assert_array_equal(got, specified(model, feed), strict=True)


@pytest.mark.parametrize("cpu", INSTRUCTIONS)
@pytest.mark.parametrize("bits", [7, 8])
def test_instructions_for_bytes(bits: int, cpu: str) -> None:
    """The loop over the depth has one for each vector of its tile, and makes no products one by one."""
    text = llvm_text(integer_product(4, 64, 256, bits=bits)[0], cpu)
    wanted = INSTRUCTIONS[cpu][bits == 7]
    assert len(re.findall(rf"call .*{re.escape(wanted)}", text)) >= 8
    assert not re.search(r"sext <\d+ x i8> \S+ to <\d+ x i32>", text)


@pytest.mark.parametrize(("cpu", "sums"), [("x86-64-v4", 24), ("x86-64-v3", 12), ("cortex-a76", 24)])
def test_tiles_fill_the_registers(cpu: str, sums: int) -> None:
    """A product, and a convolution with channels first, add to as many vectors as registers hold."""
    for text in (
        "g (float[510, 64] x, float[64, 256] w) => (float[510, 256] y) { y = MatMul (x, w) }",
        "g (float[1, 96, 20, 64] x, float[96, 96, 3, 3] w) => (float[1, 96, 18, 62] y) { y = Conv (x, w) }",
    ):
        blocks = re.split(r"\n\S+:\n", llvm_text(model_of(text), cpu))
        assert max(len(re.findall(r"= phi +<\d+ x float>", b)) for b in blocks) == sums


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 70, 130), (5, 40, 17), (13, 9, 33), (25, 700, 96), (8, 3, 1)]
)
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_products_of_any_extents(dtype: str, rows: int, depth: int, columns: int, cpu: str) -> None:
    """With a constant weight, in panels, and with an operand; fixed and symbolic."""
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    x, w = (RNG.integers(-4, 5, shape).astype(kind) for shape in ((rows, depth), (depth, columns)))
    for m in (rows, "m"):
        given = model_of(
            f"g ({dtype}[{m}, {depth}] x, {dtype}[{depth}, {columns}] w) => ({dtype}[{m}, {columns}] y) "
            "{ y = MatMul (x, w) }"
        )
        text = f"g ({dtype}[{m}, {depth}] x) => ({dtype}[{m}, {columns}] y) {{ y = MatMul (x, w) }}"
        packed = model_of(text, {"w": w})
        for model, feed in ((given, {"x": x, "w": w}), (packed, {"x": x})):
            session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=2)
            want = (x.astype(np.float64) @ w.astype(np.float64)).astype(kind)
            np.testing.assert_array_equal(session.run(feed)["y"], want, strict=True)


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize(("filters", "columns"), [(7, 17), (12, 50), (3, 33), (13, 5)])
def test_convolutions_of_any_extents(filters: int, columns: int, cpu: str) -> None:
    x, w = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 5, 6, columns), (filters, 5, 3, 3)))
    for width in (columns, "w"):
        model = model_of(
            f"g (float[2, 5, 6, {width}] x, float[{filters}, 5, 3, 3] f) => (float[2, {filters}, 6, {width}] y) "
            "{ y = Conv <pads = [1, 1, 1, 1]> (x, f) }"
        )
        session = occ.compile(model, "cpu-jit", options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=2)
        feed = {"x": x, "f": w}
        np.testing.assert_array_equal(session.run(feed)["y"], onnx_result(model, feed), strict=True)


@pytest.mark.parametrize("width", ["64", "w"])
def test_sums_that_are_read_twice_are_computed_once(width: str) -> None:
    """`x * sigmoid(x)` after a convolution: it would have twice the loops, with lanes along the window in these."""
    loops: list[int] = []
    for after in ("y = Neg (c)", "s = Sigmoid (c) y = Mul (c, s)"):
        text = (
            f"g (float[1, 16, 20, {width}] x, float[32, 16, 3, 3] f, float[32] b) => (float[1, 32, 9, v] y) "
            f"{{ c = Conv <strides = [2, 2]> (x, f, b) {after} }}"
        )
        blocks = re.split(r"\n\S+:\n", llvm_text(model_of(text), "x86-64-v4"))
        loops.append(sum(bool(re.search(r"= phi +<16 x float>", b)) for b in blocks))
    assert loops[0] == loops[1] > 0


def llvm_text(model: onnx.ModelProto, cpu: str) -> str:
    target = PROCESSORS[cpu]
    m = Compilation(model, Settings("cpu-jit", options={"halide.target": target})).advance("lowered")
    return str(emit_module(m.te.values(), code_machine(target, machine_of(target).vector_bits)))
