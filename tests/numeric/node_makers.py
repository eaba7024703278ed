"""Random nodes: what makes the operands and attributes of a node of each operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

Draw = Callable[[st.SearchStrategy[Any]], Any]
# (operands, names of those that are weights, attributes, number of results)
Node = tuple[list[np.ndarray], set[int], dict[str, Any], int]

FLOATS = (np.float32, np.float64)
INTS = (np.int32, np.int64, np.int8, np.uint8)
UNARY = (
    "Abs", "Acos", "Asin", "Asinh", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "GreaterOrEqual", "Mod", "Pow")
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp",
)  # fmt: skip
LOGIC = ("And", "Or", "Xor", "Not", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
ROWS = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum")


def shape(draw: Draw, low: int = 0, high: int = 3, least: int = 0) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from([least, 1, 2, 3, 5, 17]), min_size=low, max_size=high)))


def array(draw: Draw, dims: tuple[int, ...], dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if np.issubdtype(dtype, np.floating):
        x = (rng.normal(size=dims) * 3).astype(dtype)
        return np.where(rng.random(dims) < 0.05, dtype(draw(st.sampled_from([0.0, 1.0, -1.0]))), x).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -9), min(info.max, 9), dims, endpoint=True).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64).reshape(len(values))


def axis_of(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def unary(draw: Draw, name: str) -> Node:
    dtype = np.float32 if name in ("Erf", "HardSwish", "Mish", "Selu", "Shrink") else draw(st.sampled_from(FLOATS))
    x = array(draw, shape(draw, 1 if name == "Softsign" else 0), dtype)  # the reference fails on its rank 0
    return [np.clip(x, -1, 1) if name in ("Acos", "Asin") else x], set(), {}, 1


def binary(draw: Draw, name: str) -> Node:
    dtype = draw(
        st.sampled_from(FLOATS if name in ("Pow", "Less", "GreaterOrEqual") else (*FLOATS, np.int32, np.int64))
    )
    dims = shape(draw)
    other = tuple(1 if draw(st.booleans()) else n for n in dims)[draw(st.integers(0, len(dims))) :]
    x, y = array(draw, dims, dtype), array(draw, other, dtype)
    if name in ("Div", "Mod"):
        y = np.where(y == 0, dtype(3), y).astype(dtype)
    if name == "Pow":
        x = np.abs(x) + dtype(0.5)
    attrs = {"fmod": 1} if name == "Mod" and np.issubdtype(dtype, np.floating) else {}
    return ([x, y] if draw(st.booleans()) or name == "Pow" or name in ("Div", "Mod") else [y, x]), set(), attrs, 1


def reduction(draw: Draw, name: str) -> Node:
    low = 1 if name == "ReduceLogSumExp" else 0  # the reference fails on its rank 0
    least = 1 if name in ("ReduceMean", "ReduceMax", "ReduceMin") else 0
    x = array(draw, shape(draw, low, least=least), np.float32)
    axes = (
        draw(st.lists(st.integers(-x.ndim, x.ndim - 1), unique_by=lambda k: k % x.ndim, max_size=3)) if x.ndim else []
    )
    attrs = {"keepdims": draw(st.integers(0, 1))}
    return ([x, ints(*axes)] if axes else [x]), {1} if axes else set(), attrs, 1


def rows(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    if name == "CumSum":
        attrs = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
        return [x, np.array(axis, np.int64)], {1}, attrs, 1
    attrs = {"axis": axis} | ({"keepdims": draw(st.integers(0, 1))} if name.startswith("Arg") else {})
    return [x], set(), attrs, 1


def slice_(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1), np.float32)
    axes = draw(st.lists(st.integers(-x.ndim, x.ndim - 1), min_size=1, unique_by=lambda k: k % x.ndim))
    ends = st.integers(-25, 25)
    picks = [(draw(ends), draw(ends), draw(st.sampled_from([1, 2, 3, -1, -2, -7]))) for _ in axes]
    begin, end, step = zip(*picks, strict=True)
    # Backwards from before the axis, the specification and onnxruntime begin at element 0, and numpy ends: ops/test_slice_steps.
    begin = [max(b, -x.shape[k]) if s < 0 else b for b, s, k in zip(begin, step, axes, strict=True)]
    return [x, ints(*begin), ints(*end), ints(*axes), ints(*step)], {1, 2, 3, 4}, {}, 1


def pad(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=2), np.float32)
    mode = draw(st.sampled_from(["constant", "edge", "wrap", "reflect"]))
    most = {"constant": 40, "edge": 20, "wrap": 1, "reflect": 1}[mode]  # numpy's own rule begins where one turn ends
    pads = [draw(st.integers(0, most)) for _ in range(2 * x.ndim)]
    return [x, ints(*pads), np.array(2.5, np.float32)], {1}, {"mode": mode}, 1


def gather(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    n = x.shape[axis]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    dims = x.shape if name == "GatherElements" else shape(draw, 0, 2)
    return [x, rng.integers(-n, n, dims)], set(), {"axis": axis}, 1


def scatter(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    n = x.shape[axis]
    order = np.argsort(np.random.default_rng(draw(st.integers(0, 999))).random(x.shape), axis=axis)
    return [x, order - n * draw(st.integers(0, 1)), array(draw, x.shape, np.float32)], set(), {"axis": axis}, 1


def transpose(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw), draw(st.sampled_from((*FLOATS, *INTS))))
    return [x], set(), {"perm": draw(st.permutations(range(x.ndim)))} if x.ndim else {}, 1


def concat(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1), np.float32)
    axis = axis_of(draw, x.ndim)
    parts = [x]
    for _ in range(draw(st.integers(0, 3))):
        dims = list(x.shape)
        dims[axis] = draw(st.integers(0, 4))
        parts.append(array(draw, tuple(dims), np.float32))
    return parts, set(), {"axis": axis}, 1


def expand(draw: Draw, name: str) -> Node:
    dims = shape(draw)
    if name == "Tile":
        x = array(draw, dims, np.float32)
        return [x, ints(*(draw(st.integers(0, 3)) for _ in dims))], {1}, {}, 1
    given = tuple(1 if draw(st.booleans()) else n for n in dims)[draw(st.integers(0, len(dims))) :]
    return [array(draw, given, np.float32), ints(*dims)], {1}, {}, 1


def matmul(draw: Draw, _: str) -> Node:
    m, k, n = (draw(st.sampled_from([0, 1, 2, 7, 19])) for _ in range(3))
    batch = shape(draw, 0, 2)
    left = (*batch, m, k) if draw(st.booleans()) else (k,)
    right = (*batch, k, n) if draw(st.booleans()) else (k, n) if draw(st.booleans()) else (k,)
    return [array(draw, left, np.float32), array(draw, right, np.float32)], set(), {}, 1


def topk(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), draw(st.sampled_from((np.float32, np.int64))))
    axis = axis_of(draw, x.ndim)
    k = draw(st.integers(0, x.shape[axis]))
    return [x, ints(k)], {1}, {"axis": axis, "largest": draw(st.integers(0, 1))}, 2


def trilu(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 2), np.float32)
    return [x, np.array(draw(st.integers(-9, 9)), np.int64)], set(), {"upper": draw(st.integers(0, 1))}, 1


def conv(draw: Draw, name: str) -> Node:
    n = draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(n)]
    group, per, out = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = array(draw, (draw(st.integers(1, 2)), group * per, *(draw(st.integers(k + 2, 9)) for k in kernel)), np.float32)
    attrs: dict[str, Any] = {
        "kernel_shape": kernel, "strides": [draw(st.integers(1, 3)) for _ in range(n)],
        "pads": [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)],
    }  # fmt: skip
    if name != "Conv":
        return [x], set(), attrs, 1
    weight = array(draw, (group * out, per, *kernel), np.float32)
    return [x, weight, array(draw, (group * out,), np.float32)], set(), attrs | {"group": group}, 1


def where(draw: Draw, _: str) -> Node:
    dims = shape(draw)
    other = tuple(1 if draw(st.booleans()) else n for n in dims)[draw(st.integers(0, len(dims))) :]
    operands = [array(draw, other, np.int8) > 0, array(draw, dims, np.float32), array(draw, other, np.float32)]
    return operands, set(), {}, 1


def clip(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw), draw(st.sampled_from((*FLOATS, *INTS))))
    return [x, x.dtype.type(draw(st.integers(0, 3))), x.dtype.type(draw(st.integers(2, 9)))], set(), {}, 1


def logic(draw: Draw, name: str) -> Node:
    dtype = np.int8 if name.startswith("Bit") else np.bool_
    dims = shape(draw)
    x = array(draw, dims, np.int8)
    y = array(draw, tuple(1 if draw(st.booleans()) else n for n in dims), np.int8)
    operands = [v if dtype is np.int8 else v > 0 for v in (x, y)]
    return operands[: 1 if name.endswith("Not") else 2], set(), {}, 1


def cast(draw: Draw, _: str) -> Node:
    kinds = (
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.FLOAT16,
        TensorProto.BOOL,
    )
    x = array(draw, shape(draw), draw(st.sampled_from((*FLOATS, *INTS))))
    return [x], set(), {"to": draw(st.sampled_from(kinds))}, 1


def gemm(draw: Draw, _: str) -> Node:
    m, k, n = (draw(st.sampled_from([1, 2, 7, 19])) for _ in range(3))
    left, right = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    x = array(draw, (k, m) if left else (m, k), np.float32)
    y = array(draw, (n, k) if right else (k, n), np.float32)
    c = array(draw, draw(st.sampled_from([(m, n), (n,), (1, n), (m, 1), ()])), np.float32)
    return (
        [x, y, c],
        set(),
        {"transA": left, "transB": right, "alpha": 0.5, "beta": draw(st.sampled_from([1.0, 2.0]))},
        1,
    )


def layer_norm(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 2, least=2), np.float32)
    axis = axis_of(draw, x.ndim)
    weights = [array(draw, x.shape[axis % x.ndim :], np.float32) for _ in range(1 if name.startswith("RMS") else 2)]
    return [x, *weights], set(), {"axis": axis, "epsilon": 0.1}, 1


def channel_norm(draw: Draw, name: str) -> Node:
    x = array(draw, (draw(st.integers(1, 2)), 4, *shape(draw, 1, 2, least=2)), np.float32)
    extra = {"num_groups": draw(st.sampled_from([1, 2, 4]))} if name == "GroupNormalization" else {}
    return [x, array(draw, (4,), np.float32), array(draw, (4,), np.float32)], set(), {"epsilon": 0.1, **extra}, 1


def blocks(draw: Draw, name: str) -> Node:
    k, c, h, w = (draw(st.integers(1, 3)) for _ in range(4))
    if name == "SpaceToDepth":
        return [array(draw, (2, c, h * k, w * k), np.float32)], set(), {"blocksize": k}, 1
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    return [array(draw, (2, c * k * k, h, w), np.float32)], set(), {"blocksize": k, "mode": mode}, 1


def gather_nd(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    depth = draw(st.integers(1, x.ndim))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    at = np.stack([rng.integers(-n, n, (2, 3)) for n in x.shape[:depth]], -1)
    return [x, at], set(), {}, 1


def split(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1), np.float32)
    axis = axis_of(draw, x.ndim)
    first = draw(st.integers(0, x.shape[axis]))
    return [x, ints(first, x.shape[axis] - first)], {1}, {"axis": axis}, 2


def reshape(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    if name == "Flatten":
        return [x], set(), {"axis": draw(st.integers(-x.ndim, x.ndim))}, 1
    if name == "Unsqueeze":
        return [x, ints(draw(st.integers(-x.ndim - 1, x.ndim)))], {1}, {}, 1
    return [x, ints(*draw(st.permutations([-1, 1, *x.shape[:-1]])))], {1}, {}, 1


def quantize(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    n = (x.shape[axis],) if draw(st.booleans()) else ()
    scale = np.abs(array(draw, n, np.float32)) + np.float32(0.1)
    zero = array(draw, n, draw(st.sampled_from((np.int8, np.uint8))))
    return (
        [x if name == "QuantizeLinear" else array(draw, x.shape, zero.dtype.type), scale, zero],
        set(),
        {"axis": axis},
        1,
    )


def conv_transpose(draw: Draw, _: str) -> Node:
    n, per, out = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
    )  # the reference takes one group
    kernel = [draw(st.integers(1, 3)) for _ in range(n)]
    x = array(draw, (draw(st.integers(1, 2)), per, *(draw(st.integers(1, 5)) for _ in kernel)), np.float32)
    weight = array(draw, (per, out, *kernel), np.float32)
    attrs = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 3)) for _ in range(n)]}
    return [x, weight, array(draw, (out,), np.float32)], set(), attrs, 1


def one_hot(draw: Draw, _: str) -> Node:
    at = array(draw, shape(draw, 0, 2), np.int64)
    depth, axis = np.array(draw(st.integers(9, 12)), np.int64), draw(st.integers(-at.ndim - 1, at.ndim))
    return [at, depth, np.array([0.5, 2.5], np.float32)], {1}, {"axis": axis}, 1


MAKERS: dict[str, Callable[[Draw, str], Node]] = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(BINARY, binary), **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(ROWS, rows), "Slice": slice_, "Pad": pad, "Gather": gather, "GatherElements": gather,
    "ScatterElements": scatter, "Transpose": transpose, "Concat": concat, "Expand": expand, "Tile": expand,
    "MatMul": matmul, "TopK": topk, "Trilu": trilu, "Conv": conv, "MaxPool": conv, "AveragePool": conv,
    "Where": where, "Clip": clip, **dict.fromkeys(LOGIC, logic), "Cast": cast, "Gemm": gemm, "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm, "InstanceNormalization": channel_norm, "GroupNormalization": channel_norm,
    "SpaceToDepth": blocks, "DepthToSpace": blocks, "GatherND": gather_nd, "Split": split,
    "Reshape": reshape, "Flatten": reshape, "Unsqueeze": reshape, "QuantizeLinear": quantize, "DequantizeLinear": quantize,
    "ConvTranspose": conv_transpose, "OneHot": one_hot,
}  # fmt: skip
