"""Products of bytes on aarch64: machines with dot products use them, and all agree with onnxruntime and float64."""

from __future__ import annotations

import platform
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from arm_program import ARM
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.cache.cache import Cache
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.standalone.emulated import Emulated, missing

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build on x86-64 for another machine"),
    pytest.mark.skipif(bool(missing(ARM)), reason=f"apt install {missing(ARM)}"),
]
KINDS = ["neoverse-n1", "armv8-a"]
RNG = np.random.default_rng(3)


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray], kind: str) -> np.ndarray:
    built = occ.build(model, "cpu", options={"halide.target": PROCESSORS[kind]})
    return Emulated(built, Cache()).run(feed)["y"]


def blocks(bits: int, level: int, *, zeros: bool) -> tuple[onnx.ModelProto, np.ndarray]:
    """A product with a weight of 72 columns, and the matrix `[160, 72]` that it stands for, in float64."""
    count, size = 5, 32
    codes = RNG.integers(0, 1 << bits, (72, count, size))
    points = RNG.integers(0, 1 << bits, (72, count)) if zeros else np.full((72, count), 1 << (bits - 1))
    scales = RNG.integers(1, 9, (72, count)).astype(np.float32)
    held = {"w": _packed(codes, bits), "s": scales} | ({"z": _packed(points, bits)} if zeros else {})
    node = helper.make_node(
        "MatMulNBits", ["x", *held], ["y"], domain="com.microsoft", K=160, N=72, bits=bits, block_size=size,
        accuracy_level=level,
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", k]) for n, k in (("x", 160), ("y", 72)))
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(v, k) for k, v in held.items()])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    matrix = (codes - points[..., None]) * scales.astype(np.float64)[..., None]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), matrix.reshape(72, 160).T


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    each = 8 // bits
    rows = np.pad(codes, [*[(0, 0)] * (codes.ndim - 1), (0, -codes.shape[-1] % each)])
    parts = rows.reshape(*rows.shape[:-1], -1, each) << (bits * np.arange(each))
    return np.bitwise_or.reduce(parts, -1).astype(np.uint8)


@cache
def whole_numbers(rows: int) -> np.ndarray:
    """Activations that are their own 8-bit codes, as the largest of each block is 127: products of them are exact."""
    x = RNG.integers(-127, 128, (rows, 160)).astype(np.float32)
    x[:, ::32] = 127
    return x


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_of_blocks(bits: int, zeros: bool, kind: str) -> None:
    model, matrix = blocks(bits, 4, zeros=zeros)
    for rows in (1, 3, 17):
        x = whole_numbers(rows)
        np.testing.assert_allclose(run(model, {"x": x}, kind), x @ matrix, rtol=0, atol=0.5)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
def test_digits_of_activations(kind: str) -> None:
    """At level 0 activations have three digits, and more than 16 rows are multiplied in f32."""
    model, matrix = blocks(4, 0, zeros=True)
    for rows in (1, 5, 17):
        x = RNG.standard_normal((rows, 160)).astype(np.float32)
        np.testing.assert_allclose(run(model, {"x": x}, kind), x @ matrix, rtol=1e-5, atol=1e-3)


def integer(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return model


def numbers(dtype: type, *shape: int) -> np.ndarray:
    """Of the whole range, with both ends."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    made = RNG.integers(low, high + 1, shape).astype(dtype)
    made.flat[0], made.flat[-1] = low, high
    return made


INTEGERS = {
    "product": ("({x}[7, 45] x) => (int32[7, 33] y) {{ y = MatMulInteger (x, w, zx, zw) }}", (7, 45), (45, 33)),
    "convolution": (
        "({x}[2, 9, 8, 7] x) => (int32[2, 12, 8, 7] y) {{ y = ConvInteger <pads = [1, 1, 1, 1]> (x, w, zx, zw) }}",
        (2, 9, 8, 7),
        (12, 9, 3, 3),
    ),
    "depthwise": (
        "({x}[1, 16, 8, 7] x) => (int32[1, 16, 8, 7] y) {{ y = ConvInteger <group = 16, pads = [1, 1, 1, 1]> (x, w, zx, zw) }}",
        (1, 16, 8, 7),
        (16, 1, 3, 3),
    ),
}


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("case", INTEGERS)
def test_integers(case: str, signed: bool, kind: str) -> None:
    text, shape, weight = INTEGERS[case]
    dtype = np.int8 if signed else np.uint8
    points = {"zx": np.array(-7 if signed else 130, dtype), "zw": np.array(0, np.int8)}
    model = integer(f"g {text.format(x=np.dtype(dtype).name)}", w=numbers(np.int8, *weight), **points)
    feed = {"x": numbers(dtype, *shape)}
    if signed and case != "product":  # onnxruntime's ConvInteger takes unsigned codes alone
        (want,) = onnx.reference.ReferenceEvaluator(model).run(None, feed)
    else:
        (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    np.testing.assert_array_equal(run(model, feed, kind), want, strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_two_activations(kind: str) -> None:
    text = (
        "g (uint8[2, 9, 45] x, uint8[2, 45, 33] z, uint8 p) => (int32[2, 9, 33] y) { y = MatMulInteger (x, z, p, p) }"
    )
    feed = {"x": numbers(np.uint8, 2, 9, 45), "z": numbers(np.uint8, 2, 45, 33), "p": np.array(131, np.uint8)}
    (want,) = onnxruntime.InferenceSession(integer(text).SerializeToString()).run(None, feed)
    np.testing.assert_array_equal(run(integer(text), feed, kind), want, strict=True)


def dot_products(model: onnx.ModelProto, kind: str, folder: Path) -> int:
    """How many instructions `sdot` the kernels of a model have, by vector or by element (A64, C7.2 SDOT)."""
    path = folder / "net.occ"
    occ.build(model, "cpu", str(path), options={"halide.target": PROCESSORS[kind]})
    with zipfile.ZipFile(path) as held:
        code = b"".join(held.read(n) for n in held.namelist() if n.endswith((".so", ".o")))
    words = np.frombuffer(code[: len(code) // 4 * 4], np.uint32)
    return int((((words & 0xFFE0FC00) == 0x4E809400) | ((words & 0xFFC0F400) == 0x4F80E000)).sum())


@pytest.mark.parametrize("case", [*INTEGERS, "blocks"])
def test_processors_with_dot_products_take_them(case: str, tmp_path: Path) -> None:
    if case == "blocks":
        model = blocks(4, 4, zeros=False)[0]
    else:
        text, _, weight = INTEGERS[case]
        points = {"zx": np.array(130, np.uint8), "zw": np.array(0, np.int8)}
        model = integer(f"g {text.format(x='uint8')}", w=numbers(np.int8, *weight), **points)
    assert (dot_products(model, "neoverse-n1", tmp_path) > 8) == (case != "depthwise")
    assert dot_products(model, "armv8-a", tmp_path) == 0
