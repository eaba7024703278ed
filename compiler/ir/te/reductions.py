"""Initial values and combining operations of reductions."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod

from occ.compiler.ir.dim import Dim, upper
from occ.compiler.ir.dtype import DType

COMBINE = {
    "sum": "add",
    "prod": "mul",
    "max": "max",
    "min": "min",
    "any": "or",
    "all": "and",
}  # kind -> binary operation


def neutral(kind: str, dtype: DType) -> float | int:
    """The value that a reduction of a kind of `COMBINE`, or a fold, starts from; 0 and 1 for bools."""
    match kind:
        case "sum" | "any" | "fold" | "settle":
            return 0
        case "prod" | "all":
            return 1
        case "max":
            return dtype.lowest
        case _:
            return dtype.highest


BLOCK = 512  # terms of a sum of floats that are added in order; the sums of blocks are added like that again


def sums_in_blocks(kind: str, dtype: DType, extents: Iterable[Dim]) -> bool:
    """Whether a reduction is a sum of floats that may be long, so that blocks reduce its error.

    The error of one chain of `n` terms grows with `n`, that of a sum of blocks with the number of blocks and the length
    of one (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    return kind == "sum" and dtype.is_float and max_steps(extents) > BLOCK


def max_steps(extents: Iterable[Dim]) -> float:
    """An upper bound of the steps of nested loops; infinite where a size has none."""
    bounds = [upper(n) for n in extents]
    return 0 if 0 in bounds else inf if inf in bounds else prod(bounds)
