"""Typical sizes of symbolic dims, for cost estimates."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from occ.compiler.ir.dim import (
    Dim,
    Symbol,
    evaluate,
    symbols,
)

NOMINAL = 64  # a size that symbols typically have


def nominal(d: Dim) -> int:
    """A size for comparisons, at least 1: symbolic dims at `NOMINAL`, or at the bound that is nearest to it.

    Where an extent is less than 1 then, such as that of a window of 512 elements, dims are as much larger as makes it
    1.
    """
    if isinstance(d, int):
        return d
    for scale in (1, 2, 4, 8, 16, 32, 64):
        size = evaluate(d, {name: _within(s, NOMINAL * scale) for name, s in symbols(d).items()})
        if size >= 1:
            return size
    return 1


def _within(s: Symbol, size: int) -> int:
    """The size nearest to one that a symbol may have."""
    return max(s.lo, min(size, s.hi) if isinstance(s.hi, int) else size)


def nominal_count(dims: Iterable[Dim]) -> int:
    """The nominal elements of a shape.

    Extents are counted one by one: two that are less than 0 would have a product that is not.
    """
    return prod(map(nominal, dims))
