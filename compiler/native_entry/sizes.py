"""Size arithmetic of a routine: constants stay ints, the rest is computed once at its head."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.types import I64
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dims import DimExpr

Size = Any  # int, or an i64 of LLVM


def i64(n: Size) -> Any:
    """A size as a value of LLVM."""
    return I64(n) if isinstance(n, int) else n


class Sizes:
    """Values of size expressions (`runtime.dims`), emitted through a builder at the head of its function."""

    def __init__(self, b: ir.IRBuilder, symbols: Mapping[str, Any]) -> None:
        self.b, self._symbols = b, symbols
        self._memo: dict[Any, Size] = {}
        self._values: dict[str, Size] = {}  # by the text of an expression: a plan has the same ones many times

    def go_on(self, b: ir.IRBuilder, found: Mapping[str, Any]) -> None:
        """Continue in another builder, reachable only from the current one; symbols have been defined."""
        self.b = b
        self._symbols = {**self._symbols, **found}
        self._values = {}

    def at(self, b: ir.IRBuilder, found: Mapping[str, Any]) -> Sizes:
        """The sizes at another place of the code, where additional symbols are known."""
        return Sizes(b, {**self._symbols, **found})

    def known(self, name: str, otherwise: int) -> Size:
        """The value of a symbol, if it is known here."""
        return self._symbols.get(name, otherwise)

    def of(self, e: DimExpr) -> Size:
        """The value of an expression."""
        if isinstance(e, int):
            return e
        if isinstance(e, str):
            return self._symbols[e]
        text = str(e)
        if text not in self._values:
            op, *args = e
            first, *rest = map(self.of, args)
            for other in rest:
                first = self._binary(op, first, other)
            self._values[text] = first
        return self._values[text]

    def times(self, a: Size, b: Size) -> Size:
        return self._binary("*", a, b)

    def plus(self, a: Size, b: Size) -> Size:
        return self._binary("+", a, b)

    def max(self, a: Size, b: Size) -> Size:
        return self._binary("max", a, b)

    def aligned(self, n: Size) -> Size:
        """Bytes rounded up to the alignment, at least one unit of it."""
        if isinstance(n, int):
            return -(-max(n, 1) // ALIGNMENT) * ALIGNMENT
        up = self.plus(self.max(n, 1), ALIGNMENT - 1)
        return self._once(("aligned", up), lambda: self.b.and_(up, I64(-ALIGNMENT)))

    def _binary(self, op: str, a: Size, b: Size) -> Size:
        if isinstance(a, int) and isinstance(b, int):
            return {"+": a + b, "*": a * b, "min": min(a, b), "max": max(a, b)}[op] if op != "//" else a // b
        if (op, a) in (("+", 0), ("*", 1)):
            return b
        if (op, b) in (("+", 0), ("*", 1), ("//", 1)):
            return a
        if op == "*" and 0 in (a, b):
            return 0
        return self._once((op, a, b), lambda: self._emit(op, i64(a), i64(b)))

    def _once(self, key: Any, make: Any) -> Any:
        """The result of `make`, emitted once per key; LLVM values are compared by identity."""
        known = tuple((id(k),) if isinstance(k, ir.Value) else k for k in key)
        if known not in self._memo:
            self._memo[known] = make()
        return self._memo[known]

    def _emit(self, op: str, a: Any, b: Any) -> Any:
        match op:
            case "+":
                return self.b.add(a, b)
            case "*":
                return self.b.mul(a, b)
            case "//":
                return self._floordiv(a, b)
            case _:
                return self.b.select(self.b.icmp_signed("<" if op == "min" else ">", a, b), a, b)

    def _floordiv(self, a: Any, b: Any) -> Any:
        """Division that does not trap: processors end a program that divides by zero, or the lowest number by -1.

        The size that such a division would yield is never used, and is arbitrary.
        """
        zero, opposite = I64(0), None
        if not isinstance(b, ir.Constant) or b.constant % 2**64 in (0, 2**64 - 1):
            opposite = self.b.icmp_signed("==", b, I64(-1))
            b = self.b.select(self.b.or_(opposite, self.b.icmp_signed("==", b, zero)), I64(1), b)
        quotient = self.b.sdiv(a, b)
        rest = self.b.sub(a, self.b.mul(quotient, b))
        unlike = self.b.icmp_signed("<", self.b.xor(rest, b), zero)
        inexact = self.b.and_(self.b.icmp_signed("!=", rest, zero), unlike)
        floor = self.b.sub(quotient, self.b.zext(inexact, I64))
        return floor if opposite is None else self.b.select(opposite, self.b.sub(zero, floor), floor)
