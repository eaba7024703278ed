"""Schedule rules for CPUs, in order; the first that applies to a stage schedules it, and the last always applies.

A rule takes a stage that is computed into memory, and gives the directives for it and for the reductions that are
computed inside of its loops. Measurements: Zen 4, one core, 117 GFLOP/s of fp32 multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.expr import Load, Reduce, walk
from occ.compiler.ir.index import axis_symbols
from occ.compiler.ir.schedule import Directive, Scheduler
from occ.compiler.ir.te import AnyStage, Scatter, Stage, reduce_axes
from occ.compiler.passes.schedule_facts import Contraction, Facts, contraction, element_bits, extent_of, step, work
from occ.compiler.passes.te_inline import nominal

Directives = list[Directive]
Rule = Callable[[AnyStage, Facts], Directives | None]
_SERIAL = 40_000  # operations below which a loop is not worth a second thread: about 10 us


def tile_size(extent: Dim, most: int) -> int:
    """Rows of a register tile: the largest number up to `most` that wastes least of the extent."""
    if not isinstance(extent, int):
        return most
    if extent <= most:
        return extent
    return min(range(most, most // 2, -1), key=lambda t: (-(-extent // t) * t, -t))


def packed_contraction(s: AnyStage, facts: Facts) -> Directives | None:
    """Sums of products with lanes along a contiguous axis of `B`: a tile of rows by vectors stays in registers, `A` is
    broadcast. 97-100 % of peak on packed panels; a tile wants about 14 accumulators, and 28 spill.
    """
    if not isinstance(s, Stage):
        return None
    sums = facts.reductions(s)
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    if found is None or not _same_axes(s, sums[0]):
        return None
    acc = sums[0]
    lanes = facts.machine.lanes(max(element_bits(acc), 32))
    here = dict(zip((a.name for a in acc.axes), (a.name for a in s.axes), strict=True))
    width = found.panel or _width(extent_of(acc, found.lanes), lanes)
    if width % lanes:
        lanes = width if width < lanes else lanes // 2
    if width == 0 or width % lanes:
        return None
    rows = tile_size(extent_of(acc, found.tile), 14 * lanes // width if width <= 2 * lanes else 7) if found.tile else 1
    return _tile(s, acc, found, here, width, lanes, rows, facts)


def _width(extent: Dim, lanes: int) -> int:
    """Width of a tile where `B` is not packed: whole vectors, and nothing read behind the end of a row."""
    if not isinstance(extent, int):
        return 0
    for width in (2 * lanes, lanes, lanes // 2, lanes // 4):
        if width and extent >= width:
            return width
    return 0


def _same_axes(s: Stage, acc: Stage) -> bool:
    return len(s.axes) == len(acc.axes) and all(a.extent == b.extent for a, b in zip(s.axes, acc.axes, strict=True))


def _tile(
    s: Stage, acc: Stage, c: Contraction, here: dict[str, str], width: int, lanes: int, rows: int, facts: Facts
) -> Directives:
    n, m = here[c.lanes], here.get(c.tile, "")
    size = extent_of(acc, c.lanes)
    packed_tail = "GuardWithIf" if not isinstance(size, int) or size % width else "Auto"
    out = Scheduler(s.name)
    out.split(n, f"{n}o", f"{n}i", width, packed_tail if c.panel else "ShiftInwards")
    out.split(f"{n}i", f"{n}u", f"{n}v", lanes)
    inner = [f"{n}v", f"{n}u"]
    outer = [here[a] for a in c.outer]
    if m:
        out.split(m, f"{m}o", f"{m}i", rows, _row_tail(extent_of(acc, c.tile), rows))
        inner.append(f"{m}i")
        outer.append(f"{m}o")
    loops = [*(here[a] for a in c.batch), f"{n}o", *outer]
    out.reorder(*inner, *reversed(loops)).vectorize(f"{n}v").unroll(f"{n}u")
    if m:
        out.unroll(f"{m}i")
    level = loops[-1]
    _parallel(out, loops, [_count(s, acc, c, a, here, width, rows) for a in loops], work(s, facts))
    start = Scheduler(acc.name)
    a_n, a_m = c.lanes, c.tile
    start.compute_at(s.name, level)
    others = [a.name for a in acc.axes if a.name != a_n]
    if others:
        start.reorder_storage(a_n, *reversed(others))
    if c.panel and packed_tail != "Auto":
        start.align_bounds(a_n, width)
    start.bound_extent(a_n, width)
    if a_m and not isinstance(extent_of(acc, a_m), int):
        start.bound_extent(a_m, rows)
    start.split(a_n, f"{a_n}u", f"{a_n}v", lanes).reorder(f"{a_n}v", f"{a_n}u", *reversed(others))
    start.vectorize(f"{a_n}v").unroll(f"{a_n}u")
    update = Scheduler(acc.name, update=True)
    reduced = [a.name for a in reduce_axes(acc.expr)]
    update.split(a_n, f"{a_n}w", f"{a_n}x", lanes)
    # The rows inside of the vectors: with the vectors inside, all broadcast rows would be alive at once.
    tile = [a_m] if a_m else []
    rest = [a for a in others if a != a_m]
    order = _reduction_order(acc, reduced)
    update.reorder(f"{a_n}x", f"{a_n}w", *tile, *order, *reversed(rest)).vectorize(f"{a_n}x").unroll(f"{a_n}w")
    if a_m:
        start.unroll(a_m)
        update.unroll(a_m)
    innermost = extent_of(acc, order[0])
    if not isinstance(innermost, int) or innermost >= 4:
        update.unroll(order[0], 4)
    return [*out.directives, *start.directives, *update.directives]


def _reduction_order(acc: Stage, reduced: list[str]) -> list[str]:
    """Reduced axes from the innermost out: window taps inside, channels outside, so that panels stream."""
    return list(reversed(reduced))


def _row_tail(extent: Dim, rows: int) -> str:
    if not isinstance(extent, int):
        return "GuardWithIf"
    return "Auto" if extent % rows == 0 else "ShiftInwards"


def _count(s: Stage, acc: Stage, c: Contraction, loop: str, here: dict[str, str], width: int, rows: int) -> int:
    for axis, step_size in ((here[c.lanes], width), (here.get(c.tile, ""), rows)):
        if loop == f"{axis}o":
            return -(-nominal(extent_of(s, axis)) // step_size)
    return nominal(extent_of(s, loop))


def _parallel(out: Scheduler, loops: list[str], counts: list[int], cost: int) -> None:
    """Run the outermost loop in parallel, fused with the next one while it is short."""
    if cost < _SERIAL or not loops:
        return
    loop, total, k = loops[0], counts[0], 0
    while total < 8 and k + 1 < len(loops) - 1:  # the innermost loop stays: reductions are computed in it
        k += 1
        fused = f"{loop}{loops[k]}"
        out.fuse(loops[k], loop, fused)
        loop, total = fused, total * counts[k]
    if total > 1:
        out.parallel(loop)


def window(s: AnyStage, facts: Facts) -> Directives | None:
    """Other reductions with lanes along the innermost axis of the result: depthwise convolutions, pools, column sums."""
    if not isinstance(s, Stage) or not s.axes:
        return None
    sums = facts.reductions(s)
    if not sums or any(not _same_axes(s, r) for r in sums):
        return None
    last = s.axes[-1]
    lanes = facts.machine.lanes(max(element_bits(r) for r in sums))
    if isinstance(last.extent, int) and last.extent < max(lanes // 4, 2):
        return None
    if not all(_contiguous(r, r.axes[-1].name, facts) for r in sums):
        return None
    if isinstance(last.extent, int):
        while lanes > last.extent:
            lanes //= 2
    out = Scheduler(s.name)
    tail = _row_tail(last.extent, lanes)
    out.split(last.name, f"{last.name}o", f"{last.name}i", lanes, tail).vectorize(f"{last.name}i")
    loops = [*(a.name for a in s.axes[:-1]), f"{last.name}o"]
    _parallel(out, loops, [nominal(a.extent) for a in s.axes[:-1]] + [1], work(s, facts))
    made = list(out.directives)
    for r in sums:
        axis = r.axes[-1].name
        start = Scheduler(r.name).compute_at(s.name, loops[-1]).vectorize(axis, lanes)
        reduced = reduce_axes(r.expr)
        update = Scheduler(r.name, update=True)
        others = [a.name for a in r.axes[:-1]]
        update.reorder(axis, *(a.name for a in reversed(reduced)), *reversed(others)).vectorize(axis, lanes)
        for a in reversed(reduced):
            if isinstance(a.extent, int) and a.extent <= 7:
                update.unroll(a.name)
        made += [*start.directives, *update.directives]
    return made


def _contiguous(r: Stage, axis: str, facts: Facts) -> bool:
    """Whether every load of a reduction moves by at most a few elements along an axis."""
    symbols = axis_symbols((*r.axes, *reduce_axes(r.expr)))
    steps = [step(n, axis, symbols, facts.f.sources) for n in walk(r.expr) if isinstance(n, Load)]
    return all(isinstance(d, int) and abs(d) <= 4 for d in steps)


def rows(s: AnyStage, facts: Facts) -> Directives | None:
    """Several stages over the same rows (softmax, layer normalisation): all are computed row by row, in cache."""
    if not isinstance(s, Stage) or s is not facts.roots[-1] or len(facts.f.results) != 1:
        return None
    others = [
        r
        for r in facts.f.stages
        if r is not s and (r.name in facts.root_names or isinstance(getattr(r, "expr", None), Reduce))
    ]
    if all(isinstance(r, Stage) and _same_axes(s, r) for r in others) and len(others) < 2:
        return None  # one reduction and what is done with it: the rules for those do better
    depth = _shared_rows(s, others, facts)
    if not others or depth == 0 or any(isinstance(r, Scatter) for r in others):
        return None
    out = Scheduler(s.name)
    _vectorise(out, s, facts, outer=depth)
    loops = [a.name for a in s.axes[:depth]]
    level = loops[-1]
    if work(s, facts) >= _SERIAL or sum(work(r, facts) for r in others) >= _SERIAL:
        out.parallel(loops[0])
    made = list(out.directives)
    for r in others:
        assert isinstance(r, Stage)
        made += _inside(r, s.name, level, facts, depth)
    return made


def _shared_rows(s: Stage, others: list[AnyStage], facts: Facts) -> int:
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


def _inside(r: Stage, root: str, level: str, facts: Facts, depth: int) -> Directives:
    """A stage computed in a row loop of another one, vectorised along its own last axis."""
    start = Scheduler(r.name).compute_at(root, level)
    lanes = facts.machine.lanes(element_bits(r))
    update = Scheduler(r.name, update=True)
    if len(r.axes) > depth and nominal(r.axes[-1].extent) >= 4:
        last = r.axes[-1]
        width = lanes
        while isinstance(last.extent, int) and width > last.extent:
            width //= 2
        start.vectorize(last.name, width)
        if isinstance(r.expr, Reduce) and r.expr.kind in ("sum", "max", "min", "prod", "any", "all"):
            update.reorder(last.name, *(a.name for a in reversed(reduce_axes(r.expr))))
            update.vectorize(last.name, width)
            first = reduce_axes(r.expr)[-1]
            if nominal(first.extent) >= 4:
                update.unroll(first.name, 4)
    return [*start.directives, *update.directives]


def elementwise(s: AnyStage, facts: Facts) -> Directives | None:
    """No reduction: vectors along the innermost axis, the outermost in parallel."""
    if not isinstance(s, Stage) or facts.reductions(s) or any(isinstance(n, Reduce) for n in walk(s.expr)):
        return None
    out = Scheduler(s.name)
    if not s.axes:
        return []
    if len(s.axes) == 1 and work(s, facts) >= _SERIAL:
        axis = s.axes[0]
        block = 4096 if not isinstance(axis.extent, int) else max(1024, min(16384, -(-axis.extent // 8)))
        out.split(
            axis.name,
            f"{axis.name}o",
            f"{axis.name}i",
            block,
            "GuardWithIf" if not isinstance(axis.extent, int) else _row_tail(axis.extent, block),
        )
        lanes = facts.machine.lanes(element_bits(s))
        out.vectorize(f"{axis.name}i", lanes)
        out.parallel(f"{axis.name}o")
        return out.directives
    _vectorise(out, s, facts, outer=0)
    _parallel(out, [a.name for a in s.axes[:-1]] + ["_"], [nominal(a.extent) for a in s.axes], work(s, facts))
    return out.directives


def _vectorise(out: Scheduler, s: Stage, facts: Facts, *, outer: int) -> None:
    """Vectors along the last axis, if it is not one of the `outer` first and long enough."""
    if len(s.axes) <= outer:
        return
    last = s.axes[-1]
    lanes = facts.machine.lanes(element_bits(s))
    if isinstance(last.extent, int):
        while lanes > last.extent:
            lanes //= 2
    if lanes > 1:
        tail = "GuardWithIf" if not isinstance(last.extent, int) else _row_tail(last.extent, lanes)
        out.vectorize(last.name, lanes, tail)


def fallback(s: AnyStage, facts: Facts) -> Directives | None:
    """Always legal: loops in order, reductions computed where they are read, the outermost loop in parallel."""
    out = Scheduler(s.name)
    made: Directives = []
    level = s.axes[-1].name if s.axes else ""
    for r in facts.reductions(s):
        start = Scheduler(r.name)
        if level:
            start.compute_at(s.name, level)
        else:
            start.compute_root()
        made += start.directives
    if isinstance(s, Stage) and len(s.axes) > 1 and work(s, facts) >= _SERIAL:
        _parallel(out, [a.name for a in s.axes], [nominal(a.extent) for a in s.axes], work(s, facts))
    return [*out.directives, *made]


RULES: tuple[Rule, ...] = (packed_contraction, window, elementwise, fallback)
