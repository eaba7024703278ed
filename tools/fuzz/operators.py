"""Makers of nodes: how operands, attributes and constants of an operator go together. Types come from the schemas of the
operator set; if an operator set has an attribute instead of an operand, or lacks it, `Graph.node` adapts the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tools.fuzz.generate import LARGEST, Graph
from tools.fuzz.inputs import DOMAINS, WEIGHTS, is_float
from tools.fuzz.oracle import Reject

TYPES: dict[str, Any] = {
    f"tensor({name})": np.dtype(kind)
    for name, kind in (
        ("float", np.float32), ("float16", np.float16), ("double", np.float64), ("bfloat16", ml_dtypes.bfloat16),
        ("int64", np.int64), ("int32", np.int32), ("int16", np.int16), ("int8", np.int8), ("uint8", np.uint8),
        ("uint16", np.uint16), ("uint32", np.uint32), ("uint64", np.uint64), ("bool", np.bool_),
    )
}  # fmt: skip
F32 = np.dtype(np.float32)
Fits = Callable[[np.ndarray], bool]


def allowed(g: Graph, op: str, k: int = 0) -> set[Any]:
    """The element types that an operator takes as its k-th operand."""
    formal = g.schema(op).inputs
    return {TYPES[t] for t in formal[min(k, len(formal) - 1)].types if t in TYPES}


def dtype_of(g: Graph, kinds: set[Any]) -> Any:
    """One of some types, as often as types are used."""
    listed = sorted(kinds, key=str)
    if not listed:
        raise Reject("no type")
    weights = np.array([1 if g.alone else WEIGHTS[k] for k in listed])
    return listed[int(g.rng.choice(len(listed), p=weights / weights.sum()))]


def operand(
    g: Graph, op: str, k: int = 0, *, low: int = 0, high: int = 5, dtype: Any = None, shape: tuple[int, ...] | None = None,
    fits: Fits = lambda _: True, constant: bool | None = None,
) -> str:  # fmt: skip
    """A value that an operator takes as its k-th operand: of a rank within bounds, or of a shape; there already, or new."""
    kinds = allowed(g, op, k) if dtype is None else {np.dtype(dtype)} & allowed(g, op, k)
    domain = DOMAINS.get((op, k), (-9, 9))

    def takes(x: np.ndarray) -> bool:
        return x.dtype in kinds and (x.shape == shape if shape is not None else low <= x.ndim <= high) and fits(x)

    name = g.pick(takes, 0.25 if constant else 0.85)
    if name is None:
        name = g.new(dtype_of(g, kinds), g.shape(int(g.rng.integers(low, high + 1))) if shape is None else shape,
                     *domain, constant=constant)  # fmt: skip
        if not fits(g.values[name]):
            raise Reject("it does not fit")
    return g.into(name, *domain) if (op, k) in DOMAINS else name


def partner(g: Graph, op: str, k: int, name: str, dtype: Any = None) -> str:
    """A value that broadcasts with another one."""
    x = g.values[name]
    kinds = {np.dtype(dtype) if dtype is not None else x.dtype}

    def fits(y: np.ndarray) -> bool:
        return y.dtype in kinds and fits_together(x.shape, y.shape)

    found = g.pick(fits, 0.6)
    if found is None:
        dims = tuple(1 if g.chance(0.3) else n for n in x.shape)[
            int(g.rng.integers(0, x.ndim + 1)) if g.chance(0.5) else 0 :
        ]
        found = g.new(kinds.pop(), dims, *DOMAINS.get((op, k), (-9, 9)))
    return g.into(found, *DOMAINS[op, k]) if (op, k) in DOMAINS else found


def fits_together(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether shapes broadcast, to something that is not too large."""
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= LARGEST // 4
    except ValueError:
        return False


def axis(g: Graph, rank: int) -> int:
    return int(g.rng.integers(-rank, rank)) if g.chance(0.3) else int(g.rng.integers(0, rank))


