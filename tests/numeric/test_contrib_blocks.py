"""Products and gathers of block-quantised weights: agreement with onnxruntime on the same node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.ir.dtype import BY_NAME, from_numpy

RNG = np.random.default_rng(16)


def tensor(name: str, data: np.ndarray) -> TensorProto:
    dtype = from_numpy(data.dtype)
    if dtype.bits == 4 and dtype.is_int:
        flat = np.resize(data.astype(np.uint8).reshape(-1) & 15, -(-data.size // 2) * 2)
        packed = flat[::2] | flat[1::2] << 4
        return helper.make_tensor(name, dtype.onnx, data.shape, packed.tobytes(), raw=True)
    return helper.make_tensor(name, dtype.onnx, data.shape, data.tobytes(), raw=True)


def node_model(
    op: str, inputs: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray | None], out: int, **attrs: Any
) -> ModelProto:
    """A node of com.microsoft whose operands are `inputs` and `weights`, by position; None stands for an absent one."""
    order = attrs.pop("order", [*inputs, *weights])
    names = [k if weights.get(k, ...) is not None else "" for k in order]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attrs)
    infos = [helper.make_tensor_value_info(k, from_numpy(v.dtype).onnx, v.shape) for k, v in inputs.items()]
    held = [tensor(k, v) for k, v in weights.items() if v is not None]
    graph = helper.make_graph([node], op, infos, [helper.make_tensor_value_info("y", out, None)], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def onnxruntime_gives(model: ModelProto, feed: Mapping[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feed))[0]


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis, packed in bytes from the low bits on."""
    each = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    parts = padded.reshape(*codes.shape[:-1], -1, each).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (bits * np.arange(each, dtype=np.uint8)), -1).astype(np.uint8)


# bits, block, K, N, rows, zero points, bias, element type, level
PRODUCTS: dict[str, tuple[int, int, int, int, tuple[int, ...], str, bool, str, int]] = {
    "4 bits": (4, 32, 64, 6, (3,), "", False, "f32", 0),
    "4 bits, a part of a block": (4, 32, 80, 19, (2, 3), "packed", True, "f32", 0),
    "4 bits, float zero points": (4, 16, 96, 33, (5,), "float", False, "f32", 1),
    "4 bits, blocks of 128, int8": (4, 128, 256, 480, (9,), "packed", False, "f32", 4),
    "4 bits, one block and row": (4, 32, 32, 16, (1,), "packed", False, "f32", 0),
    "4 bits, blocks of 256": (4, 256, 512, 32, (17,), "", True, "f32", 4),
    "4 bits, f16": (4, 32, 64, 16, (2,), "packed", True, "f16", 0),
    "8 bits": (8, 32, 128, 40, (4,), "", False, "f32", 0),
    "8 bits, zero points, int8": (8, 64, 128, 400, (1, 9), "packed", False, "f32", 4),
    "2 bits": (2, 16, 64, 16, (3,), "packed", False, "f32", 0),
    "2 bits, one block": (2, 64, 64, 16, (1,), "", False, "f32", 0),
}


