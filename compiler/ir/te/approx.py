"""Elementary functions of f32 as te arithmetic, for targets whose own are scalar library calls.

Polynomials are least-squares fits of the relative error on the stated range, in f64, coefficients rounded to f32; the
largest relative error against f64, measured over the range, stands with each. `docs/numerics.md` has the method.
"""

from __future__ import annotations

from collections.abc import Callable

from occ.compiler.ir.dtype import F32, I32
from occ.compiler.ir.te.expr import Bitcast, Expr, binary, call, cast, clamp, equal, literal, where

Function = Callable[[Expr], Expr]

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has 10 significant bits
_ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits of the sum
_EXP = (0.5, 0.1666666716, 0.0416664779, 0.0083333645, 0.0013933252, 0.0001985584)
_LOG = (
    0.3333333135,
    -0.2500030398,
    0.2000120133,
    -0.1664158106,
    0.1420995146,
    -0.1298929155,
    0.1265565157,
    -0.0797411054,
)
_LOG1P = (0.0833330229, 0.0125067271, 0.0021876404, 0.0005471098)
_TANH = (-0.3333332837, 0.1333274990, -0.0538478047, 0.0209824834, -0.0060753995)
_ERF = (1.1283791065, 0.1915506124, 0.0528754890, 0.0038081759, 0.0002846883, 0.0000020259)
_ERF_BELOW = (1.0, 0.5030899644, 0.1145597547, 0.0150551181, 0.0011707298, 0.0000378318)


def _polynomial(x: Expr, coeffs: tuple[float, ...]) -> Expr:
    total: Expr = literal(coeffs[-1], F32)
    for c in reversed(coeffs[:-1]):
        total = total * x + c
    return total


def _power_of_two(n: Expr) -> Expr:
    """`2.0 ** n` of an i32 within [-126, 127]."""
    return Bitcast(binary("shl", n + 127, literal(23, I32)), F32)


def exp(x: Expr) -> Expr:
    """e**x: `x = n ln 2 + r` with `|r| <= ln 2 / 2`, then `1 + r + r*r*P(r)`; 8e-8. Overflows to inf, underflows to 0."""
    bounded = clamp(x, -104.0, 89.0)
    shifted = bounded * _LOG2_E + _ROUND
    n = shifted - _ROUND
    count = Bitcast(shifted, I32) - Bitcast(literal(_ROUND, F32), I32)
    r = bounded - n * _LN2_HIGH - n * _LN2_LOW
    mantissa = r * r * _polynomial(r, _EXP) + r + 1.0
    half = binary("shr", count, literal(1, I32))  # in two steps, so that subnormal results come out
    return mantissa * _power_of_two(half) * _power_of_two(count - half)


def log(x: Expr) -> Expr:
    """Ln x: `x = m 2**e` with m in [sqrt(1/2), sqrt(2)), then a polynomial in m - 1; 8e-8."""
    tiny = x < 1.17549435e-38
    scaled = where(tiny, x * 8388608.0, x)
    bits = Bitcast(scaled, I32)
    exponent = binary("shr", bits - 0x3F3504F3, literal(23, I32))
    m = Bitcast(bits - binary("shl", exponent, literal(23, I32)), F32) - 1.0
    e = cast(F32, exponent) - where(tiny, literal(23, F32), literal(0, F32))
    rest = m * m * m * _polynomial(m, _LOG) + e * _LN2_LOW - m * m * 0.5
    value = m + rest + e * _LN2_HIGH
    inf = literal(float("inf"), F32)
    other = where(equal(x, 0.0), -inf, where(equal(x, inf), inf, literal(float("nan"), F32)))
    return where((x > 0.0) & (x < inf), value, other)


def log1p(x: Expr) -> Expr:
    """Ln (1 + x) of an x within 0 and 1: `2 artanh(t / 2) = t + t**3 P(t*t)` with `t = 2x / (2 + x)`; 1.2e-7."""
    t = (x + x) / (x + 2.0)
    z = t * t
    return t * z * _polynomial(z, _LOG1P) + t


def tanh(x: Expr, exp: Function = exp) -> Expr:
    """`x + x**3 P(x*x)` below 0.625, else `1 - 2 / (exp(2|x|) + 1)`; 1.4e-7."""
    size = call("abs", x)
    z = x * x
    small = x + x * z * _polynomial(z, _TANH)
    large = 1.0 - literal(2, F32) / (exp(size * 2.0) + 1.0)
    return where(size < 0.625, small, where(x < 0.0, -large, large))


def erf(x: Expr) -> Expr:
    """`x P(x*x) / Q(x*x)` up to 3.92, where erf rounds to 1; 4e-7."""
    bounded = clamp(x, -3.92, 3.92)
    z = bounded * bounded
    return clamp(bounded * _polynomial(z, _ERF) / _polynomial(z, _ERF_BELOW), -1.0, 1.0)


APPROXIMATIONS: dict[str, Function] = {"exp": exp, "decay": exp, "log": log, "log1p": log1p, "tanh": tanh, "erf": erf}
