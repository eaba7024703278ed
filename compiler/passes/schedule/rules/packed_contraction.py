"""Products of panels: sums with lanes along an axis of one operand, in tiles that stay in registers.

Measurements: Zen 4, one core, 117 GFLOP/s of fp32 multiply-add.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I16
from occ.compiler.ir.shape import nominal, nominal_count
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Expr, Index
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.roles import CONV
from occ.compiler.ir.te.schedule import Scheduler
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import Directives, parallel, row_tail, tasks, tile_size
from occ.compiler.passes.schedule.prefetch import fetch_ahead
from occ.compiler.passes.schedule.rules.row_blocks import row_blocks
from occ.compiler.passes.schedule.stage_facts import (
    FEW_ROWS,
    Contraction,
    ScheduleFacts,
    contraction,
    element_bits,
    extent_of,
    facts_of,
    same_axes,
    work,
)
from occ.compiler.targets.machine import Machine

_TWOS = 2  # times that products of twos of i16 are unrolled: LLVM adds up the sums of more steps in another order, and spills
_ROWS = 4  # of a convolution with one filter: with more, what they share does not stay in registers
_SMALL = 100_000  # multiply-adds that take less than 2 us: a second thread would not have begun


def packed_contraction(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Matrix products and convolutions: a tile of rows by vectors stays in registers, the left operand is broadcast.

    Lanes run along a contiguous axis of the right operand. 97-100 % of peak on packed panels; a tile wants about 14 accumulators, and 28 spill.
    """
    facts = facts_of(f, machine)
    return facts.scheduled(product_loops(facts.root, facts))


