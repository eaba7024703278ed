"""Elementwise operators: one element of the result from one element of each operand, with numpy broadcasting."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import BOOL, F64, U8
from occ.compiler.ir.operator.random_shapes import same_shapes, scalars_after_first
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import broadcast_shapes
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.conversion import convert
from occ.compiler.ir.te.expr import (
    Bitcast,
    Const,
    Expr,
    binary,
    call,
    cast,
    clamp,
    equal,
    literal,
    maximum,
    minimum,
    not_equal,
    where,
)
from occ.compiler.ir.te.function import Builder, Tensor

Fn = Callable[..., Expr]


_LATER = {"Cast": {"round_mode": "up"}}  # as `OpSpec.later`


def elementwise(name: str, fn: Fn, *, with_attributes: bool = False) -> OpSpec:
    """The operator whose element is `fn` of the operands' elements (and of the attributes, as keyword `a`)."""

    def body(t: Builder, *operands: Tensor | None, a: SimpleNamespace) -> Tensor:
        present = [x for x in operands if x is not None]
        shape = broadcast_shapes(*(x.shape for x in present), op=name)
        extra = {"a": a} if with_attributes else {}
        if name in DIVISIONS and operands[1] is not None:
            _check_divisor(t, name, operands[1])

        def element(*i: Expr) -> Expr:
            return fn(*(None if x is None else x.at(i) for x in operands), **extra)

        return t.map(shape, element, name=name.lower())

    return OpSpec(
        name,
        {"later": _LATER.get(name, {}), "body": body, "commutes": name in COMMUTATIVE, "sample": SAMPLES.get(name)},
    )


DIVISIONS = ("Div", "Mod")
COMMUTATIVE = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor",
)  # fmt: skip
SAMPLES = {"Clip": scalars_after_first, "Where": same_shapes}


def _check_divisor(t: Builder, name: str, y: Tensor) -> None:
    """Dividing an integer by 0 is a run-time error."""
    first = y[(0,) * y.rank]
    if y.dtype.is_int and not (isinstance(first, Const) and first.value != 0):
        t.check(y.shape, lambda *i: not_equal(y[i], 0), f"`{name}` divides by zero")


def _unary(fn: str) -> Fn:
    return lambda x: call(fn, x)


def _binary(name: str) -> Fn:
    return lambda x, y: binary(name, x, y)


def _fold(fn: Callable[[Expr, Expr], Expr]) -> Fn:
    return lambda *xs: reduce(fn, xs)


def _mean(*xs: Expr) -> Expr:
    return reduce(lambda x, y: x + y, xs) / len(xs)


def _clip(x: Expr, lo: Expr | None = None, hi: Expr | None = None) -> Expr:
    x = x if lo is None else maximum(x, lo)
    return x if hi is None else minimum(x, hi)


def _relu(x: Expr) -> Expr:
    return maximum(x, literal(0, x.dtype))


def _elu(x: Expr, *, a: Any) -> Expr:
    return where(x < 0, (f.exp(x) - 1) * a.alpha, x)


def _selu(x: Expr, *, a: Any) -> Expr:
    return where(x <= 0, (f.exp(x) - 1) * a.alpha, x) * a.gamma


def _celu(x: Expr, *, a: Any) -> Expr:
    return maximum(x, 0) + minimum((f.exp(x / a.alpha) - 1) * a.alpha, 0)


def _hard_sigmoid(x: Expr, *, a: Any) -> Expr:
    return clamp(x * a.alpha + a.beta, 0, 1)


def _isinf(x: Expr, *, a: Any) -> Expr:
    if a.detect_positive and a.detect_negative:
        return call("isinf", x)
    if not (a.detect_positive or a.detect_negative):
        return literal(False, BOOL)
    return call("isinf", x) & (x > 0 if a.detect_positive else x < 0)


def _shrink(x: Expr, *, a: Any) -> Expr:
    y = cast(F64, x) if x.dtype.is_int else x  # bounds and bias are not integers
    return cast(x.dtype, where(y < -a.lambd, y + a.bias, where(y > a.lambd, y - a.bias, literal(0, y.dtype))))


def _mod(x: Expr, y: Expr, *, a: Any) -> Expr:
    return f.remainder(x, y, fmod=bool(a.fmod))


