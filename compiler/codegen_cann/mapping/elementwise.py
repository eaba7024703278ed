"""Elementwise operators as GE nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import FLOATS, occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.graph.prototypes import prototypes
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported, elementwise
from occ.compiler.ir.op import Op

Row = Callable[..., Any]

# Operators with one result of the operands' type and no attributes: ONNX name -> GE name.
SAME_TYPE = {
    "Acos": "Acos", "Acosh": "Acosh", "Add": "Add", "Asin": "Asin", "Asinh": "Asinh", "Atan": "Atan",
    "Atanh": "Atanh", "BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr",
    "BitwiseXor": "BitwiseXor", "Ceil": "Ceil", "Cos": "Cos", "Cosh": "Cosh", "Erf": "Erf", "Exp": "Exp",
    "Floor": "Floor", "HardSwish": "HardSwish", "Log": "Log", "Mish": "Mish", "Mul": "Mul", "Neg": "Neg",
    "Reciprocal": "Reciprocal", "Round": "Round", "Sigmoid": "Sigmoid", "Sign": "Sign", "Sin": "Sin",
    "Sinh": "Sinh", "Softplus": "Softplus", "Softsign": "Softsign", "Sqrt": "Sqrt", "Sub": "Sub", "Tan": "Tan",
    "Tanh": "Tanh",
}  # fmt: skip
# Operators whose result is BOOL.
PREDICATES = {
    "Equal": "Equal", "Greater": "Greater", "GreaterOrEqual": "GreaterEqual", "Less": "Less",
    "LessOrEqual": "LessEqual",
    "And": "LogicalAnd", "Or": "LogicalOr", "Not": "LogicalNot",
}  # fmt: skip
# Types to compute in if the GE operator does not support the operands' own; each represents every value of the
# original.
_WIDER = {
    "BOOL": ("INT8", "INT32", "FLOAT16", "FLOAT"), "INT8": ("INT32", "FLOAT16", "FLOAT", "INT16"),
    "UINT8": ("INT32", "FLOAT16", "FLOAT", "INT16"), "INT16": ("INT32", "INT64", "FLOAT"),
    "UINT16": ("INT32", "INT64", "FLOAT"), "INT32": ("INT64", "DOUBLE"), "UINT32": ("INT64", "DOUBLE"),
    "FLOAT16": ("FLOAT", "DOUBLE"), "BF16": ("FLOAT", "DOUBLE"), "FLOAT": ("DOUBLE",),
}  # fmt: skip


def computing_type(e: Emitter, kind: str, dtype: str, position: int = 0) -> str:
    """The element type in which a GE operator computes on `dtype`: one with an AI Core kernel if possible.

    Raises:
        Unsupported: there is none for the type, nor for one that represents all its values.
    """
    allowed = prototypes()[kind].inputs[position].dtypes
    fitting = [name for name in (dtype, *_WIDER.get(dtype, ())) if not allowed or name in allowed]
    if not fitting:
        raise Unsupported(f"GE `{kind}` does not take {dtype}")
    units = {name: e.unit_for(kind, name, position) for name in fitting}
    for wanted in ("AI Core", "AI CPU", "TF", "fixed"):
        if found := next((name for name in fitting if units[name] == wanted), ""):
            return found
    raise Unsupported(f"the chip has no kernel of GE `{kind}` for {dtype}")


def widened(e: Emitter, kind: str, *xs: Ref, **attrs: Any) -> Ref:
    """An elementwise node on operands cast to a supported type, and its result cast back."""
    dtype = xs[0].dtype
    if kind in _EXTREMA and len(xs) == 2 and not _has(e, kind, dtype):
        return _selected(e, kind, *xs)
    if kind in _BITWISE and dtype == "UINT64" and not _has(e, kind, dtype):
        return bitcast(e, widened(e, kind, *(bitcast(e, x, "INT64") for x in xs), **attrs), dtype)
    inner = computing_type(e, kind, dtype)
    return e.cast(e.op(kind, *(e.cast(x, inner) for x in xs), **attrs), dtype)


_EXTREMA = {"Maximum": "Greater", "Minimum": "Less"}
_BITWISE = frozenset({"BitwiseAnd", "BitwiseOr", "BitwiseXor"})


def _has(e: Emitter, kind: str, dtype: str) -> bool:
    """Whether there is a kernel for a type, or for one that represents its values."""
    try:
        return bool(computing_type(e, kind, dtype))
    except Unsupported:
        return False


def _selected(e: Emitter, kind: str, x: Ref, y: Ref) -> Ref:
    """The larger or smaller of two, for types with a kernel for comparison but not for Maximum.

    NaN stays NaN.
    """
    desc = elementwise([x, y])
    out = Desc("BOOL", desc.shape)
    first = e.op(_EXTREMA[kind], x, y, out=out)
    if x.dtype in FLOATS or x.dtype == "DOUBLE":
        first = e.op("LogicalOr", first, e.op("NotEqual", x, x, out=Desc("BOOL", x.shape)), out=out)
    return e.op("SelectV2", first, x, y, out=desc)


def _same(kind: str) -> Row:
    return lambda e, op, *xs: widened(e, kind, *xs)


def _predicate(kind: str) -> Row:
    def row(e: Emitter, op: Op, *xs: Ref) -> Ref:
        if kind == "LessEqual" and not _has(e, kind, xs[0].dtype):
            return _predicate("GreaterEqual")(e, op, *reversed(xs))
        inner = computing_type(e, kind, xs[0].dtype)
        cast = [e.cast(x, inner) for x in xs]
        return e.op(kind, *cast, out=Desc("BOOL", elementwise(cast).shape))

    return row


def _with(kind: str, **names: str) -> Row:
    """A unary operator whose attributes only differ in name: GE name -> ONNX name."""
    return lambda e, op, x: widened(e, kind, x, **{ge: getattr(op.a, onnx) for ge, onnx in names.items()})


def _chain(kind: str) -> Row:
    def row(e: Emitter, op: Op, *xs: Ref) -> Ref:
        total = xs[0]
        for x in xs[1:]:
            total = widened(e, kind, total, x)
        return total

    return row


def _mean(e: Emitter, op: Op, *xs: Ref) -> Ref:
    total = _chain("Add")(e, op, *xs)
    return (
        e.op("Muls", total, value=1 / len(xs))
        if total.dtype in FLOATS
        else truncated_quotient(e, total, e.scalar(len(xs), total))
    )


def _div(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    return widened(e, "RealDiv", x, y) if x.dtype in FLOATS else truncated_quotient(e, x, y)


def truncated_quotient(e: Emitter, x: Ref, y: Ref) -> Ref:
    """Integer division. INT64 has no kernel for it; as DOUBLE, the integer part is exact below 2^53."""
    if x.dtype in ("INT64", "UINT32", "UINT64"):
        return e.cast(e.op("RealDiv", e.cast(x, "DOUBLE"), e.cast(y, "DOUBLE")), x.dtype)
    return widened(e, "TruncateDiv", x, y)


def _mod(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    if op.a.fmod and x.dtype in ("INT64", "UINT32"):
        return e.op("Sub", x, e.op("Mul", truncated_quotient(e, x, y), y))
    return widened(e, "Mod" if op.a.fmod else "FloorMod", x, y)


def _pow(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    if _is(y, 2) and x.dtype in _SQUARED and elementwise([x, y]).shape == x.shape:  # Pow is computed by exp and log
        return e.op("Square", x)
    if x.dtype == y.dtype:
        return widened(e, "Pow", x, y)
    inner = "DOUBLE" if "DOUBLE" in (x.dtype, y.dtype) else "FLOAT"
    return e.cast(e.op("Pow", e.cast(x, inner), e.cast(y, inner)), x.dtype)


_SQUARED = ("FLOAT", "FLOAT16", "BF16", "DOUBLE", "INT32", "INT64")


def _is(x: Ref, value: float) -> bool:
    """Whether an output is a constant of one value."""
    return x.node.type == "Const" and x.node.value.size == 1 and bool(x.node.value.reshape(-1)[0] == value)


def _is_nan(e: Emitter, op: Op, x: Ref) -> Ref:
    return e.op("NotEqual", x, x, out=Desc("BOOL", x.shape))  # NaN is the only value different from itself


def _where(e: Emitter, op: Op, c: Ref, x: Ref, y: Ref) -> Ref:
    inner = computing_type(e, "SelectV2", x.dtype, 1)
    shape = tuple(int(d) for d in np.broadcast_shapes(c.shape, x.shape, y.shape))
    made = e.op("SelectV2", c, e.cast(x, inner), e.cast(y, inner), out=Desc(inner, shape))
    return e.cast(made, x.dtype)


def _xor(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    x, y = e.cast(x, "INT32"), e.cast(y, "INT32")
    return e.op("NotEqual", x, y, out=Desc("BOOL", elementwise([x, y]).shape))


def _clip(e: Emitter, op: Op, x: Ref, lo: Ref | None = None, hi: Ref | None = None) -> Ref:
    if lo is not None and hi is not None and (x.dtype != "INT64" or e.unit_for("ClipByValue", "INT64") == "AI Core"):
        # ONNX returns the upper bound if the bounds cross; for ClipByValue that is undefined.
        return widened(e, "ClipByValue", x, lo, hi) if _ordered(lo, hi) else _bounded(e, x, lo, hi)
    return _bounded(e, x, lo, hi)


def _ordered(lo: Ref, hi: Ref) -> bool:
    return lo.node.type == hi.node.type == "Const" and bool(lo.node.value <= hi.node.value)


def _bounded(e: Emitter, x: Ref, lo: Ref | None, hi: Ref | None) -> Ref:
    if lo is not None:
        x = widened(e, "Maximum", x, lo)
    if hi is not None:
        x = widened(e, "Minimum", x, hi)
    return e.op("Identity", x) if lo is None and hi is None else x


def _isinf(e: Emitter, op: Op, x: Ref) -> Ref:
    if not (op.a.detect_positive or op.a.detect_negative):
        return e.constant(np.zeros(x.shape, bool))
    if not e.unit_for("IsInf", x.dtype):
        value = absolute(e, x) if op.a.detect_positive and op.a.detect_negative else x
        return e.op(
            "Equal", value, e.scalar(np.inf if op.a.detect_positive else -np.inf, value), out=Desc("BOOL", x.shape)
        )
    x = e.cast(x, computing_type(e, "IsInf", x.dtype))
    found = e.op("IsInf", x, out=Desc("BOOL", x.shape))
    if op.a.detect_positive and op.a.detect_negative:
        return found
    sign = "Greater" if op.a.detect_positive else "Less"
    return e.op("LogicalAnd", found, e.op(sign, x, e.scalar(0, x), out=Desc("BOOL", x.shape)))


def _bitwise_not(e: Emitter, op: Op, x: Ref) -> Ref:
    if e.unit_for("Invert", x.dtype) == "AI Core":
        return e.op("Invert", x)
    ones = e.constant(np.array(~np.zeros((), occ_type(x.dtype).numpy)))
    return widened(e, "Sub", ones, x)  # no borrow: each bit of `ones` is set


def _shift(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    return e.op("LeftShift" if op.a.direction == "LEFT" else "RightShift", x, y)


def _cast(e: Emitter, op: Op, x: Ref) -> Ref:
    target = e.type(op.result).dtype
    if "STRING" in (x.dtype, target):
        raise Unsupported("GE `Cast` does not take strings")
    if x.dtype in FLOATS and target == "BOOL":  # anything non-zero is true, even if truncation would yield zero
        return e.op("NotEqual", x, e.scalar(0, x), out=Desc("BOOL", x.shape))
    return e.op("Identity", x) if x.dtype == target else e.cast(x, target)


def absolute(e: Emitter, x: Ref) -> Ref:
    """`|x|`; on the 310P Abs only supports FLOAT, FLOAT16 and INT32."""
    if x.dtype in ("INT64", "DOUBLE"):
        return widened(e, "Maximum", x, e.op("Neg", x))
    inner = "INT32" if x.dtype in ("INT8", "UINT8", "INT16") else computing_type(e, "Abs", x.dtype)
    return e.cast(e.op("Abs", e.cast(x, inner)), x.dtype)


def _dropout(e: Emitter, op: Op, x: Ref, *_: Ref | None) -> tuple[Ref, ...]:
    training = e.known(op, 2)
    if training is not None and bool(training.reshape(-1)[0]):
        raise Unsupported("it is in training mode")
    return e.op("Identity", x), e.constant(np.ones(x.shape, bool))


def like(x: Ref, value: float) -> np.ndarray:
    """A rank-0 array of the type of an output."""
    return np.array(value, occ_type(x.dtype).numpy)


def _bitcast(e: Emitter, op: Op, x: Ref) -> Ref:
    return e.op("Bitcast", x, out=e.type(op.result), type=e.type(op.result).dtype)


def bitcast(e: Emitter, x: Ref, dtype: str) -> Ref:
    """The bits of `x` as elements of another type of the same size."""
    return e.op("Bitcast", x, out=Desc(dtype, x.shape), type=dtype)


ROWS: dict[str, Row] = {
    **{name: _same(kind) for name, kind in SAME_TYPE.items()},
    **{name: _predicate(kind) for name, kind in PREDICATES.items()},
    "Abs": lambda e, op, x: absolute(e, x),
    "BitCast": _bitcast,
    "BitwiseNot": _bitwise_not,
    "BitShift": _shift,
    "Cast": _cast,
    "IsNaN": _is_nan,
    "Clip": _clip,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _with("Elu", alpha="alpha"),
    "HardSigmoid": _with("HardSigmoid", alpha="alpha", beta="beta"),
    "Identity": _same("Identity"),
    "IsInf": _isinf,
    "LeakyRelu": _with("LeakyRelu", negative_slope="alpha"),
    "Max": _chain("Maximum"),
    "Mean": _mean,
    "Min": _chain("Minimum"),
    "Mod": _mod,
    "Pow": _pow,
    "Sum": _chain("Add"),
    "Swish": _with("Swish", scale="alpha"),
    "Where": _where,
    "Xor": _xor,
}
