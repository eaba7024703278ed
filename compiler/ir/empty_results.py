"""Shapes of the results that Loop and Scan stack, where they have no iteration."""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.ir.op import Op

# An attribute: the extents of the slices of each stacked result, as a file declares them; 0 for those that it does not.
DECLARED = "declared_extents"


def empty_shapes(op: Op, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """The declared extents of results without iterations, 0 along the axis of iterations and where none is declared.

    Args:
        op: a Loop or a Scan, or what it became.
        ranks: of the stacked results.
    """
    declared = op.attrs.get(DECLARED) or ()
    declared = declared if len(declared) == len(ranks) else ((),) * len(ranks)
    axes = op.attrs.get("scan_output_axes") or (0,) * len(ranks)
    return [_stacked(given, axis, rank) for given, axis, rank in zip(declared, axes, ranks, strict=True)]


def _stacked(given: Sequence[int], axis: int, rank: int) -> tuple[int, ...]:
    if len(given) != rank - 1:
        return (0,) * rank
    made = list(given)
    made.insert(axis % rank, 0)
    return tuple(made)
