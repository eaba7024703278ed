"""Tile sizes, tails and parallel loops: choices that all schedule rules share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from occ.compiler.ir.dim import Dim, ceildiv, factor_of, is_multiple
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Axis
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.typical_sizes import nominal

Directives = list[Directive]


def tile_size(extent: Dim, most: int, wanted: int = 0) -> int:
    """Rows of a register tile, up to `most`; for a symbolic extent a divisor, if there is one.

    A divisor needs no tail. A user's hint takes precedence.
    """
    if wanted:
        return min(wanted, extent) if isinstance(extent, int) else wanted
    if not isinstance(extent, int):
        return next((t for t in range(most, most // 2, -1) if is_multiple(extent, t)), most)
    if extent <= most:
        return extent
    return min(range(most, most // 2, -1), key=lambda t: (tile_cost(extent, t), -t))


def tile_cost(extent: Dim, rows: int) -> Dim:
    """What register tiles of `rows` take for an extent, counted in rows.

    Results past the extent are wasted, and every tile reloads its weights, which costs about as much as a row.
    """
    return ceildiv(extent, rows) * (rows + 1)


def tasks(extent: Dim, step: int = 1) -> int:
    """Iterations of a loop, for `parallel`: 0 if the extent is symbolic and may be one.

    An extent such as `64*N` counts with 64, so that no inner loop is fused with it: every task would divide to find its
    place. Pad of 64 planes of 56x56, Sapphire Rapids: by reflection 167 --> 57 us, with zeros 93 --> 51 us.
    """
    if isinstance(extent, int):
        return -(-extent // step)
    least = -(-factor_of(extent) // step)
    return least if least > 1 else 0


def typical_tasks(axes: Sequence[Axis]) -> list[int]:
    """Iterations of loops over axes, for `parallel`.

    Among symbolic extents, the outermost (usually a batch) may be 1; the others count with a typical value: a task per
    pixel of 24 channels costs three times as much as the pixels themselves.
    """
    return [nominal(a.extent) if k else tasks(a.extent) for k, a in enumerate(axes)]


def row_tail(extent: Dim, rows: int) -> str:
    """The tail strategy for splitting an extent: none if it is a multiple, even a symbolic one."""
    if is_multiple(extent, rows):
        return "Auto" if isinstance(extent, int) else "RoundUp"
    return "ShiftInwards" if isinstance(extent, int) else "GuardWithIf"


LONG_SUM_VECTORS = 4  # independent accumulators of a long sum, so that none waits for the previous one
TASKS = 8  # that keep all threads busy
INNERMOST = Loop("_")  # stands for loops that never run in parallel


def parallel(out: StageSchedule, loops: Sequence[Loop], counts: Sequence[int], cost: int) -> Mapping[Loop, Loop]:
    """Run the outermost loop in parallel, fused with inner ones while it is short.

    Args:
        out: the schedule of the stage that has the loops.
        loops: outermost first. The last one is kept: reductions are computed in it.
        counts: iterations of each, see `tasks`.
        cost: total number of operations.

    Returns:
        The loop that each of the fused ones became part of.
    """
    if cost < SERIAL or not loops:
        return {}
    # A symbolic extent, usually a batch, may be 1: it does not count, and fusing continues.
    loop, total, k = loops[0], max(counts[0], 1), 0
    while total < TASKS and k + 1 < len(loops) - 1:  # the innermost loop is kept: reductions are computed in it
        k += 1
        loop, total = out.fuse(loops[k], loop), total * max(counts[k], 1)
    if total > 1 or 0 in counts[: k + 1]:
        out.parallel(loop)
    return dict.fromkeys(loops[: k + 1], loop) if k else {}
