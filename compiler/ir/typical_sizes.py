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

NOMINAL = 64  # assumed value of a symbol


def nominal(d: Dim) -> int:
    """A size for comparisons, at least 1: symbolic dims count as `NOMINAL`, or the nearest value within their bounds.

    If an extent would then be less than 1, such as that of a window of 512 elements, dims are scaled up until it is 1.
    """
    if isinstance(d, int):
        return d
    for scale in (1, 2, 4, 8, 16, 32, 64):
        size = evaluate(d, {name: _within(s, NOMINAL * scale) for name, s in symbols(d).items()})
        if size >= 1:
            return size
    return 1


def _within(s: Symbol, size: int) -> int:
    """The symbol's possible value nearest to a given size."""
    return max(s.lo, min(size, s.hi) if isinstance(s.hi, int) else size)


def nominal_count(dims: Iterable[Dim]) -> int:
    """The nominal elements of a shape.

    Extents are bounded one by one: the product of two negative ones would be positive.
    """
    return prod(map(nominal, dims))
