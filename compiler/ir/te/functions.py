"""Scalar functions in terms of te primitives, for the bodies of operators."""

from __future__ import annotations

from math import pi, sqrt

from occ.compiler.ir.dtype import F32, F64, DType
from occ.compiler.ir.te.expr import Const, Expr, binary, call, cast, literal, maximum, where


def exp(x: Expr) -> Expr:
    return call("exp", x)


def decay(x: Expr) -> Expr:
    """e**x of an x that is never above 0, as behind a maximum; targets compute it in half the time."""
    return call("decay", x)


def log(x: Expr) -> Expr:
    return call("log", x)


def root(x: Expr) -> Expr:
    """Square root; NaN below zero."""
    return call("sqrt", x)


def absolute(x: Expr) -> Expr:
    return x if x.dtype.kind in "ub" else call("abs", x)


def sigmoid(x: Expr) -> Expr:
    """`1 / (1 + exp(-x))`, from an exponential that cannot overflow."""
    e = exp(-call("abs", x))
    return where(x < 0, e, literal(1, x.dtype)) / (e + 1)


def softplus(x: Expr) -> Expr:
    """`log(1 + exp(x))` without overflow."""
    return maximum(x, 0) + log(exp(-call("abs", x)) + 1)


def erf(x: Expr) -> Expr:
    return call("erf", x)


def tanh(x: Expr) -> Expr:
    return call("tanh", x)


def gelu(x: Expr) -> Expr:
    """`x * Phi(x)`, the exact form."""
    return x * 0.5 * (erf(x * (1 / sqrt(2))) + 1)


def gelu_tanh(x: Expr) -> Expr:
    """The tanh approximation of Gelu (ONNX Gelu, approximate=tanh)."""
    return x * 0.5 * (tanh((x + x * x * x * 0.044715) * sqrt(2 / pi)) + 1)


def power(base: Expr, exponent: Expr) -> Expr:
    """`base ** exponent` in the type of `base`; integer powers of floats by multiplication where that is exact enough.

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
    return call("pow", base, cast(base.dtype, exponent))


def remainder(a: Expr, b: Expr, *, fmod: bool) -> Expr:
    """The remainder with the sign of the dividend (`fmod`) or of the divisor (Python's `%`)."""
    return binary("rem" if fmod else "mod", a, b)


def in_acc(x: Expr) -> Expr:
    """`x` in the type in which sums of its type accumulate."""
    return cast(x.dtype.acc, x)


def compute_type(dtype: DType) -> DType:
    """The float type in which means and norms of `dtype` are computed."""
    return dtype.acc if dtype.is_float else F32
