"""Tile sizes, tails and parallel loops: choices that all schedule rules share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from occ.compiler.ir.dim import Dim, is_multiple
from occ.compiler.ir.nominal import nominal
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Axis
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule

Directives = list[Directive]


def tile_size(extent: Dim, most: int, wanted: int = 0) -> int:
    """Rows of a register tile, up to `most`; for a symbolic extent a divisor, if any.

    What a tile computes beyond the extent is wasted, and every tile loads its weights again, which costs about as much
    as a row. A divisor needs no tail. What a user wants counts before that.
    """
    if wanted:
        return min(wanted, extent) if isinstance(extent, int) else wanted
    if not isinstance(extent, int):
        return next((t for t in range(most, most // 2, -1) if is_multiple(extent, t)), most)
    if extent <= most:
        return extent
    return min(range(most, most // 2, -1), key=lambda t: (-(-extent // t) * (t + 1), -t))


def tasks(extent: Dim, step: int = 1) -> int:
    """Iterations of a loop, for `parallel`: 0 where the extent is symbolic."""
    return -(-extent // step) if isinstance(extent, int) else 0


def typical_tasks(axes: Sequence[Axis]) -> list[int]:
    """Iterations of loops over axes, for `parallel`.

    Of symbolic extents the outermost, a batch as a rule, may be 1; the others count as what they typically are: a task
    for each pixel of 24 channels costs three times what the pixels do.
    """
    return [nominal(a.extent) if k else tasks(a.extent) for k, a in enumerate(axes)]


def row_tail(extent: Dim, rows: int) -> str:
    """The tail of a split of an extent: none where it is a multiple, even a symbolic one."""
    if is_multiple(extent, rows):
        return "Auto" if isinstance(extent, int) else "RoundUp"
    return "ShiftInwards" if isinstance(extent, int) else "GuardWithIf"


LONG_SUM_VECTORS = 4  # that a long sum takes at a time, so that none waits for the one before
INNERMOST = Loop("_")  # stands for loops that are never run in parallel


def parallel(out: StageSchedule, loops: Sequence[Loop], counts: Sequence[int], cost: int) -> Mapping[Loop, Loop]:
    """Run the outermost loop in parallel, fused with the next one while it is short.

    Args:
        out: the schedule of the stage that has the loops.
        loops: the outermost first. The last one stays: reductions are computed in it.
        counts: iterations of each, see `tasks`.
        cost: operations of all.

    Returns:
        The loop that each of the fused ones became a part of.
    """
    if cost < SERIAL or not loops:
        return {}
    # A symbolic extent, a batch as a rule, may be 1: loops are fused on without counting on it.
    loop, total, k = loops[0], max(counts[0], 1), 0
    while total < 8 and k + 1 < len(loops) - 1:  # the innermost loop stays: reductions are computed in it
        k += 1
        loop, total = out.fuse(loops[k], loop), total * max(counts[k], 1)
    if total > 1 or 0 in counts[: k + 1]:
        out.parallel(loop)
    return dict.fromkeys(loops[: k + 1], loop) if k else {}
