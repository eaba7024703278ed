"""Makers of groups of nodes that rewrite rules, algorithms and schedule rules look for, and that single nodes seldom come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from tools.fuzz.contrib import CONTRIB
from tools.fuzz.corners import CORNERS
from tools.fuzz.features import FEATURES
from tools.fuzz.generate import Graph
from tools.fuzz.inputs import BF16
from tools.fuzz.learned import LEARNED
from tools.fuzz.movement import MOVERS
from tools.fuzz.operators import ELEMENTWISE, F32, ROWS, TYPES, axes, dtype_of, operand
from tools.fuzz.oracle import Reject
from tools.fuzz.products import CONTROL, PRODUCTS, QUANTISED, dequantized, inner_graph, typed

_REAL = (F32, F32, F32, np.dtype(np.float16), np.dtype(np.float64))


def _constant(g: Graph, *shape: int, scale: float = 1.0, dtype: Any = F32) -> str:
    return g.leaf((g.rng.standard_normal(shape) * scale).astype(dtype), True)


def _image(g: Graph, channels: int, size: tuple[int, int] = (5, 10), dtype: Any = F32) -> str:
    """A picture; one that is there already if it has the channels."""

    def fits(x: np.ndarray) -> bool:
        return x.dtype == dtype and x.ndim == 4 and x.shape[1] == channels and min(x.shape[2:]) >= size[0] and x.size < 20_000  # fmt: skip

    extents = (int(n) for n in g.rng.integers(*size, 2))
    return g.pick(fits, 0.4) or g.new(dtype, (g.choose([1, 1, 2]), channels, *extents), constant=False)


def _convolution(
    g: Graph, x: str, filters: int, kernel: int = 3, group: int = 1, dtype: Any = F32, **given: Any
) -> str:
    each = g.values[x].shape[1] // group
    w = _constant(g, filters, each, kernel, kernel, scale=1 / (each * kernel), dtype=dtype)
    bias = [_constant(g, filters, dtype=dtype)] if g.chance(0.5) else []
    pads = [g.choose([0, kernel // 2])] * 4
    return g.add("Conv", [x, w, *bias], kernel_shape=[kernel, kernel], group=group, pads=pads, **given)


def neutral(g: Graph, op: str) -> Any:
    """Numbers that change nothing, and those that nearly do."""
    x = operand(g, "Mul", dtype=g.choose(_REAL))
    kind = g.choose(["Mul", "Div", "Pow", "Sub", "Add", "Sum", "Identity", "Expand"])
    if kind in ("Sum", "Identity"):
        return g.node(kind, [x])
    v = g.values[x]
    if kind == "Expand":
        return g.node(kind, [x], shape=list(v.shape))
    number = (0 if kind in ("Sub", "Add") else 1) if g.chance(0.8) else g.choose([-1, 2, 0.5])
    c = g.leaf(np.full(g.choose([(), (1,), (1,) * v.ndim]), number, v.dtype), True)
    if kind == "Pow":
        x = g.into(x, 0.1, 9)
    return g.node(kind, [c, x] if kind in ("Mul", "Add") and g.chance(0.5) else [x, c])


def turned(g: Graph, op: str) -> Any:
    """Transposes in a row, or of axes of one element, and views in a row."""
    x = operand(g, "Transpose", low=2)
    if g.chance(0.4):
        for _ in range(int(g.rng.integers(1, 3))):
            x = g.add("Unsqueeze", [x], axes=[int(g.rng.integers(0, g.values[x].ndim + 1))])
    for _ in range(int(g.rng.integers(1, 4))):
        rank = g.values[x].ndim
        if g.chance(0.75):
            x = g.add("Transpose", [x], perm=g.rng.permutation(rank).tolist())
        else:
            x = g.add("Flatten", [x], axis=int(g.rng.integers(0, rank + 1)))


def affine(g: Graph, op: str) -> Any:
    """A product, and numbers for each of its channels."""
    d = g.choose(_REAL)
    kind = g.choose(["Conv", "ConvTranspose", "Gemm"])
    c = g.choose([1, 3, 4, 8])
    if kind == "Gemm":
        x, flip = g.new(d, (g.extent(), g.choose([1, 3, 16])), constant=False), int(g.chance(0.5))
        k = g.values[x].shape[1]
        bias = [_constant(g, c, dtype=d)] if g.chance(0.6) or g.opset < 11 else []
        x = g.add(kind, [x, _constant(g, *((c, k) if flip else (k, c)), dtype=d), *bias], transB=flip)
    elif kind == "Conv":
        group = g.choose([1, 1, c])
        x = _convolution(g, _image(g, c, dtype=d), group * g.choose([1, 2, 4]), g.choose([1, 3]), group, d)
    else:
        group = g.choose([1, c])
        x = _image(g, c, dtype=d)
        w = _constant(g, c, g.choose([1, 2, 3]), 2, 2, dtype=d, scale=0.5)
        x = g.add(kind, [x, w], kernel_shape=[2, 2], strides=[g.choose([1, 2])] * 2, group=group)
    v = g.values[x]
    channel, tail = v.shape[1], (1,) * (v.ndim - 2)
    for _ in range(int(g.rng.integers(1, 4))):
        step = g.choose(["Add", "Sub", "Mul", "Div", "BatchNormalization"])
        if step == "BatchNormalization":
            low = (-2, -2, -2, 0.3)
            x = g.add(step, [x, *(g.new(d, (channel,), b, 3, constant=True) for b in low)], epsilon=0.01)
            continue
        shape = g.choose([(1, channel, *tail), (channel, *tail), (1,) * v.ndim, ()])
        number = g.leaf(np.asarray(g.rng.uniform(0.5, 2, shape) * g.choose([-1, 1])).astype(d), True)
        x = g.add(step, [number, x] if step in ("Add", "Mul") and g.chance(0.4) else [x, number])


def there_and_back(g: Graph, op: str) -> Any:
    """Codes that become floats and codes again, of the same scale or of another."""
    x = dequantized(g, low=1)
    scale, zero = g.nodes[-1].input[1:3]
    if g.chance(0.4):
        x = g.add("Transpose", [x])
    if g.chance(0.2):
        scale = g.leaf(np.array(0.07, np.float32), True)
    return g.node("QuantizeLinear", [x, scale, zero])


def float_product(g: Graph, op: str) -> Any:
    """A product of codes that stays float, of constants or not."""
    x = dequantized(g, low=2, high=3)
    k = g.values[x].shape[-1]
    w = dequantized(g, (k, g.choose([1, 4, 5, 16])), constant=not g.chance(0.3), each=g.choose([None, 1]))
    return g.node("MatMul", [x, w])


def of_blocks(g: Graph, op: str) -> Any:
    """A product with a constant that has a scale for each block of codes."""
    if g.opset < 21:
        raise Reject("no blocks")
    k, n, size = g.choose([32, 48, 64, 96]), g.choose([1, 5, 16, 33]), g.choose([16, 32])
    flip = g.chance(0.4)
    shape, blocks = (n, k), (n, -(-k // size))
    if not flip:
        shape, blocks = shape[::-1], blocks[::-1]
    d = g.choose([np.int8, np.uint8])
    codes = g.leaf(g.rng.integers(0, 100, shape).astype(d), True)
    scales = g.leaf(g.rng.uniform(0.01, 0.1, blocks).astype(np.float32), True)
    zeros = [g.leaf(g.rng.integers(0, 50, blocks).astype(d), True)] if g.chance(0.5) else []
    w = g.add("DequantizeLinear", [codes, scales, *zeros], axis=int(flip), block_size=size)
    x = g.new(F32, (g.choose([1, 2, 9]), k), constant=False)
    bias = [_constant(g, n)] if g.chance(0.4) else []
    if flip:
        if g.chance(0.5):
            return g.node("MatMul", [x, g.add("Transpose", [w], perm=[1, 0])])
        return g.node("Gemm", [x, w, *bias], transB=1)
    return g.node("Gemm", [x, w, *bias]) if g.chance(0.4) else g.node("MatMul", [x, w])


def rounded(g: Graph, op: str) -> Any:
    """A product whose operands have the digits of bfloat16."""
    if g.opset < 13:
        raise Reject("no bfloat16")
    kind = g.choose(["Conv", "MatMul", "Gemm"])
    c, n = g.choose([8, 16, 17]), g.choose([4, 8, 9, 16])
    x = _image(g, c) if kind == "Conv" else g.new(F32, (g.choose([2, 5]), c), constant=False)
    x = g.add("Cast", [g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(BF16))], to=1)
    weights = lambda *shape: g.leaf(g.rng.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float32), True)
    bias = [_constant(g, n)] if g.chance(0.5) else []
    if kind == "Conv":
        return g.node(kind, [x, weights(n, c, 3, 3), *bias], kernel_shape=[3, 3], strides=[g.choose([1, 2])] * 2)
    if kind == "Gemm":
        flip = int(g.chance(0.5))
        return g.node(kind, [x, weights(*((n, c) if flip else (c, n))), *bias], transB=flip)
    return g.node(kind, [x, weights(c, n)])


def attended(g: Graph, op: str) -> Any:
    """Scores, what changes them, their softmax, and its product with values."""
    if g.opset < 13:
        raise Reject("Softmax is that of a matrix")
    lead = g.choose([(2,), (1, 2), (2, 3)])
    m, n, d, e = (g.choose([2, 3, 5, 8, 17]) for _ in range(4))
    q, k = g.new(F32, (*lead, m, d), constant=False), g.new(F32, (*lead, n, d), constant=False)
    v = operand(g, "MatMul", dtype=F32, shape=(*lead, n, e))
    rank = len(lead) + 2
    scores = g.add("MatMul", [q, g.add("Transpose", [k], perm=[*range(rank - 2), rank - 1, rank - 2])])
    if g.chance(0.6):
        scores = g.add(g.choose(["Mul", "Div"]), [scores, g.leaf(np.array(g.choose([0.125, 2.5]), np.float32), True)])
    if g.chance(0.4):
        scores = g.add("Add", [scores, g.new(F32, g.choose([(m, n), (1, n), (*lead, m, n)]))])
    return g.node("MatMul", [g.add("Softmax", [scores], axis=g.choose([-1, rank - 1])), v])


def of_tiles(g: Graph, op: str) -> Any:
    """3x3 convolutions with many channels; those of few large groups."""
    c = g.choose([32, 32, 48])
    group = g.choose([1, 1, 2, 4])
    stride = g.choose([1, 1, 1, 2])
    return _convolution(g, _image(g, c), g.choose([32, 48]), 3, group, strides=[stride, stride])


def of_quarters(g: Graph, op: str) -> Any:
    """Large products with a constant."""
    x = g.new(F32, (g.choose([96, 97]), 384), constant=False)
    w = _constant(g, 384, 384, scale=0.05)
    return g.node("Gemm", [x, w, _constant(g, 384)], alpha=0.5) if g.chance(0.5) else g.node("MatMul", [x, w])


def streamed(g: Graph, op: str) -> Any:
    """A few rows times a large constant that half precision holds."""
    rows, half = g.choose([1, 3, 8]), g.choose([np.float16, ml_dtypes.bfloat16])
    w = g.leaf((g.rng.standard_normal((256, 264)) * 0.05).astype(half).astype(np.float32), True)
    return g.node("MatMul", [g.new(F32, (rows, 256), constant=False), w])


def cached(g: Graph, op: str) -> Any:
    """An input that an output continues."""
    n, h, p, s, d = g.choose([1, 2]), g.choose([1, 3]), g.choose([1, 4, 7]), g.choose([1, 2]), g.choose([4, 8])
    past = g.new(F32, (n, h, p, d), constant=False)
    new = g.add(g.choose(["Tanh", "Neg"]), [g.new(F32, (n, h, s, d), constant=False)])
    return g.node("Concat", [past, new], axis=g.choose([2, 2, 1, 3]) if h == s and p == d else 2)


def carried(g: Graph, op: str) -> Any:
    """A loop that carries something along and never changes it."""
    state, weight = (g.new(F32, shape, constant=c) for shape, c in (((3, 4), False), ((4, 4), None)))
    body = inner_graph(g)
    i, c, s, w = (body.fresh(k) for k in "icsw")
    body.values |= {i: np.array(0, np.int64), c: np.array(True), s: g.values[state], w: g.values[weight]}
    going = body.add("Identity", [c])
    after = body.add("Tanh", [body.add("MatMul", [s, w])])
    same = body.add("Identity", [w])
    sub = body.subgraph([going, after, same], [typed(body, n) for n in (i, c, s, w)], "body")
    times = g.leaf(np.array(g.rng.integers(0, 4), np.int64), g.chance(0.6))
    return g.keep(helper.make_node("Loop", [times, "", state, weight], [g.fresh("v"), g.fresh("v")], body=sub))


def joined(g: Graph, op: str) -> Any:
    """What kernels compute side by side, and what reads all of it."""
    x = _image(g, g.choose([3, 8]))
    parts = [_convolution(g, x, g.choose([3, 8, 16]), 1) for _ in range(int(g.rng.integers(2, 4)))]
    whole = [p for p in parts if g.values[p].shape[2:] == g.values[parts[0]].shape[2:]]
    whole = [g.add("Relu", [p]) if g.chance(0.5) else p for p in whole]
    y = g.add("Concat", [*whole, x] if g.values[whole[0]].shape[2:] == g.values[x].shape[2:] else whole, axis=1)
    if g.chance(0.6):
        _convolution(g, y, 8, g.choose([1, 3]))


def of_codes(g: Graph, op: str) -> Any:
    """Products of codes with constants whose zero points are 0, or in the middle."""
    d, signed = g.choose([np.uint8, np.int8]), g.chance(0.6)
    kind = g.choose(["MatMulInteger", "ConvInteger"])
    n, c = g.choose([4, 8, 9, 16]), g.choose([1, 4, 8, 9])
    group = g.choose([1, 1, c]) if kind == "ConvInteger" else 1
    shape: Sequence[int] = (g.choose([2, 5]), c) if kind == "MatMulInteger" else (1, c, 7, 6)
    x = g.leaf(g.rng.integers(0, 100, shape).astype(d), False)
    w = (c, n) if kind == "MatMulInteger" else (group * n, c // group, 3, 3)
    wd = np.int8 if signed else np.uint8
    codes = g.leaf(g.rng.integers(-100 if signed else 0, 100 if signed else 200, w).astype(wd), True)
    zeros = [g.leaf(np.array(z, t), True) for z, t in ((g.choose([0, 3]), d), (0 if signed else 128, wd))]
    extra = {"kernel_shape": [3, 3], "group": group, "pads": [g.choose([0, 1])] * 4} if kind == "ConvInteger" else {}
    y = g.add(kind, [x, codes, *zeros], **extra)
    return g.node("Cast", [y], to=1) if g.chance(0.5) else None


def windowed(g: Graph, op: str) -> Any:
    """Convolutions of one channel each, and pools, over rows that may be of any length."""
    c = g.choose([8, 16, 17])
    x = _image(g, c, (7, 20))
    if g.chance(0.6):
        return _convolution(g, x, c, g.choose([3, 5]), c, strides=[g.choose([1, 2])] * 2)
    kind = g.choose(["MaxPool", "AveragePool"])
    return g.node(kind, [x], kernel_shape=[3, 3], strides=[g.choose([1, 2])] * 2, pads=[g.choose([0, 1])] * 4)


def enlarged(g: Graph, op: str) -> Any:
    """A Resize to twice the size, between elementwise operators."""
    if g.opset < 11:
        raise Reject("another Resize")
    x = g.add("Relu", [_image(g, g.choose([1, 3, 16]))])
    mode, way = g.choose(["linear", "linear", "nearest", "cubic"]), g.choose(["half_pixel", "asymmetric", "align_corners"])  # fmt: skip
    scales = np.array([1, 1, g.choose([2, 1.5]), 2], np.float32)
    roi = "" if g.opset >= 13 else g.leaf(np.zeros(0, np.float32), True)
    y = g.add("Resize", [x, roi], scales=scales, mode=mode, coordinate_transformation_mode=way)
    return g.node("Sigmoid", [y]) if g.chance(0.5) else None


def recast(g: Graph, op: str) -> Any:
    """Casts in a row, and reductions of truth values."""
    x = operand(g, "Cast")
    if g.values[x].dtype.kind == "f" and g.chance(0.5):
        x = g.add("Abs", [x])
    kinds = {TYPES[t] for t in g.schema("Cast").outputs[0].types if t in TYPES}
    for _ in range(int(g.rng.integers(1, 4))):
        to = np.dtype(bool) if g.chance(0.25) else dtype_of(g, kinds) if g.chance(0.3) else g.choose(sorted(kinds, key=str))  # fmt: skip
        if to.kind == "u" and g.values[x].size and np.min(g.values[x]) < 0:
            x = g.add("Abs", [x])
        x = g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(to))
    if g.values[x].dtype == np.bool_ and g.values[x].size and g.values[x].ndim and g.opset >= 20:
        g.node(g.choose(["ReduceMax", "ReduceMin"]), [x], axes=axes(g, g.values[x].ndim), keepdims=int(g.chance(0.5)))


PATTERNS: dict[str, Any] = {
    maker.__name__: maker for maker in (
        neutral, turned, affine, there_and_back, float_product, of_blocks, rounded, attended, of_tiles, of_quarters, streamed,
        cached, carried, joined, of_codes, windowed, enlarged, recast,
    )
} | LEARNED  # fmt: skip
SUITES: dict[str, dict[str, Any]] = {"microsoft": CONTRIB, "ml": FEATURES, "corners": CORNERS}
MAKERS: dict[str, Any] = {
    **ELEMENTWISE, **MOVERS, **ROWS, **PRODUCTS, **QUANTISED, **CONTROL, **PATTERNS, **CONTRIB, **FEATURES, **CORNERS,
}  # fmt: skip
