"""Schedule rules for CPUs, in order; the first that applies to a stage schedules it, and the last always applies.

A rule takes a stage that is computed into memory, and returns the directives for it and for the reductions that are
computed inside of its loops. Measurements: Zen 4, one core, 117 GFLOP/s of fp32 multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.shape import nominal
from occ.compiler.ir.te.expr import Cast, Const, Index, Load, Reduce, Select
from occ.compiler.ir.te.function import AnyStage, Scatter, TeStage, loads, reduce_axes
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import WINDOW_ROWS
from occ.compiler.ir.te.schedule import Scheduler
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.schedule.blocks import row_blocks
from occ.compiler.passes.schedule.depthwise import depthwise_planes
from occ.compiler.passes.schedule.elementwise import elementwise, vectorise
from occ.compiler.passes.schedule.facts import (
    FEW,
    Contraction,
    ScheduleFacts,
    contiguous,
    contraction,
    element_bits,
    extent_of,
    work,
)
from occ.compiler.passes.schedule.fetch import fetch_ahead
from occ.compiler.passes.schedule.folds import folds, is_fold
from occ.compiler.passes.schedule.in_vectors import in_vectors
from occ.compiler.passes.schedule.loops import SERIAL, Directives, parallel, row_tail, tasks, tile_size
from occ.compiler.passes.schedule.planes import planes
from occ.compiler.passes.schedule.resample import resample
from occ.compiler.passes.schedule.transposed import transposed

_SMALL = 100_000  # multiply-adds that take less than 2 us: a second thread would not have begun

ScheduleRule = Callable[[AnyStage, ScheduleFacts], Directives | None]


def packed_contraction(s: AnyStage, facts: ScheduleFacts) -> Directives | None:
    """Sums of products with lanes along a contiguous axis of `B`: a tile of rows by vectors stays in registers, `A` is
    broadcast. 97-100 % of peak on packed panels; a tile wants about 14 accumulators, and 28 spill.
    """
    if not isinstance(s, TeStage):
        return None
    sums = facts.reductions(s)
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    if found is None or not _same_axes(s, sums[0]):
        return None
    acc = sums[0]
    if facts.few:
        found = found.beside_rows()
    lanes = facts.machine.lanes(max(element_bits(acc), 32))
    here = dict(zip((a.name for a in acc.axes), (a.name for a in s.axes), strict=True))
    width = found.panel or _width(extent_of(acc, found.lanes), lanes)
    if width % lanes:
        lanes = width if width < lanes else lanes // 2
    if width == 0 or width % lanes:
        return None
    if wanted := facts.hint.vectors * lanes:
        width = (
            wanted
            if width % wanted == 0 or (not found.panel and nominal(extent_of(acc, found.lanes)) >= wanted)
            else width
        )
    most = (
        max(facts.machine.accumulators * lanes // width, 1) if width <= 2 * lanes else facts.machine.accumulators // 2
    )
    rows = tile_size(extent_of(acc, found.tile), most, facts.machine.rows) if found.tile else 1
    return _tile(s, acc, found, here, width, lanes, rows, facts)


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


def _same_axes(s: TeStage, acc: TeStage) -> bool:
    return len(s.axes) == len(acc.axes) and all(a.extent == b.extent for a, b in zip(s.axes, acc.axes, strict=True))


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
    if c.order and (times := _unrolled(extent_of(acc, c.order[0]), facts.hint.unroll)) > 1:
        update.unroll(c.order[0], times)
    return update.directives


def _cost(s: TeStage, acc: TeStage, c: Contraction, facts: ScheduleFacts) -> int:
    """Operations, for `parallel`: vectors are through with a small product before a second thread has begun."""
    products = nominal(product(acc.shape)) * nominal(product(a.extent for a in reduce_axes(acc.expr)))
    if facts.few:
        products = products * FEW // nominal(extent_of(acc, c.outer[-1]))
    return 0 if products < _SMALL and facts.hint.parallel is None else work(s, facts)


def _count(s: TeStage, c: Contraction, loop: str, here: dict[str, str], width: int) -> int:
    """Iterations of a loop over an axis of the result, whose lanes and rows are split by `width`; 0 if not known."""
    axis = here[c.lanes] if loop == f"{here[c.lanes]}o" else loop
    split = width if axis in (here[c.lanes], here.get(c.tile, "")) else 1
    return tasks(extent_of(s, axis), split)


def window(s: AnyStage, facts: ScheduleFacts) -> Directives | None:
    """Other reductions with lanes along the innermost axis of the result: depthwise convolutions, pools, column sums.

    A few neighbours along the axis before share the taps that they load. Whether those lie beyond a border is tested once
    for all of them: depthwise convolutions are 1.4 to 2.4 times as fast as with a padded copy. Where there are no
    neighbours, or vectors lie across the border, it is added a few rows at a time, while they are in cache.
    """
    if not isinstance(s, TeStage) or not s.axes:
        return None
    sums = facts.reductions(s)
    if not sums or any(not _same_axes(s, r) for r in sums):
        return None
    last = s.axes[-1]
    lanes = facts.machine.lanes(max(element_bits(r) for r in sums))
    if isinstance(last.extent, int) and last.extent < max(lanes // 4, 2):
        return None
    if not all(contiguous(r, r.axes[-1].name, facts) for r in sums):
        return None
    lanes = facts.machine.lanes(max(element_bits(r) for r in sums), last.extent)
    out = Scheduler(s.name)
    names = [a.name for a in s.axes]
    out.split(last.name, f"{last.name}o", f"{last.name}i", lanes, row_tail(last.extent, lanes))
    out.vectorize(f"{last.name}i")
    taps = [a.extent for r in sums for a in reduce_axes(r.expr)]
    small = len(sums) == 1 and all(isinstance(n, int) and n <= 7 for n in taps)
    tile, block = (
        _neighbours(s, facts) if small and len(names) > 1 else 1,
        (facts.hint.block or 4) if small and len(names) > 2 else 1,
    )
    inner, outer = [f"{last.name}i"], list(names[:-1])
    if tile > 1:
        x = outer[-1]
        tail = "ShiftInwards" if facts.wide else row_tail(s.axes[-2].extent, tile)
        out.split(x, f"{x}o", f"{x}i", tile, tail).unroll(f"{x}i")
        inner, outer = [*inner, f"{x}i"], [*outer[:-1], f"{x}o"]
    borders = [p for p in facts.roots if p is not s and _is_border(p, s, sums, facts)] if block > 1 else []
    if borders:
        y, height = outer[-2], s.axes[-3].extent
        block = min(block, height) if isinstance(height, int) else block
        out.split(y, f"{y}o", f"{y}i", block, row_tail(height, block))
        outer = [*outer[:-2], f"{y}o", f"{last.name}o", f"{y}i", outer[-1]]
    else:
        outer = [*outer, f"{last.name}o"] if tile == 1 else [*outer[:-1], f"{last.name}o", outer[-1]]
    out.reorder(*inner, *reversed(outer))
    counts = [tasks(a.extent) for a in s.axes[: len(outer) - 2]]
    fused = parallel(out, outer, [*counts, *[1] * (len(outer) - len(counts))], work(s, facts))
    made = list(out.directives)
    for p in borders:
        if tile > 1 and _is_outside_vectors(p, facts):
            made += Scheduler(p.name).compute_inline().directives
        else:
            made += _border(p, s.name, fused.get(outer[-3], outer[-3]), facts)
    for r in sums:
        made += _taps(r, s.name, outer[-1], lanes, tile, small=small)
    return made


def _neighbours(s: TeStage, facts: ScheduleFacts) -> int:
    """How many elements along the axis before the last are computed at once."""
    extent = s.axes[-2].extent
    most = max(facts.machine.registers // 4, 2)
    return tile_size(extent, most, facts.machine.rows) if isinstance(extent, int) or facts.wide else 1


def _is_border(p: AnyStage, s: TeStage, sums: list[TeStage], facts: ScheduleFacts) -> bool:
    """Whether a stage in memory only prepares the input of a window: same axes, read by its reductions alone."""
    readers = [r for r in facts.f.stages if any(ld.source == p.name for e in r.exprs for ld in loads(e))]
    results = {r.name for r in facts.f.results}
    plain = isinstance(p, TeStage) and not any(isinstance(n, Reduce) for n in walk(p.expr))
    return plain and p.name not in results and len(p.axes) == len(s.axes) and all(r in sums for r in readers)


def _is_outside_vectors(p: AnyStage, facts: ScheduleFacts) -> bool:
    """Whether a border tests nothing along the last axis, and only passes on what it reads, widened for all neighbours or not."""
    e = p.expr if isinstance(p, TeStage) else None
    e = e.arg if isinstance(e, Cast) and e.dtype == F32 and facts.machine.widens_f16 else e
    if not isinstance(p, TeStage) or not isinstance(e, Select) or not isinstance(e.then, Load):
        return False
    tested = {n.name for n in walk(e.cond) if isinstance(n, Index)}
    return isinstance(e.other, Const) and p.axes[-1].name not in tested and not [*loads(e.cond)]


def _border(p: AnyStage, root: str, level: str, facts: ScheduleFacts) -> Directives:
    made = Scheduler(p.name).compute_at(root, level)
    last = p.axes[-1]
    lanes = facts.machine.lanes(element_bits(p), last.extent)
    if lanes > 1:
        made.vectorize(last.name, lanes, row_tail(last.extent, lanes))
    return made.directives


def _taps(r: TeStage, root: str, level: str, lanes: int, tile: int, *, small: bool) -> Directives:
    """A reduction in registers: vectors along the last axis, neighbours and the taps of a small window unrolled."""
    axis = r.axes[-1].name
    start = Scheduler(r.name).compute_at(root, level).vectorize(axis, lanes)
    reduced = [a.name for a in reversed(reduce_axes(r.expr))]
    update = Scheduler(r.name, update=True)
    others = [a.name for a in r.axes[:-1]]
    near = [others.pop()] if tile > 1 else []
    update.reorder(axis, *near, *reduced, *reversed(others)).vectorize(axis, lanes)
    for name in near:
        start.unroll(name)
        update.unroll(name)
    for a in reversed(reduce_axes(r.expr)):
        if small or (isinstance(a.extent, int) and a.extent <= 7):
            update.unroll(a.name)
    return [*start.directives, *update.directives]


def rows(s: AnyStage, facts: ScheduleFacts) -> Directives | None:
    """Several stages over the same rows (softmax, layer normalisation): all are computed row by row, in cache."""
    if not isinstance(s, TeStage) or s is not facts.roots[-1] or len(facts.f.results) != 1:
        return None
    others = [
        r
        for r in facts.f.stages
        if r is not s and (r.name in facts.root_names or isinstance(getattr(r, "expr", None), Reduce))
    ]
    same = all(isinstance(r, TeStage) and _same_axes(s, r) for r in others)
    if same and (len(others) < 2 or window(s, facts) is not None):
        return None  # reductions and what is done with them: the rules for those do better
    if _is_product(others, facts) or any(isinstance(r, TeStage) and r.role == WINDOW_ROWS for r in others):
        return None
    if any(is_fold(r) for r in others):
        return None  # they are computed in the loops of an update, and the loops that are fused here are not its
    depth = _shared_rows(s, others, facts)
    if not others or depth == 0 or len(s.axes) - depth > 1 or any(isinstance(r, Scatter) for r in others):
        return None
    out = Scheduler(s.name)
    vectorise(out, s, facts, outer=depth)
    loops = [a.name for a in s.axes[:depth]]
    level = loops[-1]
    if work(s, facts) >= SERIAL or sum(work(r, facts) for r in others) >= SERIAL:
        fused = parallel(out, [*loops, "_"], [tasks(a.extent) for a in s.axes[:depth]] + [1], SERIAL)
        level = fused.get(level, level)
    made = list(out.directives)
    for r in others:
        assert isinstance(r, TeStage)
        made += _inside(r, s.name, level, facts, depth)
    return made


def _is_product(others: list[AnyStage], facts: ScheduleFacts) -> bool:
    """Whether the stages are a contraction and what it broadcasts, which is computed into memory before it."""
    sums = [r for r in others if isinstance(r, TeStage) and isinstance(r.expr, Reduce)]
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    return found is not None and all(r is sums[0] or r.name == found.a.source for r in others)


def _shared_rows(s: TeStage, others: list[AnyStage], facts: ScheduleFacts) -> int:
    """How many leading axes all stages have in common and read each other at."""
    depth = min((len(r.axes) for r in [s, *others]), default=0)
    depth = min(depth, len(s.axes))
    names = {r.name for r in others}
    stages = {x.name: x for r in [s, *others] for x in [r, *facts.inlined_into(r)]}.values()
    for k in range(depth):
        if any(r.axes[k].extent != s.axes[k].extent for r in others):
            return k
        for r in stages:
            for e in r.exprs:
                for n in walk(e):
                    if isinstance(n, Load) and (n.source in names or n.source in {x.name for x in stages}):
                        here = r.axes[k].name if k < len(r.axes) else ""
                        index = n.index[k] if k < len(n.index) else None
                        if getattr(index, "name", None) != here:
                            return k
    return depth


def _inside(r: TeStage, root: str, level: str, facts: ScheduleFacts, depth: int) -> Directives:
    """A stage computed in a row loop of another one, vectorised along its own last axis."""
    start = Scheduler(r.name).compute_at(root, level)
    update = Scheduler(r.name, update=True)
    if len(r.axes) > depth and nominal(r.axes[-1].extent) >= 4:
        last = r.axes[-1]
        width = facts.machine.lanes(element_bits(r), last.extent)
        start.vectorize(last.name, width)
        if isinstance(r.expr, Reduce) and r.expr.kind in COMBINE:
            update.reorder(last.name, *(a.name for a in reversed(reduce_axes(r.expr))))
            update.vectorize(last.name, width)
            first = reduce_axes(r.expr)[-1]
            if nominal(first.extent) >= 4:
                update.unroll(first.name, 4)
    elif len(r.axes) == depth and isinstance(r.expr, Reduce) and r.dtype.is_int and r.expr.kind in COMBINE:
        (*_, last) = r.expr.axes
        n, most = last.extent, facts.machine.lanes(element_bits(r))
        if isinstance(n, int) and n <= most and n & (n - 1) == 0:
            update.atomic().vectorize(last.name)  # integers are combined in any order
    return [*start.directives, *update.directives]


def fallback(s: AnyStage, facts: ScheduleFacts) -> Directives | None:
    """Always legal: loops in order, reductions computed where they are read, the outermost loop in parallel."""
    out = Scheduler(s.name)
    made: Directives = []
    level = s.axes[-1].name if s.axes else ""
    for r in facts.reductions(s):
        made += _inside(r, s.name, level, facts, len(s.axes)) if level else Scheduler(r.name).compute_root().directives
    if isinstance(s, TeStage) and len(s.axes) > 1 and work(s, facts) >= SERIAL:
        parallel(out, [a.name for a in s.axes], [tasks(a.extent) for a in s.axes], work(s, facts))
    return [*out.directives, *made]


RULES: tuple[ScheduleRule, ...] = (
    folds, depthwise_planes, packed_contraction, planes, window, resample, transposed, elementwise, in_vectors, fallback,
)  # fmt: skip