def axes(g: Graph, rank: int, least: int = 1) -> list[int]:
    count = int(g.rng.integers(min(least, rank), rank + 1))
    return [int(k) - (rank if g.chance(0.2) else 0) for k in g.rng.permutation(rank)[:count]]


def fraction(g: Graph) -> float:
    """A positive number that is not a short binary fraction, as files have them."""
    return g.choose([round(float(g.rng.uniform(0.05, 1.5)), 2), 1 / 3, 0.1, 0.7, 1.1, float(g.rng.uniform(0.05, 1.5))])


def floats(g: Graph, op: str) -> dict[str, float]:
    """Random values of the real attributes of an operator."""
    kinds = {n: a.type.name for n, a in g.schema(op).attributes.items()}
    return {n: fraction(g) for n, t in kinds.items() if t == "FLOAT" and g.chance(0.5)}


# Elementwise ----------------------------------------------------------------------------------------------------------


def elementwise(g: Graph, op: str) -> Any:
    schema = g.schema(op)
    first = operand(g, op)
    reads = [first]
    variadic = schema.inputs[-1].option.name == "Variadic"
    for k in range(1, int(g.rng.integers(1, 5)) if variadic else len(schema.inputs)):
        alike = variadic or schema.inputs[k].type_str == schema.inputs[0].type_str
        reads.append(
            partner(g, op, k, reads[-1] if variadic else first, None if alike else dtype_of(g, allowed(g, op, k)))
        )
    if len({i.type_str for i in schema.inputs}) == 1 and not any(o == op for o, _ in DOMAINS):
        reads = g.rng.permutation(reads).tolist()
    extra: dict[str, Any] = floats(g, op)
    if op == "Mod":
        extra["fmod"] = 1 if is_float(g.values[first].dtype) else int(g.chance(0.3))
    if op == "BitShift":
        extra["direction"] = g.choose(["LEFT", "RIGHT"])
    if op == "Gelu":
        extra["approximate"] = g.choose(["none", "tanh"])
    return g.node(op, reads, **extra)


def where(g: Graph, op: str) -> Any:
    x = operand(g, op, 1)
    return g.node(op, [partner(g, op, 0, x, np.bool_), *g.rng.permutation([x, partner(g, op, 2, x)]).tolist()])


def prelu(g: Graph, op: str) -> Any:
    x = operand(g, op)
    dims = tuple(1 if g.chance(0.4) else n for n in g.values[x].shape)
    return g.node(op, [x, g.new(g.values[x].dtype, dims)])


def clip(g: Graph, op: str) -> Any:
    x = operand(g, op)
    d = g.values[x].dtype
    low, high = (d.type(v) for v in sorted(g.rng.integers(0 if d.kind == "u" else -3, 6, 2).tolist()))
    attribute = "min" in g.schema(op).attributes
    wrap = float if attribute else np.array
    return g.node(op, [x], min=wrap(low) if g.chance(0.8) else None, max=wrap(high) if g.chance(0.8) else None)


def cast(g: Graph, op: str) -> Any:
    x = operand(g, op)
    kinds = {TYPES[t] for t in g.schema(op).outputs[0].types if t in TYPES}
    to = dtype_of(g, kinds - {g.values[x].dtype} if g.chance(0.9) else kinds)
    if to.kind == "u" and g.values[x].size and np.min(g.values[x]) < 0:
        x = g.add("Abs", [x])
    if op == "CastLike":
        return g.node(op, [x, g.new(to, g.shape(1))])
    from occ.compiler.ir.dtype import from_numpy

    return g.node(op, [x], to=from_numpy(to).onnx)


# Rows and reductions --------------------------------------------------------------------------------------------------


def reduction(g: Graph, op: str) -> Any:
    x = operand(g, op, fits=lambda x: x.size > 0)
    rank = g.values[x].ndim
    listed = axes(g, rank) if rank and g.chance(0.85) else None
    empty = 1 if g.chance(0.1) else None
    return g.node(op, [x], axes=listed, keepdims=int(g.chance(0.5)), noop_with_empty_axes=empty)