def _bit_shift(x: Expr, y: Expr, *, a: Any) -> Expr:
    return binary("shl" if a.direction == "LEFT" else "shr", x, y)


def _gelu(x: Expr, *, a: Any) -> Expr:
    return f.gelu_tanh(x) if a.approximate == "tanh" else f.gelu(x)


def _cast(x: Expr, *, a: Any) -> Expr:
    return convert(x, a.to, saturate=bool(a.saturate), round_mode=a.round_mode)


PLAIN: dict[str, Fn] = {
    "Abs": f.absolute, "Acos": _unary("acos"), "Acosh": _unary("acosh"), "Add": _binary("add"), "And": _binary("and"),
    "Asin": _unary("asin"), "Asinh": _unary("asinh"), "Atan": _unary("atan"), "Atanh": _unary("atanh"),
    "BitwiseAnd": _binary("and"), "BitwiseNot": _unary("not"), "BitwiseOr": _binary("or"), "BitwiseXor": _binary("xor"),
    "Ceil": _unary("ceil"), "Clip": _clip, "Cos": _unary("cos"), "Cosh": _unary("cosh"), "Div": _binary("div"),
    "Equal": equal, "Erf": f.erf, "Exp": f.exp, "Floor": _unary("floor"), "Greater": lambda x, y: y < x,
    "GreaterOrEqual": lambda x, y: y <= x, "HardSwish": f.hard_swish,
    "IsNaN": _unary("isnan"), "Less": lambda x, y: x < y, "LessOrEqual": lambda x, y: x <= y, "Log": f.log,
    "Max": _fold(maximum), "Mean": _mean, "Min": _fold(minimum), "Mish": f.mish,
    "Mul": _binary("mul"), "Neg": _unary("neg"), "Not": _unary("not"), "Or": _binary("or"),
    "PRelu": lambda x, slope: where(x < 0, x * slope, x), "Pow": f.power,
    "Reciprocal": lambda x: literal(1, x.dtype) / x, "Relu": _relu, "Round": _unary("round_even"), "Sigmoid": f.sigmoid,
    "Sign": _unary("sign"), "Sin": _unary("sin"), "Sinh": _unary("sinh"), "Softplus": f.softplus,
    "Softsign": lambda x: x / (f.absolute(x) + 1), "Sqrt": f.root,
    "Sub": _binary("sub"), "Sum": _fold(lambda x, y: x + y), "Tan": _unary("tan"), "Tanh": f.tanh,
    "Where": where, "Xor": _binary("xor"),
}  # fmt: skip
WITH_ATTRIBUTES: dict[str, Fn] = {
    "BitShift": _bit_shift, "Cast": _cast, "Celu": _celu, "Elu": _elu, "Gelu": _gelu, "HardSigmoid": _hard_sigmoid,
    "IsInf": _isinf, "LeakyRelu": lambda x, *, a: where(x < 0, x * a.alpha, x), "Mod": _mod, "Selu": _selu,
    "Shrink": _shrink, "Swish": lambda x, *, a: x * f.sigmoid(x * a.alpha),
    "ThresholdedRelu": lambda x, *, a: where(x > a.alpha, x, literal(0, x.dtype)),
}  # fmt: skip


@op("CastLike", later=_LATER["Cast"])
class CastLike:
    def composite(b, x, target, *, a):
        return b.Cast(x, to=target.tensor.dtype, saturate=a.saturate, round_mode=a.round_mode)


@op("BitCast")
class BitCast:
    """The bits of each element as another type of the same width; bools are bytes of 0 and 1."""

    def body(t, x, *, a):
        if a.to.bits != x.dtype.bits:
            raise Invalid(f"`BitCast` of {x.dtype} to {a.to}: the widths differ")

        def element(*i):
            value = cast(U8, x[i]) if x.dtype == BOOL else x[i]
            if a.to == BOOL:
                return not_equal(value if value.dtype == U8 else Bitcast(value, U8), 0)
            return value if value.dtype == a.to else Bitcast(value, a.to)

        return t.map(x.shape, element, name="bitcast")


ALL = (
    *(elementwise(name, fn) for name, fn in PLAIN.items()),
    *(elementwise(name, fn, with_attributes=True) for name, fn in WITH_ATTRIBUTES.items()),
    CastLike,
    BitCast,
)
