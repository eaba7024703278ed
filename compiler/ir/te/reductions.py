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
    """The initial value of a reduction of a kind in `COMBINE`, or of a fold; 0 and 1 for bools."""
    match kind:
        case "sum" | "any" | "fold" | "settle":
            return 0
        case "prod" | "all":
            return 1
        case "max":
            return dtype.lowest
        case _:
            return dtype.highest


BLOCK = 512  # terms of a float sum added in order; the sums of blocks are added in the same way


def sums_in_blocks(kind: str, dtype: DType, extents: Iterable[Dim]) -> bool:
    """Whether a reduction is a possibly long sum of floats, whose error blocks reduce.

    The error of one chain of `n` terms grows with `n`, that of a blocked sum with the number and the length of blocks
    (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    return kind == "sum" and dtype.is_float and max_steps(extents) > BLOCK


def max_steps(extents: Iterable[Dim]) -> float:
    """An upper bound on the steps of nested loops; infinite if a size has none."""
    bounds = [upper(n) for n in extents]
    return 0 if 0 in bounds else inf if inf in bounds else prod(bounds)
