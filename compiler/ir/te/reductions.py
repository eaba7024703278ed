"""What reductions start from and combine with, by their kind."""

from __future__ import annotations

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
