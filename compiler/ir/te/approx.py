"""Elementary functions of f32 as te arithmetic, for targets whose own are scalar library calls.

Polynomials are least-squares fits of the relative error on the stated range, in f64, with coefficients rounded to f32;
each states its largest measured relative error against f64. `docs/numerics.md` has the method.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

from occ.compiler.ir.dtype import F32, F64, I32
from occ.compiler.ir.te.expr import Bitcast, Expr, binary, call, cast, clamp, equal, literal, where

Function = Callable[[Expr], Expr]

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has 10 significant bits
_ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits of the sum
_ROUND_F64 = 6755399441055744.0  # 1.5 * 2**52, likewise
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
_TANH = (1.0, 0.1308358368, 0.003103478967, 1.1149283e-05, -2.020459165e-08, 5.267855172e-11, -8.462336687e-14)
_TANH_BELOW = (1.0, 0.4641691071, 0.02449328054, 0.000254544841)
_ERF = (1.1283791065, 0.1915506124, 0.0528754890, 0.0038081759, 0.0002846883, 0.0000020259)
_ERF_BELOW = (1.0, 0.5030899644, 0.1145597547, 0.0150551181, 0.0011707298, 0.0000378318)
_ATAN = (-0.333329491539, 0.199777106478, -0.138776856032, 0.0805374449538)
_ASIN = (0.16666752422, 0.074953002686, 0.045470025998, 0.024181311049, 0.042163199048)
_TAN_1, _TAN_3 = 0.4142135623731, 2.414213562373  # of pi / 8 and 3 pi / 8


_SIN = (-0.1666665524, 0.0083321585, -0.0001951525)
_COS = (0.0416666457, -0.0013887316, 0.0000244332)
# 2/pi in 24-bit pieces, so that their products with an argument are exact in f64; and the same times 2**24, modulo 4,
# and so on, for arguments above each size, which are divided by it: they are integers then, so multiples of 4 drop out.
_QUARTERS = (
    (0.0, (0.6366195679, 2.044964873e-07, 2.937095215e-16, 3.254378138e-23, 2.471138744e-29)),
    (2.0**48, (3.430881739, 4.927628083e-09, 5.459940497e-16, 4.145882847e-22, 2.213035543e-29)),
    (2.0**72, (0.08267188072, 9.160260106e-09, 6.955637204e-15, 3.712857533e-22, 3.261932801e-29)),
    (2.0**96, (0.1536836624, 1.166962278e-07, 6.22914128e-15, 5.472615119e-22, 3.33113658e-30)),
    (2.0**120, (1.95783782, 1.045076488e-07, 9.181524593e-15, 5.588719793e-23, 2.516061361e-29)),
)


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
    mantissa, shifted, _ = exp_parts(x)
    count = Bitcast(shifted, I32) - Bitcast(literal(_ROUND, F32), I32)
    half = binary("shr", count, literal(1, I32))  # in two steps, so that subnormal results are correct
    return mantissa * _power_of_two(half) * _power_of_two(count - half)


def exp_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """A factor, a number whose low bits are n, and n as an f32, of `e**x = factor 2**n`."""
    bounded = clamp(x, -104.0, 89.0)
    shifted = bounded * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = bounded - n * _LN2_HIGH - n * _LN2_LOW
    return r * r * _polynomial(r, _EXP) + r + 1.0, shifted, n


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


def tanh(x: Expr) -> Expr:
    """`x P(x*x) / Q(x*x)` up to 9.01, where tanh rounds to 1; 3.3e-7."""
    bounded = clamp(x, -9.01, 9.01)
    z = bounded * bounded
    return clamp(bounded * _polynomial(z, _TANH) / _polynomial(z, _TANH_BELOW), -1.0, 1.0)


def erf(x: Expr) -> Expr:
    """`x P(x*x) / Q(x*x)` up to 3.92, where erf rounds to 1; 4e-7."""
    bounded = clamp(x, -3.92, 3.92)
    z = bounded * bounded
    return clamp(bounded * _polynomial(z, _ERF) / _polynomial(z, _ERF_BELOW), -1.0, 1.0)


def _whole(x: Expr) -> Expr:
    """The integer nearest to an f64 below 2**51: additions only, since rounding would split vectors (arithmetic.h)."""
    return x + _ROUND_F64 - _ROUND_F64


def _quarters(x: Expr) -> tuple[Expr, Expr]:
    """The quadrant of an angle, an i32 from -2 to 2, and the remainder within an eighth of a turn.

    Right for all f32 (Payne and Hanek, 1983).
    """
    size = call("abs", x)
    scaled, terms = size, [literal(c, F32) for c in _QUARTERS[0][1]]
    for k, (least, row) in enumerate(_QUARTERS[1:], 1):
        scaled = where(size < least, scaled, size * 2.0 ** (-24 * k))
        terms = [where(size < least, a, literal(c, F32)) for a, c in zip(terms, row, strict=True)]
    first, *products = [cast(F64, scaled) * cast(F64, c) for c in terms]
    count = _whole(first)
    left = first - count
    for k, p in enumerate(products):
        count, left = (count + (whole := _whole(p)), left + (p - whole)) if k < 2 else (count, left + p)
    last = _whole(left)
    count = count + last
    count = count - _whole(count * 0.25) * 4.0
    return call("nearest", cast(F32, count)), cast(F32, (left - last) * (pi / 2))


def _wave(x: Expr, shift: int) -> tuple[Expr, Expr]:
    """The magnitude of the sine `shift` quarters further, and its sign bit for positive `x`."""
    count, r = _quarters(x)
    z = r * r
    sine, cosine = r + r * z * _polynomial(z, _SIN), 1.0 - z * 0.5 + z * z * _polynomial(z, _COS)
    count = count + shift
    odd = equal(binary("and", count, literal(1, I32)), literal(0, I32))
    return where(odd, sine, cosine), binary("shl", binary("and", count, literal(2, I32)), literal(30, I32))


def _with_sign(x: Expr, sign: Expr) -> Expr:
    return Bitcast(binary("xor", Bitcast(x, I32), sign), F32)


def sin(x: Expr) -> Expr:
    """A polynomial of the remainder of a quarter circle; error 1e-7, for all arguments."""
    value, sign = _wave(x, 0)
    return _with_sign(value, binary("xor", sign, binary("and", Bitcast(x, I32), literal(I32.lowest, I32))))


def cos(x: Expr) -> Expr:
    """Cosine, by the sine a quarter turn further; error 1e-7 for all arguments."""
    return _with_sign(*_wave(x, 1))


def atan(x: Expr) -> Expr:
    """Arctangent, error 2e-7: an offset by the range of the argument, then `r + r**3 P(r*r)`.

    The offset is pi / 4 for arcs of more than pi / 8, pi / 2 for those of more than 3 pi / 8.

    Reductions and coefficients are those of `atanf` of Cephes (Moshier, 1989).
    """
    size = call("abs", x)
    far, middle = size > _TAN_3, size > _TAN_1
    one = literal(1, F32)
    above = where(far, -one, where(middle, size - 1.0, size))
    r = above / where(far, size, where(middle, size + 1.0, one))
    z = r * r
    start = where(far, literal(pi / 2, F32), where(middle, literal(pi / 4, F32), literal(0, F32)))
    value = start + (r * z * _polynomial(z, _ATAN) + r)
    return _with_sign(value, binary("and", Bitcast(x, I32), literal(I32.lowest, I32)))


def _half_arc(x: Expr) -> tuple[Expr, Expr]:
    """Whether `|x|` is above 1/2, and the arc sine of `|x|`, there of `sqrt((1 - |x|) / 2)`: `r + r**3 P(r*r)`."""
    size = call("abs", x)
    far = size > 0.5
    z = where(far, (1.0 - size) * 0.5, size * size)
    r = where(far, call("sqrt", z), size)
    return far, r * z * _polynomial(z, _ASIN) + r


def asin(x: Expr) -> Expr:
    """`pi / 2 - 2 asin(sqrt((1 - |x|) / 2))` above 1/2, else a polynomial (Cephes, `asinf`); 2e-7, NaN beyond 1."""
    far, part = _half_arc(x)
    value = where(far, literal(pi / 2, F32) - part * 2.0, part)
    return _with_sign(value, binary("and", Bitcast(x, I32), literal(I32.lowest, I32)))


def acos(x: Expr) -> Expr:
    """`2 asin(sqrt((1 - |x|) / 2))` or what is left of pi beyond 1/2, else `pi / 2 - asin(x)`; 2e-7, NaN beyond 1."""
    far, part = _half_arc(x)
    negative = x < 0.0
    near = where(negative, literal(pi / 2, F32) + part, literal(pi / 2, F32) - part)
    return where(far, where(negative, literal(pi, F32) - part * 2.0, part * 2.0), near)


APPROXIMATIONS: dict[str, Function] = {
    "exp": exp,
    "decay": exp,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "atan": atan,
    "asin": asin,
    "acos": acos,
}
