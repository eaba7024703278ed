"""A builder of LLVM IR that folds constants, which llvmlite's does not.

What it folds is neither emitted nor parsed and optimised away, such as a loop over constants that runs once.
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportIncompatibleMethodOverride=false, reportCallIssue=false
from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.types import I1

_HOLDS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


class Builder(ir.IRBuilder):
    """llvmlite's builder with folding of known integers, conditions and selects."""

    def add(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return _constant(lhs.type, x + y)
        if x == 0 or y == 0:
            return rhs if x == 0 else lhs
        return super().add(lhs, rhs, name, flags)

    def sub(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return _constant(lhs.type, x - y)
        return lhs if y == 0 else super().sub(lhs, rhs, name, flags)

    def mul(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return _constant(lhs.type, x * y)
        if x in (0, 1) or y in (0, 1):
            return lhs if x == 0 or y == 1 else rhs
        return super().mul(lhs, rhs, name, flags)

    def icmp_signed(self, cmpop: str, lhs: Any, rhs: Any, name: str = "") -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return I1(int(_HOLDS[cmpop](x, y)))
        return super().icmp_signed(cmpop, lhs, rhs, name)

    def and_(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        for known, other in ((lhs, rhs), (rhs, lhs)):
            if (holds := _truth(known)) is not None:
                return other if holds else known
        return super().and_(lhs, rhs, name, flags)

    def or_(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        for known, other in ((lhs, rhs), (rhs, lhs)):
            if (holds := _truth(known)) is not None:
                return known if holds else other
        return super().or_(lhs, rhs, name, flags)

    def select(self, cond: Any, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        holds = _truth(cond)
        if holds is not None:
            return lhs if holds else rhs
        return super().select(cond, lhs, rhs, name, flags)


def number(v: Any) -> int | None:
    """The known value of a scalar integer, as a signed one.

    None if it is unknown, and for bools.
    """
    if not isinstance(v, ir.Constant) or not isinstance(v.type, ir.IntType) or v.type == I1:
        return None
    return _signed(v.constant, v.type.width) if isinstance(v.constant, int) else None


def _truth(v: Any) -> bool | None:
    known = isinstance(v, ir.Constant) and v.type == I1 and isinstance(v.constant, int)
    return bool(v.constant) if known else None


def _constant(kind: Any, value: int) -> ir.Constant:
    return ir.Constant(kind, _signed(value, kind.width))


def _signed(value: int, width: int) -> int:
    half = 1 << (width - 1)
    return (value + half) % (2 * half) - half