def product_loops(s: AnyStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `packed_contraction` for a stage."""
    if not isinstance(s, TeStage):
        return Declined("it writes at computed positions")
    sums = facts.reductions(s)
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    if found is None or not same_axes(s, sums[0]):
        return Declined("it has no sum of products, of its own shape, along a contiguous axis of one operand alone")
    acc = sums[0]
    if facts.few:
        found = found.with_rows_as_loop()
    one_filter = _down_rows(acc, found)
    found = one_filter or found
    lanes = facts.machine.lanes(max(element_bits(acc), 32))
    here = dict(zip((a.name for a in acc.axes), (a.name for a in s.axes), strict=True))
    width = found.panel or _width(extent_of(acc, found.lanes), lanes)
    if width % lanes:
        lanes = width if width < lanes else lanes // 2
    if width == 0 or width % lanes:
        return Declined(
            "the contiguous axis of the right operand is of symbolic length, or shorter than a quarter of a vector"
        )
    wanted = facts.hint.vectors * lanes
    if wanted and (width % wanted == 0 or (not found.panel and nominal(extent_of(acc, found.lanes)) >= wanted)):
        width = wanted
    most = (
        max(facts.machine.accumulators * lanes // width, 1) if width <= 2 * lanes else facts.machine.accumulators // 2
    )
    most = min(most, _ROWS) if one_filter else most
    rows = tile_size(extent_of(acc, found.tile), most, facts.machine.rows) if found.tile else 1
    return _tile(s, acc, found, here, width, lanes, rows, facts)


def _down_rows(acc: TeStage, c: Contraction) -> Contraction | None:
    """The tile of a convolution with one filter, whose vectors run along rows: the same columns of a few rows, which share what
    they read where the innermost loop goes down the window.

    Zen 5, one thread, 8 channels of 5x5 on 172x264: 338 --> 142 us.
    """
    if acc.role != CONV or c.tile or c.panel or not c.batch or not isinstance(extent_of(acc, c.batch[-1]), int):
        return None
    row = c.batch[-1]
    taps = [n for i in c.b.index if row in (names := _names(i)) for n in c.order if n in names]
    if not taps:
        return None
    order = (*taps, *(n for n in c.order if n not in taps))
    return replace(c, tile=row, batch=c.batch[:-1], order=order)


def _names(e: Expr) -> set[str]:
    return {n.name for n in walk(e) if isinstance(n, Index)}


def _width(extent: Dim, lanes: int) -> int:
    """Width of a tile where `B` is not packed: whole vectors, and nothing read past the end of a row."""
    if not isinstance(extent, int):
        return 0
    for width in (2 * lanes, lanes, lanes // 2, lanes // 4):
        if width and extent >= width:
            return width
    return 0


def _unrolled(extent: Dim, wanted: int) -> int:
    """How often the innermost reduced axis is unrolled: as is wanted, whole, or by a divisor, since a test for the end in
    the innermost loop costs more than unrolling gains.
    """
    if not isinstance(extent, int):
        return 1
    if wanted and extent % wanted == 0:
        return wanted
    return extent if extent <= 8 else max(k for k in range(1, 9) if extent % k == 0)


def _tile(
    s: TeStage,
    acc: TeStage,
    c: Contraction,
    here: dict[str, str],
    width: int,
    lanes: int,
    rows: int,
    facts: ScheduleFacts,
) -> Directives:
    n, m = here[c.lanes], here.get(c.tile, "")
    size = extent_of(acc, c.lanes)
    packed_tail = "GuardWithIf" if not isinstance(size, int) or size % width else "Auto"
    out = Scheduler(s.name)
    out.split(n, f"{n}o", f"{n}i", width, packed_tail if c.panel else "ShiftInwards")
    out.split(f"{n}i", f"{n}u", f"{n}v", lanes)
    inner = [f"{n}v", f"{n}u"]
    loops = [*(here[a] for a in c.batch), f"{n}o", *(here[a] for a in c.outer)]
    counts = [_count(s, c, a, here, width) for a in loops]
    tail = row_tail(extent_of(acc, c.tile), rows) if m else ""
    if m:
        out.split(m, f"{m}o", f"{m}i", rows, tail)
        inner.append(f"{m}i")
        blocks = None if c.outer else row_blocks(acc, c, width, rows, prod(max(k, 1) for k in counts), facts.hint)
        if blocks is not None:
            out.split(f"{m}o", f"{m}b", f"{m}o", blocks.tiles, "GuardWithIf")
            at = len(c.batch) + (not blocks.outermost)
            loops.insert(at, f"{m}b")
            counts.insert(at, blocks.count)
        loops.append(f"{m}o")
        counts.append(_count(s, c, m, here, rows))
    out.reorder(*inner, *reversed(loops)).vectorize(f"{n}v").unroll(f"{n}u")
    if m:
        out.unroll(f"{m}i")
    level = loops[-1]
    parallel(out, loops, counts, _cost(s, acc, c, facts))
    start = Scheduler(acc.name)
    a_n, a_m = c.lanes, c.tile
    start.compute_at(s.name, level)
    others = [a.name for a in acc.axes if a.name != a_n]
    if others:
        start.reorder_storage(a_n, *reversed(others))
    if c.panel and packed_tail != "Auto":
        start.align_bounds(a_n, width)
    start.bound_extent(a_n, width)
    if a_m and tail == "GuardWithIf":
        start.bound_extent(a_m, rows)
    start.split(a_n, f"{a_n}u", f"{a_n}v", lanes).reorder(f"{a_n}v", f"{a_n}u", *reversed(others))
    start.vectorize(f"{a_n}v").unroll(f"{a_n}u")
    if a_m:
        start.unroll(a_m)
    update = _update(acc, c, lanes, [a for a in others if a != a_m], facts)
    streams = c.panel and c.tile
    fetch = fetch_ahead(acc, c.b.source, len(c.b.index) + bool(c.dot), facts) if streams else []
    return [*out.directives, *start.directives, *update, *fetch]


def _update(acc: TeStage, c: Contraction, lanes: int, rest: list[str], facts: ScheduleFacts) -> Directives:
    """The loops in which a tile is summed up; `rest` are the axes besides its rows and vectors."""
    n = c.lanes
    update = Scheduler(acc.name, update=True)
    update.split(n, f"{n}w", f"{n}x", lanes)
    # The rows inside of the vectors: with the vectors inside, all broadcast rows would be alive at once.
    tile, dot = ([a] if a else [] for a in (c.tile, c.dot))
    update.reorder(*dot, f"{n}x", f"{n}w", *tile, *c.order, *reversed(rest))
    if dot:
        update.atomic().vectorize(c.dot)
    update.vectorize(f"{n}x").unroll(f"{n}w")
    if c.tile:
        update.unroll(c.tile)
    wanted = facts.hint.unroll or (_TWOS if c.dot and c.a.dtype == I16 else 0)
    if c.order and (times := _unrolled(extent_of(acc, c.order[0]), wanted)) > 1:
        update.unroll(c.order[0], times)
    return update.directives


def _cost(s: TeStage, acc: TeStage, c: Contraction, facts: ScheduleFacts) -> int:
    """Operations, for `parallel`: vectors are through with a small product before a second thread has begun. How many rows a symbolic
    extent has, the pixels of images most of all, a run knows: the native entry keeps those of few operations on its thread.
    """
    if facts.hint.parallel is not None:
        return work(s, facts)
    if not facts.few and not all(isinstance(n, int) for n in acc.shape):
        return max(work(s, facts), SERIAL)
    products = nominal_count(acc.shape) * nominal_count(a.extent for a in reduce_axes(acc.expr))
    if facts.few:
        products = products * FEW_ROWS // nominal(extent_of(acc, c.outer[-1]))
    return 0 if products < _SMALL else work(s, facts)


def _count(s: TeStage, c: Contraction, loop: str, here: dict[str, str], width: int) -> int:
    """Iterations of a loop over an axis of the result, whose lanes and rows are split by `width`; 0 if not known."""
    axis = here[c.lanes] if loop == f"{here[c.lanes]}o" else loop
    split = width if axis in (here[c.lanes], here.get(c.tile, "")) else 1
    return tasks(extent_of(s, axis), split)