def product_case(case: str) -> tuple[ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A model, its input, and the product in f64 of the dequantised weight."""
    bits, size, k, n, rows, zeros, bias, dtype, level = PRODUCTS[case]
    kind, blocks = BY_NAME[dtype].numpy, -(-k // size)
    x = RNG.normal(size=(*rows, k)).astype(kind)
    codes = RNG.integers(0, 1 << bits, (n, blocks, size))
    scales = RNG.uniform(0.01, 0.02, (n, blocks)).astype(kind)
    points = np.full((n, blocks), 1 << (bits - 1), np.float64)
    given: np.ndarray | None = None
    if zeros == "packed":
        points = RNG.integers(0, 1 << bits, (n, blocks)).astype(np.float64)
        given = packed(points.astype(np.int64), bits)
    elif zeros:
        given = RNG.uniform(0, (1 << bits) - 1, (n, blocks)).astype(kind)
        points = given.astype(np.float64)
    added = RNG.normal(size=n).astype(kind) if bias else None
    weights = {"b": packed(codes, bits), "scales": scales, "zeros": given, "groups": None, "bias": added}
    model = node_model(
        "MatMulNBits",
        {"x": x},
        weights,
        BY_NAME[dtype].onnx,
        K=k,
        N=n,
        bits=bits,
        block_size=size,
        accuracy_level=level,
    )
    w = ((codes - points[..., None]) * scales.astype(np.float64)[..., None]).reshape(n, -1)[:, :k]
    return model, {"x": x}, x.astype(np.float64) @ w.T + (0 if added is None else added.astype(np.float64))


def error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got.astype(np.float64) - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", PRODUCTS)
def test_product_is_as_exact_as_onnxruntime(case: str, target: str) -> None:
    model, feed, exact = product_case(case)
    got = occ.compile(model, target).run(feed)["y"]
    most = {"f32": 3e-7, "f16": 3e-4}[PRODUCTS[case][7]]  # rounding of sums in f32, of results in f16
    if PRODUCTS[case][-1] == 4:
        most = max(most, 1.2 * error(onnxruntime_gives(model, feed), exact))
    else:
        assert error(onnxruntime_gives(model, feed), exact) < 1e-2, "both compute the same product"
    assert got.shape == exact.shape
    assert error(got, exact) <= most


def test_group_index_names_the_block_of_each_element() -> None:
    """`g_idx` is deprecated, and files of GPTQ have it."""
    model, feed, _ = product_case("4 bits")
    held = {t.name: t for t in model.graph.initializer}
    order = RNG.permutation(np.repeat(np.arange(2), 32)).astype(np.int32)
    model.graph.node[0].input[:] = ["x", "b", "scales", "", "groups"]
    model.graph.initializer.append(tensor("groups", order))
    data = np.frombuffer(held["b"].raw_data, np.uint8).reshape(6, 32)
    codes = np.stack([data & 15, data >> 4], -1).reshape(6, 64).astype(np.float64)
    scales = np.frombuffer(held["scales"].raw_data, np.float32).reshape(6, 2)
    exact = feed["x"].astype(np.float64) @ ((codes - 8) * scales[:, order]).T
    for target in ("interp", "cpu"):
        assert error(occ.compile(model, target).run(feed)["y"], exact) < 3e-7


@pytest.mark.parametrize(
    ("attr", "value", "says"),
    [
        ("weight_prepacked", 1, "CUDA"),
        ("bits", 3, "3 bits"),
        ("block_size", 24, "blocks of 24"),
        ("accuracy_level", 7, "accuracy_level=7"),
        ("N", 7, "B has shape"),
    ],
)
def test_product_that_is_not_defined_is_an_error_that_names_it(attr: str, value: int, says: str) -> None:
    model, _, _ = product_case("4 bits")
    for a in list(model.graph.node[0].attribute):
        if a.name == attr:
            model.graph.node[0].attribute.remove(a)
    model.graph.node[0].attribute.append(helper.make_attribute(attr, value))
    with pytest.raises(CompileError, match=says):
        occ.compile(model, "interp")


# quant_type, block, K, N, rows, whether B is transposed, element type
TABLES: dict[str, tuple[int, int, int, int, tuple[int, ...], int, str]] = {
    "fp4": (0, 16, 64, 6, (3,), 1, "f32"),
    "nf4": (1, 32, 96, 33, (2, 3), 1, "f32"),
    "nf4, blocks over the ends of rows": (1, 64, 33, 5, (1,), 1, "f32"),
    "fp4, not transposed": (0, 64, 64, 32, (4,), 0, "f32"),
}


def product_by_table(case: str) -> tuple[ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A model, its input, and the product in f64 of the matrix that onnxruntime multiplies the identity with.

    Its CPU provider leaves most of the result unwritten where B is not transposed.
    """
    kind, size, k, n, rows, turned, dtype = TABLES[case]
    x = RNG.normal(size=(*rows, k if turned else n)).astype(BY_NAME[dtype].numpy)
    b = RNG.integers(0, 256, -(-k * n // 2)).astype(np.uint8)
    absmax = RNG.uniform(0.5, 2, -(-k * n // size)).astype(x.dtype)

    def model(v: np.ndarray, transposed: int) -> ModelProto:
        return node_model(
            "MatMulBnb4", {"x": v}, {"b": b, "absmax": absmax}, BY_NAME[dtype].onnx, K=k, N=n, block_size=size,
            quant_type=kind, transB=transposed,
        )  # fmt: skip

    one = np.eye(k, dtype=x.dtype)
    w = onnxruntime_gives(model(one, 1), {"x": one}).astype(np.float64)
    return model(x, turned), {"x": x}, x @ (w if turned else w.T)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", TABLES)
def test_product_by_a_table_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    model, feed, exact = product_by_table(case)
    got = occ.compile(model, target).run(feed)["y"]
    assert got.shape == exact.shape
    assert error(got, exact) < 5e-7


def test_product_by_a_table_of_another_size_is_an_error_that_names_it() -> None:
    weights = {"b": np.zeros(63, np.uint8), "absmax": np.ones(8, np.float32)}
    x = {"x": np.ones((1, 64), np.float32)}
    model = node_model("MatMulBnb4", x, weights, 1, K=64, N=2, block_size=16, quant_type=1)
    with pytest.raises(CompileError, match="B has shape"):
        occ.compile(model, "interp")


U4, I4 = ml_dtypes.uint4, ml_dtypes.int4
# element type of the data, bits, its logical shape, axes to gather and of blocks, zero points, element type of scales
GATHERS: dict[str, tuple[Any, int, tuple[int, ...], int, int, bool, str]] = {
    "u4": (U4, 4, (7, 32), 0, 1, False, "f32"),
    "u4, zero points": (U4, 4, (7, 48), 0, 1, True, "f32"),
    "i4 along the last axis": (I4, 4, (3, 32, 5), 2, 1, True, "f32"),
    "i4, f16": (I4, 4, (7, 32), -2, -1, False, "f16"),
    "u8 of 4 bits": (np.uint8, 4, (9, 48), 0, 1, False, "f32"),
    "u8 of 4 bits, zero points": (np.uint8, 4, (9, 48), 0, 1, True, "f32"),
    "u8 of 8 bits": (np.uint8, 8, (9, 32), 0, 1, False, "f32"),
    "u8 of 8 bits, zero points": (np.uint8, 8, (9, 32), 0, 1, True, "f16"),
    "u8 of 2 bits": (np.uint8, 2, (9, 64), 0, 1, True, "f32"),
}


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", GATHERS)
def test_gather_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    kind, bits, shape, gathered, blocked, zeros, dtype = GATHERS[case]
    low = -8 if kind is I4 else 0
    codes = RNG.integers(low, low + (1 << bits), shape)
    blocks = tuple(-(-n // 16) if k == blocked % len(shape) else n for k, n in enumerate(shape))
    points = RNG.integers(low, low + (1 << bits), blocks)
    data, given = ((packed(v, bits) if kind is np.uint8 else v.astype(kind)) for v in (codes, points))
    n = shape[gathered]
    indices = np.array([[0, n - 1, -1], [2, 1, -n]])
    scales = RNG.uniform(0.01, 0.02, blocks).astype(BY_NAME[dtype].numpy)
    weights = {"data": data, "scales": scales, "zeros": given if zeros else None}
    model = node_model(
        "GatherBlockQuantized", {"i": indices}, weights, BY_NAME[dtype].onnx, order=["data", "i", "scales", "zeros"],
        bits=bits, block_size=16, gather_axis=gathered, quantize_axis=blocked,
    )  # fmt: skip
    got = occ.compile(model, target).run({"i": indices})["y"]
    expected = onnxruntime_gives(model, {"i": indices})
    np.testing.assert_array_equal(got, expected)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
def test_gather_of_rows_out_of_range_gives_zeros(target: str) -> None:
    weights = {"data": RNG.integers(0, 256, (5, 16)).astype(np.uint8), "scales": np.ones((5, 1), np.float32)}
    indices = np.array([4, 5, -5, -6, 2**40, 0])
    model = node_model(
        "GatherBlockQuantized", {"i": indices}, weights, 1, order=["data", "i", "scales"], bits=8, block_size=16
    )
    got = occ.compile(model, target).run({"i": indices})["y"]
    exact = weights["data"].astype(np.float32) - 128
    np.testing.assert_array_equal(got, [exact[4], 0 * exact[0], exact[0], 0 * exact[0], 0 * exact[0], exact[0]])


def test_results_left_out_do_not_make_a_cycle() -> None:
    """Builders leave out the second and third result of a norm by empty names, and operands of others likewise."""
    f32 = TensorProto.FLOAT
    nodes = [
        helper.make_node("Clip", ["s", "", "top"], ["y"]),  # before what it reads, an operand left out
        helper.make_node(
            "SkipSimplifiedLayerNormalization",
            ["x", "x", "g"],
            ["n", "", "", "s"],
            domain="com.microsoft",
            epsilon=1e-5,
        ),
    ]
    infos = [helper.make_tensor_value_info(k, f32, v) for k, v in (("x", [2, 4]), ("y", [2, 4]), ("n", [2, 4]))]
    held = [tensor("g", np.ones(4, np.float32)), tensor("top", np.array(1.5, np.float32))]
    graph = helper.make_graph(nodes, "omitted", infos[:1], infos[1:], held)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    x = np.array([[-1, 0, 0.5, 2], [1, 1, 1, 1]], np.float32)
    got = occ.compile(helper.make_model(graph, opset_imports=opsets, ir_version=9), "interp").run({"x": x})
    np.testing.assert_array_equal(got["y"], np.minimum(2 * x, 1.5))
