"""Unsigned integers that sort like the elements of any type."""

from __future__ import annotations

from occ.compiler.ir.dtype import F32, F64, I32, I64, U32, U64, DType
from occ.compiler.ir.te.expr import Bitcast, Expr, binary, call, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def sort_keys(t: Builder, x: Tensor, *, largest: bool) -> Tensor:
    """Unsigned integers that sort like the elements; equal elements, and all NaNs, have equal ones."""
    return t.map(x.shape, lambda *i: sort_key(x[i], largest=largest), name="keys")


def sort_key(x: Expr, *, largest: bool) -> Expr:
    """An unsigned integer that sorts like the element; equal elements, and all NaNs, have equal ones."""
    unsigned = U64 if x.dtype.bits == 64 else U32
    made = _of_float(x, unsigned) if x.dtype.is_float else _of_integer(x, unsigned)
    return made if largest else call("not", made)


LAST = (1 << 32) - 1  # position that fits in 32 bits


def numbered(key: Expr, position: Expr) -> Expr:
    """A key of at most 32 bits and its position as one number.

    No two are equal, and of equal keys the first is largest. Positions are up to `LAST`.
    """
    return binary("or", binary("shl", cast(U64, key), literal(32, U64)), cast(U64, wrap(LAST) - position))


def position_of(number: Expr) -> Expr:
    """The position in such a number."""
    return wrap(LAST) - cast(I64, binary("and", number, literal(LAST, U64)))


def _of_integer(x: Expr, unsigned: DType) -> Expr:
    if x.dtype.kind == "u":
        return cast(unsigned, x)
    signed = cast(I64 if unsigned == U64 else I32, x)
    return binary("xor", Bitcast(signed, unsigned), literal(1 << (unsigned.bits - 1), unsigned))


def _of_float(x: Expr, unsigned: DType) -> Expr:
    """The bits of a number, with the sign bit set for positive ones, and inverted for negative ones."""
    wide = cast(F64 if unsigned == U64 else F32, x)
    bits = Bitcast(where(equal(wide, 0), literal(0, wide.dtype), wide), unsigned)  # -0 is 0
    sign = literal(1 << (unsigned.bits - 1), unsigned)
    ordered = where(bits >= sign, call("not", bits), binary("or", bits, sign))
    return where(call("isnan", wide), literal((1 << unsigned.bits) - 1, unsigned), ordered)
