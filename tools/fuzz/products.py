"""Makers of nodes that multiply: products, convolutions, pools, recurrences, and their quantised forms; and of control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from occ.compiler.ir.dtype import from_numpy
from tools.fuzz.generate import Graph
from tools.fuzz.inputs import is_float
from tools.fuzz.movement import MOVERS
from tools.fuzz.operators import ELEMENTWISE, F32, ROWS, allowed, dtype_of, operand
from tools.fuzz.oracle import Reject


def matmul(g: Graph, op: str) -> Any:
    a = operand(g, op, low=1, high=4)
    x = g.values[a]
    if x.ndim == 0:
        raise Reject("rank 0")
    n = g.extent()
    batch = x.shape[:-2] if g.chance(0.3) and x.ndim > 2 else ()
    right = (*batch, x.shape[-1], n) if g.chance(0.9) else (x.shape[-1],)
    b = g.pick(lambda y: y.dtype == x.dtype and y.ndim >= 2 and y.shape[-2] == x.shape[-1] and y.shape[:-2] in ((), x.shape[:-2]), 0.4)  # fmt: skip
    return g.node(op, [a, b or g.new(x.dtype, right)])


def gemm(g: Graph, op: str) -> Any:
    a = operand(g, op, low=2, high=2)
    x = g.values[a]
    ta, tb, n = int(g.chance(0.3)), int(g.chance(0.5)), g.extent()
    m, k = x.shape[::-1] if ta else x.shape
    b = g.new(x.dtype, (n, k) if tb else (k, n))
    c = [g.new(x.dtype, g.choose([(n,), (1, n), (m, n), (m, 1), (), (1,)]))] if g.chance(0.7) or g.opset < 11 else []
    scale = {"alpha": 0.5, "beta": 2.0} if g.chance(0.3) else {}
    return g.node(op, [a, b, *c], transA=ta, transB=tb, **scale)


def _window(g: Graph, spatial: tuple[int, ...]) -> dict[str, Any]:
    """Kernel, strides, dilations and pads that fit."""
    kernel = [max(min(g.choose([1, 2, 3, 3, 5]), n), 1) for n in spatial]
    dilations = [g.choose([1, 1, 1, 2]) if (k - 1) * 2 + 1 <= n else 1 for k, n in zip(kernel, spatial, strict=True)]
    made: dict[str, Any] = {"kernel_shape": kernel, "strides": [g.choose([1, 1, 2, 3]) for _ in spatial]}
    if g.chance(0.15):
        return made | {"auto_pad": g.choose(["SAME_UPPER", "SAME_LOWER", "VALID"])}
    pads = [int(g.rng.integers(0, k)) if g.chance(0.6) else 0 for k in [*kernel, *kernel]]
    return made | {"dilations": dilations, "pads": pads}


def _image(g: Graph, op: str, dtype: Any = None) -> str:
    return operand(g, op, low=3, high=5, dtype=dtype, fits=lambda x: 0 < x.size < 9000)


def conv(g: Graph, op: str) -> Any:
    a = _image(g, op)
    x = g.values[a]
    c = x.shape[1]
    group = g.choose([1, 1, 1, c, *(k for k in (2, 4) if c % k == 0)])
    window = _window(g, x.shape[2:])
    filters = group * g.choose([1, 2, 3, 8])
    transposed = op == "ConvTranspose"
    dims = (c, filters // group) if transposed else (filters, c // group)
    fan = max(c // group * int(np.prod(window["kernel_shape"])), 1)
    w = g.new(x.dtype, (*dims, *window["kernel_shape"]), -9 / fan, 9 / fan, constant=not g.chance(0.15), fixed=True)
    bias = [g.new(x.dtype, (filters,), constant=not g.chance(0.1))] if g.chance(0.6) else []
    extra = (
        {"output_padding": [int(g.rng.integers(0, s)) for s in window["strides"]]}
        if transposed and g.chance(0.3)
        else {}
    )
    return g.node(op, [a, w, *bias], group=group, **window, **extra)


def pool(g: Graph, op: str) -> Any:
    a = _image(g, op)
    window = _window(g, g.values[a].shape[2:])
    if "dilations" not in g.schema(op).attributes:
        window.pop("dilations", None)
    if "auto_pad" in window and any(s > k for s, k in zip(window["strides"], window["kernel_shape"], strict=True)):
        raise Reject("the oracles pad by less than nothing where the stride is longer than the kernel")
    flag = {"AveragePool": "count_include_pad", "MaxPool": "", "LpPool": "p"}[op]
    extra = {flag: g.choose([1, 2]) if flag == "p" else int(g.chance(0.5))} if flag else {}
    if g.opset >= 10 and "ceil_mode" in g.schema(op).attributes and g.chance(0.3):
        extra["ceil_mode"] = 1
    return g.node(op, [a], results=2 if op == "MaxPool" and g.opset >= 8 and g.chance(0.15) else 1, **window, **extra)


def einsum(g: Graph, op: str) -> Any:
    text = g.choose(
        ["ij,jk->ik", "bij,bjk->bik", "bhid,bhjd->bhij", "ij->ji", "ij,ij->i", "i,j->ij", "ijk->ik", "bij,kj->bik"]
    )
    sizes = {c: g.choose([1, 2, 3, 5, 8]) for c in "bhijkd"}
    parts = text.partition("->")[0].split(",")
    d = dtype_of(g, allowed(g, op) & {F32, np.dtype(np.float64), np.dtype(np.int64)})
    reads = [operand(g, op, dtype=d, shape=tuple(sizes[c] for c in p)) for p in parts]
    return g.node(op, reads, equation=text)


def recurrent(g: Graph, op: str) -> Any:
    a = operand(g, op, low=3, high=3, dtype=F32, fits=lambda x: 0 < x.size < 3000)
    steps, batch, n = g.values[a].shape
    hidden, gates = g.choose([1, 3, 8]), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    way = g.choose(["forward", "reverse", "bidirectional"])
    d = 2 if way == "bidirectional" else 1
    const = lambda *shape: g.new(F32, shape, -0.5, 0.5, constant=True)
    reads = [a, const(d, gates * hidden, n), const(d, gates * hidden, hidden)]
    if g.chance(0.6):
        reads.append(const(d, 2 * gates * hidden))
        if g.chance(0.4):
            reads.append(g.leaf(g.rng.integers(1, steps + 1, batch).astype(np.int32)))
    extra = {"linear_before_reset": int(g.chance(0.5))} if op == "GRU" else {}
    return g.node(op, reads, results=3 if op == "LSTM" else 2, hidden_size=hidden, direction=way, **extra)


def attention(g: Graph, op: str) -> Any:
    b, h, m, n, d = (g.choose([1, 2, 3, 5, 8]) for _ in range(5))
    reads = [operand(g, op, k, dtype=F32, shape=s) for k, s in enumerate([(b, h, m, d), (b, h, n, d), (b, h, n, d)])]
    if g.chance(0.4):
        reads.append(g.leaf(g.rng.random((m, n)) < 0.8) if g.chance(0.3) else g.new(F32, (m, n)))
    return g.node(op, reads, is_causal=int(g.chance(0.3)))


# Quantised ------------------------------------------------------------------------------------------------------------

CODES = (np.dtype(np.int8), np.dtype(np.uint8))


def _scale(g: Graph, shape: tuple[int, ...] = ()) -> str:
    return g.leaf((g.rng.uniform(0.01, 0.2, shape)).astype(np.float32), True)


def _zero(g: Graph, d: Any, shape: tuple[int, ...] = ()) -> str:
    return g.leaf((g.rng.integers(-9, 9, shape) + (128 if d.kind == "u" else 0)).astype(d), True)


def _codes(g: Graph, shape: tuple[int, ...] | None = None, d: Any = None, *, constant: bool | None = None, low: int = 2, high: int = 4) -> str:  # fmt: skip
    kinds = (d,) if d is not None else CODES
    found = g.pick(
        lambda x: (
            x.dtype in kinds and (low <= x.ndim <= high if shape is None else x.shape == shape) and 0 < x.size < 4000
        )
    )
    if found is not None and not constant:
        return found
    d = g.choose(kinds)
    shape = g.shape(int(g.rng.integers(low, high + 1))) if shape is None else shape
    return g.leaf(g.rng.integers(-100, 100, shape).astype(np.int16).astype(d), constant)


def quantize(g: Graph, op: str) -> Any:
    if op == "DynamicQuantizeLinear":
        return g.node(op, [operand(g, op, dtype=F32, fits=lambda x: x.size > 0)], results=3)
    to = op == "QuantizeLinear"
    x = operand(g, op, dtype=F32, low=1, fits=lambda x: x.size > 0) if to else _codes(g, low=1)
    v = g.values[x]
    k = int(g.rng.integers(v.ndim))
    each = (v.shape[k],) if g.opset >= 13 and g.chance(0.3) else ()
    d = g.choose(CODES) if to else v.dtype
    return g.node(op, [x, _scale(g, each), _zero(g, d, each)], axis=k if each else None)


def dequantized(g: Graph, shape: tuple[int, ...] | None = None, *, constant: bool | None = None, low: int = 2, high: int = 4, each: int | None = None) -> str:  # fmt: skip
    """A float that comes from codes; with a scale for each position of an axis if `each` is given."""
    c = _codes(g, shape, np.dtype(np.int8) if each is not None else None, constant=constant, low=low, high=high)
    v = g.values[c]
    many = (v.shape[each],) if each is not None and g.opset >= 13 else ()
    zero = g.leaf(np.zeros(many, v.dtype), True) if each is not None else _zero(g, v.dtype)
    return g.add("DequantizeLinear", [c, _scale(g, many), zero], axis=each if many else None)


def on_codes(g: Graph, op: str) -> Any:
    """DequantizeLinear, an operator, QuantizeLinear: what quantised models consist of."""
    kind = g.choose(
        ["Conv", "MatMul", "Gemm", "Add", "Mul", "MaxPool", "Concat", "Reshape", "Transpose", "Relu", "AveragePool"]
    )
    x = dequantized(g, low=3 if kind in ("Conv", "MaxPool", "AveragePool") else 2)
    v = g.values[x]
    if kind == "Conv":
        window = _window(g, v.shape[2:])
        group = g.choose([1, 1, max(v.shape[1], 1)])
        w = dequantized(
            g, (group * g.choose([1, 2, 8]), v.shape[1] // group, *window["kernel_shape"]), constant=True, each=0
        )
        bias = [g.leaf(g.rng.standard_normal(g.values[w].shape[0]).astype(np.float32), True)] if g.chance(0.6) else []
        y = g.add("Conv", [x, w, *bias], group=group, **window)
    elif kind == "MatMul":
        y = g.add(
            kind, [x, dequantized(g, (v.shape[-1], g.extent()), constant=True, each=1 if g.chance(0.5) else None)]
        )
    elif kind == "Gemm":
        if v.ndim != 2:
            raise Reject("rank")
        y = g.add(kind, [x, dequantized(g, (g.extent(), v.shape[1]), constant=True)], transB=1)
    elif kind in ("Add", "Mul"):
        y = g.add(kind, [x, dequantized(g, v.shape)])
    elif kind == "Concat":
        y = g.add(kind, [x, dequantized(g, v.shape)], axis=1)
    elif kind in ("MaxPool", "AveragePool"):
        y = g.add(kind, [x], kernel_shape=[min(2, n) for n in v.shape[2:]])
    else:
        y = g.add(kind, [x]) if kind != "Reshape" else g.add(kind, [x], shape=[-1])
    if g.chance(0.3):
        y = g.add("Relu", [y])
    d = g.choose(CODES)
    return g.node("QuantizeLinear", [y, _scale(g), _zero(g, d)])


def integers(g: Graph, op: str) -> Any:
    """MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv."""
    conv_, float_ = "Conv" in op, op.startswith("QLinear")
    x = _codes(g, low=3 if conv_ else 2)
    v = g.values[x]
    d = g.choose(CODES)
    if conv_:
        window = _window(g, v.shape[2:])
        shape: tuple[int, ...] = (g.choose([1, 2, 8]), v.shape[1], *window["kernel_shape"])
    else:
        window, shape = {}, (v.shape[-1], g.extent())
    w = g.leaf(g.rng.integers(-100, 100, shape).astype(np.int16).astype(d), not g.chance(0.2), fixed=conv_)
    if not float_:
        zeros = [_zero(g, v.dtype), _zero(g, d)][: int(g.rng.integers(0, 3))]
        return g.node(op, [x, w, *zeros], **window)
    out = g.choose(CODES) if g.chance(0.2) else v.dtype
    return g.node(op, [x, _scale(g), _zero(g, v.dtype), w, _scale(g), _zero(g, d), _scale(g), _zero(g, out)], **window)


# Control flow ---------------------------------------------------------------------------------------------------------

_INSIDE = {**ELEMENTWISE, **MOVERS, **ROWS, "MatMul": matmul, "Conv": conv}


def inner_graph(g: Graph) -> Graph:
    """A sub-graph, with the values of the graphs around it."""
    return Graph(g.rng, g.opset, g)


def _grow(g: Graph, count: int) -> None:
    names = list(_INSIDE)
    for _ in range(3 * count):
        if len(g.nodes) >= count:
            return
        op = g.choose(names)
        try:
            _INSIDE[op](g, op)
        except Reject:
            continue


def _last(g: Graph, dtype: Any, shape: tuple[int, ...] | None = None) -> str:
    """A value of a sub-graph of a type, an operator of its own if need be."""
    made = [o for n in g.nodes for o in n.output if g.values[o].dtype == dtype and shape in (None, g.values[o].shape)]
    if made:
        return made[-1]
    found = g.pick(lambda x: x.dtype == dtype and shape in (None, x.shape), 1.0)
    return g.add("Identity", [found or g.new(dtype, (2,) if shape is None else shape)])


def if_(g: Graph, op: str) -> Any:
    then, other = inner_graph(g), inner_graph(g)
    if g.chance(0.5):  # values of both branches have the same names
        other.forget_names()
    _grow(then, 3)
    made = [o for n in then.nodes for o in n.output]
    if not made:
        raise Reject("empty")
    y = made[-1]
    shape = None if g.chance(0.15) else then.values[y].shape
    _grow(other, 2)
    z = _last(other, then.values[y].dtype, shape)
    g.remember_names(other)
    cond = g.pick(lambda x: x.dtype == np.bool_ and x.size == 1 and x.ndim == 0, 0.7) or g.leaf(
        np.array(g.chance(0.5)), g.chance(0.3)
    )
    branches = {"then_branch": then.subgraph([y], name="then"), "else_branch": other.subgraph([z], name="else")}
    return g.keep(helper.make_node(op, [cond], [g.fresh("v")], **branches))


def typed(g: Graph, name: str, shape: Any = None) -> Any:
    """A formal operand of a sub-graph."""
    x = g.values[name]
    return helper.make_tensor_value_info(name, from_numpy(x.dtype).onnx, x.shape if shape is None else shape)


def loop(g: Graph, op: str) -> Any:
    state = operand(g, op, 2, high=3, fits=lambda x: is_float(x.dtype) and 0 < x.size < 500, dtype=F32)
    body = inner_graph(g)
    i, c, s = (body.fresh(k) for k in ("i", "c", "s"))
    body.values |= {i: np.array(0, np.int64), c: np.array(True), s: g.values[state]}
    if g.chance(0.5):
        body.add("Mul", [s, body.leaf(np.array(0.5, np.float32), True)])
    _grow(body, 3)
    after = _last(body, F32, g.values[state].shape)
    scanned = [body.add("Identity", [s])] if g.chance(0.5) else []
    formal = [typed(body, n) for n in (i, c, s)]
    going = (
        body.add("Identity", [c])
        if g.chance(0.5) or g.opset < 9
        else body.add("Less", [i, body.leaf(np.array(2, np.int64), True)])
    )
    after = body.add("Identity", [after])
    sub = body.subgraph([going, after, *scanned], formal, "body")
    times = g.leaf(np.array(g.rng.integers(0, 4), np.int64), g.chance(0.6))
    return g.keep(helper.make_node(op, [times, "", state], [g.fresh("v") for _ in range(1 + len(scanned))], body=sub))


def scan(g: Graph, op: str) -> Any:
    if g.opset < 9:
        raise Reject("another Scan")
    xs = operand(g, op, low=1, high=3, dtype=F32, fits=lambda x: 0 < x.size < 500)
    body = inner_graph(g)
    row = g.values[xs].shape[1:]
    s, e = body.fresh("s"), body.fresh("e")
    start = g.new(F32, row)
    body.values |= {s: g.values[start], e: np.asarray(g.values[xs][0])}
    body.add(g.choose(["Add", "Max", "Sub"]), [s, e])
    _grow(body, 2)
    after, out = body.add("Identity", [_last(body, F32, row)]), body.add("Tanh", [e])
    sub = body.subgraph([after, out], [typed(body, n) for n in (s, e)], "body")
    extra = {"scan_input_directions": [int(g.chance(0.4))]}
    return g.keep(helper.make_node(op, [start, xs], [g.fresh("v"), g.fresh("v")], body=sub, num_scan_inputs=1, **extra))


PRODUCTS: dict[str, Any] = {
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "ConvTranspose": conv, "Einsum": einsum,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool), **dict.fromkeys(("RNN", "GRU", "LSTM"), recurrent),
    "Attention": attention,
}  # fmt: skip
QUANTISED: dict[str, Any] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), quantize), "qdq": on_codes,
    **dict.fromkeys(("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"), integers),
}  # fmt: skip
CONTROL: dict[str, Any] = {"If": if_, "Loop": loop, "Scan": scan}