def rows(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    rank = g.values[x].ndim
    k = axis(g, rank) if g.opset >= 11 else int(g.rng.integers(0, rank))
    keep = int(g.chance(0.5)) if op.startswith("Arg") else None
    last = int(g.chance(0.3)) if op.startswith("Arg") and g.opset >= 12 else None
    return g.node(op, [x], axis=k, keepdims=keep, select_last_index=last)


def running(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1)
    flags = {"exclusive": int(g.chance(0.3)), "reverse": int(g.chance(0.3))}
    return g.node(op, [x], axis=np.array(axis(g, g.values[x].ndim), np.int64), **flags)


def topk(g: Graph, op: str) -> Any:
    x = operand(g, op, low=1, fits=lambda x: x.size > 0)
    k = axis(g, g.values[x].ndim) if g.opset >= 11 else 0
    count = int(g.rng.integers(1, g.values[x].shape[k] + 1))
    return g.node(op, [x], results=2, k=count, K=[count], axis=k, largest=int(g.chance(0.6)))


def norm(g: Graph, op: str) -> Any:
    x = operand(g, op, low=2, fits=lambda x: x.size > 0)
    shape, k = g.values[x].shape, axis(g, g.values[x].ndim)
    d = g.values[x].dtype
    tail = tuple(shape[k % len(shape) :])
    weights = [g.new(d, tail, constant=True if g.chance(0.7) else None) for _ in range(1 if op == "RMSNormalization" else int(g.rng.integers(1, 3)))]  # fmt: skip
    return g.node(op, [x, *weights], axis=k, epsilon=0.01)


def channels(g: Graph, op: str) -> Any:
    x = operand(g, op, low=3, high=5, fits=lambda x: x.size > 0)
    c, d = g.values[x].shape[1], g.values[x].dtype
    wanted = 4 if op == "BatchNormalization" else 2
    extra: dict[str, Any] = {"epsilon": 0.01}
    if op == "GroupNormalization":
        extra["num_groups"] = g.choose([k for k in range(1, c + 1) if c % k == 0])
        if g.opset < 21:
            c = extra["num_groups"]
    weights = [g.new(d, (c,), 0.3 if k == 3 else -9, constant=not g.chance(0.2)) for k in range(wanted)]
    return g.node(op, [x, *weights], **extra)


def plain(g: Graph, op: str) -> Any:
    """Operators of one operand with at least a channel and a position."""
    x = operand(g, op, low=0 if op == "Dropout" else 3, high=4 if op == "LRN" else 5, fits=lambda x: x.size > 0)
    more: dict[str, Any] = {"size": g.choose([1, 3, 5]), "alpha": 0.01, "bias": 1.5} if op == "LRN" else {}
    if op == "LpNormalization":
        more = {"p": g.choose([1, 2]), "axis": axis(g, g.values[x].ndim)}
    if op == "GlobalLpPool":
        more = {"p": g.choose([1, 2])}
    return g.node(op, [x], **more)


ROWS: dict[str, Any] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                     "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"), reduction),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin"), rows),
    **dict.fromkeys(("CumSum", "CumProd"), running), "TopK": topk,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), norm),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "GroupNormalization"), channels),
    **dict.fromkeys(("LRN", "LpNormalization", "GlobalAveragePool", "GlobalMaxPool",
                     "GlobalLpPool", "Dropout"), plain),
}  # fmt: skip
ELEMENTWISE: dict[str, Any] = {
    **dict.fromkeys((
        "Abs", "Neg", "Ceil", "Floor", "Round", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh",
        "Cosh", "Asinh", "Acosh", "Atanh", "Erf", "Sign", "Reciprocal", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign",
        "Elu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish", "Celu", "Mish", "Gelu", "Swish", "Shrink",
        "Identity", "Not", "BitwiseNot", "IsNaN", "IsInf",
        "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Less", "Greater",
        "LessOrEqual", "GreaterOrEqual", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    ), elementwise), "Where": where, "PRelu": prelu, "Clip": clip, "Cast": cast, "CastLike": cast,
}  # fmt: skip
