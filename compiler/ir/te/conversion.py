"""ONNX's Cast as te expressions: saturation, round modes, sub-byte integers."""

from __future__ import annotations

import ml_dtypes

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import F8E8M0, F32, I32, U8, DType
from occ.compiler.ir.te.expr import Bitcast, Expr, binary, call, cast, clamp, equal, literal, minimum, where

FLOAT8 = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")


def convert(x: Expr, to: DType, *, saturate: bool = True, round_mode: str = "up") -> Expr:
    """ONNX Cast of `x`: float8 saturates unless `saturate` is 0, and sub-byte integers wrap.

    Raises:
        Invalid: the round mode is unknown.
    """
    if to == F8E8M0 and x.dtype != to:
        return _power_of_two(cast(F32, x), saturate=saturate, round_mode=round_mode)
    if to.name in FLOAT8 and x.dtype != to:
        wide = x if x.dtype.is_float and x.dtype.bits > 8 else cast(F32, x)
        return cast(to, clamp_to_finite(wide, to) if saturate else wide)
    if to.is_int and to.bits < 8 and x.dtype.is_float:
        return cast(to, cast(I32, x))
    return cast(to, x)


def clamp_to_finite(x: Expr, to: DType) -> Expr:
    """`x` within the finite range of a narrow float type; NaN stays."""
    info = ml_dtypes.finfo(to.numpy)
    return clamp(x, float(info.min), float(info.max))


def _power_of_two(x: Expr, *, saturate: bool, round_mode: str) -> Expr:
    """The exponent of an f32 as f8e8m0, which has no sign and no zero (ONNX Cast, table of round modes)."""
    if round_mode not in ("up", "down", "nearest"):
        raise Invalid(f"`round_mode` of `Cast` is {round_mode!r}", code="OCC0107")
    bits = Bitcast(x, I32)
    exponent = binary("shr", bits, literal(23, I32)) & 255
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        above = fraction > 0
    elif round_mode == "nearest":
        above = where(exponent > 0, fraction >= 0x400000, fraction > 0x400000)
    else:
        above = fraction < 0
    rounded = exponent + cast(I32, above)
    if saturate:
        rounded = minimum(rounded, 254)
    return Bitcast(cast(U8, where(equal(exponent, 255), literal(255, I32), rounded)), F8E8M0)


def quantize(x: Expr, to: DType, zero_point: Expr | None = None, *, saturate: bool = True) -> Expr:
    """A scaled value as a quantised one: halves round to even, then the zero point is added, then it saturates."""
    if not to.is_int:
        if to.name == "f4e2m1" and zero_point is not None:
            x = x + cast(x.dtype, zero_point)
        return convert(x, to, saturate=saturate)
    if x.dtype == F32 and to.bits <= 16 and (zero_point is None or zero_point.dtype.is_int):
        return _cut(x, to, zero_point)
    value = call("round_even", x)
    value = value if value.dtype.bits >= 32 else cast(F32, value)
    if zero_point is not None:
        value = value + cast(value.dtype, zero_point)
    return cast(to, clamp(value, to.lowest, to.highest))


def _cut(x: Expr, to: DType, zero_point: Expr | None) -> Expr:
    """The same in integers; `x` is clamped before it is rounded, so the conversion needs no tests."""
    low, high = (literal(n, I32) for n in (to.lowest, to.highest))
    if zero_point is None:
        return cast(to, call("nearest", clamp(x, cast(F32, low), cast(F32, high))))
    moved = cast(I32, zero_point)
    whole = call("nearest", clamp(x, cast(F32, low - moved), cast(F32, high - moved)))
    return cast(to, whole + moved)
