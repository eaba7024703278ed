"""Expressions that make codes of numbers, which Halide has functions of their own for (`arithmetic.h`)."""

from __future__ import annotations

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Binary, Call, Cast, Const, Expr


def code_of_quotient(e: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """An f32, its constant divisor, and the bounds of the quotient: quantisation."""
    match e:
        case Binary("min", Binary("max", Binary("div", x, Const() as divisor), Const() as low), Const() as high):
            usual = 2.0**-80 < abs(float(divisor.value)) < 2.0**80  # pyright: ignore[reportArgumentType]
            return (x, divisor, low, high) if usual else None
        case _:
            return None


def saturated(e: Cast) -> tuple[Expr, int] | None:
    """An f32 and a constant zero point: their sum, rounded and cut to the range of 8 bits, is `e`."""
    match e.arg:
        case Binary("add", whole, Const(int() as zero)):
            pass
        case whole:
            zero = 0
    match whole:
        case Call("nearest", (Binary("min", Binary("max", x, Const(low)), Const(high)),)) if e.dtype.bits == 8:
            is_range = (low, high) == (e.dtype.lowest - zero, e.dtype.highest - zero)
            return (x, zero) if is_range and x.dtype == F32 and code_of_quotient(whole.args[0]) is None else None
        case _:
            return None
