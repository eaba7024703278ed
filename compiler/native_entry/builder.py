"""A builder of LLVM IR that folds constants and uses results again, which llvmlite's does not.

What it folds is neither emitted nor parsed and optimised away, such as a loop over constants that runs once. Of the
instructions of kernels, most of which find addresses, it saves a fifth to two fifths.
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
    """llvmlite's builder with folding of known integers, conditions and selects.

    An instruction of a block is used again where its like would follow: index arithmetic, addresses, broadcasts.
    """

    def __init__(self, block: ir.Block | None = None) -> None:
        super().__init__(block)
        self._made: dict[tuple[Any, ...], Any] = {}

    def _once(self, op: str, *operands: Any, **how: Any) -> Any:
        key = (op, self.block, *how.values(), *map(_identity, operands))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = getattr(super(), op)(*operands, **how)
        return made

    def add(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return _constant(lhs.type, x + y)
        if x == 0 or y == 0:
            return rhs if x == 0 else lhs
        return self._once("add", lhs, rhs, flags=flags)

    def sub(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return _constant(lhs.type, x - y)
        return lhs if y == 0 else self._once("sub", lhs, rhs, flags=flags)

    def mul(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return _constant(lhs.type, x * y)
        if x in (0, 1) or y in (0, 1):
            return lhs if x == 0 or y == 1 else rhs
        return self._once("mul", lhs, rhs, flags=flags)

    def icmp_signed(self, cmpop: str, lhs: Any, rhs: Any, name: str = "") -> Any:
        x, y = number(lhs), number(rhs)
        if x is not None and y is not None:
            return I1(int(_HOLDS[cmpop](x, y)))
        return self._once("icmp_signed", cmpop, lhs, rhs)

    def and_(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        for known, other in ((lhs, rhs), (rhs, lhs)):
            if (holds := _truth(known)) is not None:
                return other if holds else known
        return self._once("and_", lhs, rhs, flags=flags)

    def or_(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        for known, other in ((lhs, rhs), (rhs, lhs)):
            if (holds := _truth(known)) is not None:
                return known if holds else other
        return super().or_(lhs, rhs, name, flags)

    def select(self, cond: Any, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        holds = _truth(cond)
        if holds is not None:
            return lhs if holds else rhs
        return self._once("select", cond, lhs, rhs, flags=flags)

    def sdiv(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        return self._once("sdiv", lhs, rhs, flags=flags)

    def srem(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        return self._once("srem", lhs, rhs, flags=flags)

    def xor(self, lhs: Any, rhs: Any, name: str = "", flags: tuple[str, ...] = ()) -> Any:
        return self._once("xor", lhs, rhs, flags=flags)

    def bitcast(self, value: Any, typ: Any, name: str = "") -> Any:
        return self._once("bitcast", value, typ)

    def gep(self, ptr: Any, indices: Any, inbounds: bool = False, name: str = "", source_etype: Any = None) -> Any:
        return self._once("gep", ptr, indices, inbounds=inbounds)

    def insert_element(self, vector: Any, value: Any, idx: Any, name: str = "") -> Any:
        return self._once("insert_element", vector, value, idx)

    def shuffle_vector(self, vector1: Any, vector2: Any, mask: Any, name: str = "") -> Any:
        return self._once("shuffle_vector", vector1, vector2, mask)


def _identity(v: Any) -> Any:
    """What equal operands have in common: constants are equal by value, all others if they are the same."""
    if isinstance(v, ir.Constant) and isinstance(v.type, ir.IntType):
        return v.type.width, v.constant
    if isinstance(v, ir.Value):
        return id(v)
    return tuple(map(_identity, v)) if isinstance(v, list) else str(v)


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
