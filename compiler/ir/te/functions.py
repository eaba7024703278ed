"""Scalar functions in terms of te primitives, for the bodies of operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import pi, sqrt

from occ.compiler.ir.dtype import F32, F64, I64, U64, DType
from occ.compiler.ir.te.expr import Const, Expr, binary, call, cast, clamp, literal, maximum, minimum, where


def exp(x: Expr) -> Expr:
    return call("exp", x)


def decay(x: Expr) -> Expr:
    """e**x of an x that is never above 0, as after subtracting a maximum.

    Targets compute it in half the time.
    """
    return call("decay", x)


def log(x: Expr) -> Expr:
    return call("log", x)


def root(x: Expr) -> Expr:
    """Square root; NaN below zero."""
    return call("sqrt", x)


def absolute(x: Expr) -> Expr:
    return x if x.dtype.kind in "ub" else call("abs", x)


def rounded_once(fn: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """`fn` computed in the accumulation type, for formulas of several steps."""
    return wraps(fn)(lambda x: cast(x.dtype, fn(in_acc(x))))


@rounded_once
def sigmoid(x: Expr) -> Expr:
    """`1 / (1 + exp(-x))`, from an exponential that cannot overflow."""
    e = decay(-call("abs", x))
    return where(x < 0, e, literal(1, x.dtype)) / (e + 1)


@rounded_once
def softplus(x: Expr) -> Expr:
    """`log(1 + exp(x))` without overflow, and accurate for small values."""
    return maximum(x, 0) + call("log1p", decay(-call("abs", x)))


@rounded_once
def mish(x: Expr) -> Expr:
    """`x * tanh(softplus(x))`, which is `x * n / (n + 2)` with `n = e**x (e**x + 2)`, and `x` in f64 as well from 20 on."""
    e = exp(minimum(x, 20))
    n = e * (e + 2)
    return where(x < 20, x * (n / (n + 2)), x)


@rounded_once
def hard_swish(x: Expr) -> Expr:
    """`x` times a ramp from 0 to 1 between -3 and 3."""
    return x * clamp(x * (1 / 6) + 0.5, 0, 1)


def erf(x: Expr) -> Expr:
    """The error function.

    For integers too, as in operator set 9, where onnx.reference rounds to f32 before truncating: 1 from 4 on.
    """
    return call("erf", x) if x.dtype.is_float else cast(x.dtype, cast(F32, call("erf", cast(F64, x))))


def tanh(x: Expr) -> Expr:
    return call("tanh", x)


@rounded_once
def gelu(x: Expr) -> Expr:
    """`x * Phi(x)`, the exact form."""
    return x * 0.5 * (erf(x * (1 / sqrt(2))) + 1)


@rounded_once
def gelu_tanh(x: Expr) -> Expr:
    """The tanh approximation of Gelu (ONNX Gelu, approximate=tanh).

    `0.5 (1 + tanh u)` is `1 / (1 + exp(-2u))`, which stays accurate where the tanh is near -1.
    """
    return x / (exp((x + x * x * x * 0.044715) * (-2 * sqrt(2 / pi))) + 1)


def power(base: Expr, exponent: Expr) -> Expr:
    """`base ** exponent` in the type of `base`; integer powers of floats use multiplication if that is accurate enough.

    An integer base with a float exponent is computed in f64, as numpy does.
    """
    if isinstance(exponent, Const) and base.dtype.is_float:
        match exponent.value:
            case 2:
                return base * base
            case 3:
                return base * base * base
            case 1:
                return base
            case 0.5:
                return root(base)
            case _:
                pass
    if base.dtype.is_int and exponent.dtype.is_float:
        return cast(base.dtype, call("pow", cast(F64, base), cast(F64, exponent)))
    if base.dtype.is_int and exponent.dtype.is_int:
        return _integer_power(base, exponent)
    return call("pow", base, cast(base.dtype, exponent))


def _integer_power(base: Expr, exponent: Expr) -> Expr:
    """Integer powers in 64 bits, which wrap correctly to narrower types."""
    if exponent.dtype == U64:
        # Powers of an odd number repeat after 2**62 or sooner, and those of an even one are all 0 from the 64th on.
        period = literal(1 << 62, U64)
        exponent = where(exponent < period, exponent, exponent % period + period)
    wide = base.dtype if exponent.dtype.bits < 32 or exponent.dtype == base.dtype else I64
    return cast(base.dtype, call("pow", cast(wide, base), cast(wide, exponent)))


def remainder(a: Expr, b: Expr, *, fmod: bool) -> Expr:
    """The remainder with the sign of the dividend (`fmod`) or of the divisor (Python's `%`)."""
    return binary("rem" if fmod else "mod", a, b)


def in_acc(x: Expr) -> Expr:
    """`x` in the type in which sums of its type accumulate."""
    return cast(x.dtype.acc, x)


def compute_type(dtype: DType) -> DType:
    """The float type in which means and norms of `dtype` are computed.

    For integers, a type that represents all of them, or nearly.
    """
    return dtype.acc if dtype.is_float else F64 if dtype.bits > 16 else F32


def by_floats(fn: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """A function on floats applied to a possible integer, with the result truncated."""
    return wraps(fn)(lambda x: fn(x) if x.dtype.is_float else cast(x.dtype, fn(cast(compute_type(x.dtype), x))))
