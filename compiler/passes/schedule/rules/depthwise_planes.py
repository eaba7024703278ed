"""The schedule of depthwise convolutions on images with contiguous rows.

Zen 5, one core, 3x3 of 64 planes of 56x56: 114 --> 63 us, with symbolic sizes 153 --> 109 us; 5x5 windows and strides
are faster along channels.
"""

from __future__ import annotations

from occ.compiler.ir.dim import is_multiple, product
from occ.compiler.ir.te.expr import Index, Load
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.piecewise import Part, parts
from occ.compiler.ir.te.roles import CONV, PAD
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, Directives, parallel, row_tail, tasks
from occ.compiler.passes.schedule.rules.planar_window import lanes_along, may_be_short, tail
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, contiguous, element_bits, facts_of, fixed, work
from occ.compiler.targets.machine import Machine

_FEW = 9  # taps that are all unrolled
_DOWN = 8  # taps down a column that are unrolled, of more; 31 take four times as long where rows have symbolic length
_ROWS = 4  # rows of a tile for a few taps, twice as many for more: they share elements and taps that they load


def depthwise_planes(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Depthwise convolutions of contiguous rows: plane by plane, its border in L1, tiles of rows by a vector in registers."""
    facts = facts_of(f, machine)
    return facts.scheduled(depthwise_loops(facts.root, facts))


def depthwise_loops(s: AnyStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `depthwise_planes` for a stage."""
    if not isinstance(s, TeStage) or len(s.axes) < 3:
        return Declined("it has no planes: fewer than three axes")
    sums = facts.reductions(s)
    if len(sums) != 1 or not _is_depthwise(sums[0], facts) or sums[0].shape != s.shape:
        return Declined("it has no sum over a window of one channel along contiguous rows")
    (acc,) = sums
    height, width = s.axes[-2].extent, s.axes[-1].extent
    lanes, rows = tile_of_planes(s, acc, facts)
    lanes = 1 if may_be_short(width, facts) else lanes
    out = StageSchedule(s)
    *outer, y, x = out.axes
    xo, xi = out.split(x, lanes, tail(width, lanes))
    yo, yi = out.split(y, rows, tail(height, rows) if facts.full_tile else row_tail(height, rows))
    out.reorder(xi, yi, xo, yo, *reversed(outer)).vectorize(xi).unroll(yi)
    fused = parallel(out, [*outer, INNERMOST], [*(tasks(a.extent) for a in s.axes[:-2]), 1], work(s, facts))
    made = [*out.directives, *_taps(acc, s.name, xo, lanes)]
    for p in facts.roots:
        if isinstance(p, TeStage) and p.role == PAD and _readers(p, facts) == [acc]:
            made += _border(p, s.name, fused.get(outer[-1], outer[-1]), facts)
    return made


def tile_of_planes(s: TeStage, acc: TeStage, facts: ScheduleFacts) -> tuple[int, int]:
    """Elements of a row that are computed together, and rows."""
    height, width, machine = s.axes[-2].extent, s.axes[-1].extent, facts.machine
    # The border is in memory: full vectors cross none.
    full = machine.lanes(max(element_bits(acc), element_bits(s)), width)
    lanes = full if isinstance(width, int) or facts.full_vector else lanes_along(s, acc, facts)
    rows = _ROWS if is_small_window(acc) else 2 * _ROWS
    rows = rows if machine.registers >= 32 else rows // 2
    return lanes, min(rows, height) if isinstance(height, int) else rows


def is_small_window(acc: TeStage) -> bool:
    """Whether all taps of a window are unrolled."""
    taps = product(a.extent for a in reduce_axes(acc.expr))
    return isinstance(taps, int) and taps <= _FEW


def _is_depthwise(acc: TeStage, facts: ScheduleFacts) -> bool:
    """Whether a sum of products reads a window of its own plane, along contiguous rows."""
    taps = reduce_axes(acc.expr)
    read = list(dict.fromkeys(loads(acc.expr)))
    if acc.role != CONV or len(taps) > 2 or len(read) != 2 or len(acc.axes) < 3:
        return False
    if not all(isinstance(a.extent, int) for a in taps) or not contiguous(acc, acc.axes[-1].name, facts):
        return False
    along = [n for n in read if _along(n, acc)]
    planes = tuple(Index(a.name) for a in acc.axes[:-2])
    return len(along) == 1 and along[0].index[:-2] == planes


def _along(n: Load, acc: TeStage) -> bool:
    """Whether a load runs along the rows of the result, with only its last index."""
    *before, last = ({i.name for i in walk(e) if isinstance(i, Index)} for e in n.index or (Index(""),))
    return acc.axes[-1].name in last and not any(acc.axes[-1].name in found for found in before)


def _readers(p: AnyStage, facts: ScheduleFacts) -> list[AnyStage]:
    return [x for x in facts.f.stages if any(n.source == p.name for e in x.exprs for n in loads(e))]


def _taps(acc: TeStage, root: str, level: Loop, lanes: int) -> Directives:
    """A tile in registers, column by column of the window: its rows share the elements of a column."""
    start, update = StageSchedule(acc), StageSchedule(acc, update=1)
    *outer, y, x = start.axes
    start.compute_at(root, level).vectorize(x, lanes).unroll(y)
    taps, unrolled = update.reduced, update.reduced
    if not is_small_window(acc):
        column, unrolled = taps[0], taps[:1]
        if fixed(reduce_axes(acc.expr)[0]) > _DOWN:
            block, near = update.split(column, _DOWN, "GuardWithIf")
            taps, unrolled = [near, block, *taps[1:]], [near]
    update.reorder(x, y, *taps, *reversed(outer)).vectorize(x, lanes).unroll(y)
    for tap in unrolled:
        update.unroll(tap)
    return [*start.directives, *update.directives]


def _border(p: TeStage, root: str, level: Loop, facts: ScheduleFacts) -> Directives:
    """A plane with its border: the border and the inside of rows separately, so that no vector crosses into it."""
    made = StageSchedule(p).compute_at(root, level)
    if found := parts(p):
        return [*made.in_parts(made.axes[-1]).directives, *_in_vectors(p, found, facts)]
    lanes = facts.machine.lanes(element_bits(p), p.axes[-1].extent)
    if lanes > 1:
        made.vectorize(made.axes[-1], lanes, row_tail(p.axes[-1].extent, lanes))
    return made.directives


def _in_vectors(p: TeStage, found: tuple[Part, ...], facts: ScheduleFacts) -> Directives:
    """Each part of a stage's rows in vectors."""
    made: Directives = []
    for k, part in enumerate(found, 1):
        out = StageSchedule(p, update=k)
        lanes = facts.machine.lanes(element_bits(p), part.extent)
        if lanes > 1:
            out.vectorize(out.axes[-1], lanes, "Auto" if is_multiple(part.extent, lanes) else "GuardWithIf")
        made += out.directives
    return made
