"""Integer overflow analysis of te expressions, by interval arithmetic.

te arithmetic wraps. Code generators without wrapping signed arithmetic treat operations that may overflow separately.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf

from occ.compiler.ir.dtype import BOOL
from occ.compiler.ir.te.expr import Binary, Call, Cast, Const, Expr, Index, Select, Size
from occ.compiler.ir.te.walks import walk

Range = tuple[float, float]  # minimum and maximum; ends are exact ints, or infinite for floats
_ALL: Range = (-inf, inf)
_POSITIONS: Range = (0, 2**31 - 1)  # of an axis, and sizes: the type in which native code counts them


def _corners(op: Callable[[float, float], float]) -> Callable[[Range, Range], Range]:
    """The range of a function that is monotone in each operand."""

    def of(a: Range, b: Range) -> Range:
        found = [op(x, y) for x, y in product(a, b)]
        return min(found), max(found)

    return of


def _remainder(a: Range, b: Range) -> Range:
    """The range of a remainder of floor division by a positive number."""
    return (0, b[1] - 1) if b[0] > 0 else _ALL


def _joined(a: Range, b: Range) -> Range:
    """Bits that both have, if one is not negative."""
    return (0, min(x[1] for x in (a, b) if x[0] >= 0)) if max(a[0], b[0]) >= 0 else _ALL


_BINARY: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners(lambda x, y: x * y),
    "min": _corners(min),
    "max": _corners(max),
    "mod": _remainder,
    "and": _joined,
}


class Ranges:
    """Ranges of the nodes of expressions, each computed once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Expr, Range]] = {}

    def overflows(self, e: Expr) -> bool:
        """Whether the exact result of an integer node may exceed its type."""
        return not _fits(_exact(e, self.of), e)

    def of(self, e: Expr) -> Range:
        """The minimum and maximum that a number can be."""
        if id(e) not in self._found:
            for n in walk(e):
                if id(n) not in self._found:
                    exact = _exact(n, lambda c: self._found[id(c)][1])
                    self._found[id(n)] = n, exact if _fits(exact, n) else _type(n)
        return self._found[id(e)][1]


def _type(e: Expr) -> Range:
    if e.dtype == BOOL:
        return 0, 1
    return (e.dtype.lowest, e.dtype.highest) if e.dtype.is_int else _ALL


def _fits(found: Range, e: Expr) -> bool:
    low, high = _type(e)
    return low <= found[0] and found[1] <= high


def _exact(e: Expr, of: Callable[[Expr], Range]) -> Range:
    """The range of a node before it wraps, from its children's ranges.

    Its type's range if nothing more is known.
    """
    match e:
        case Const(value=int() | float() as value) if value == value:
            return value, value
        case Index() | Size():
            return _POSITIONS
        case Binary() if e.op in _BINARY and (e.dtype.is_int or e.op in ("min", "max")):
            return _BINARY[e.op](of(e.lhs), of(e.rhs))
        case Call(fn="neg" | "abs") if e.dtype.is_int:
            low, high = of(e.args[0])
            return (-high, -low) if e.fn == "neg" else (min(0, low), max(-low, high))
        case Call(fn="nearest"):
            low, high = of(e.args[0])
            return low - 1, high + 1
        case Select():
            (a, b), (c, d) = of(e.then), of(e.other)
            return min(a, c), max(b, d)
        case Cast() if e.dtype.is_int and (e.arg.dtype.is_int or e.arg.dtype == BOOL):
            return of(e.arg)
        case Cast() if e.dtype.is_int and e.arg.dtype.is_float:  # NaN becomes 0
            low, high = of(e.arg)
            return min(low, 0), max(high, 0)
        case _:
            return _type(e)
