"""The schedule of windows in planes, such as pooling on images with contiguous rows."""

from __future__ import annotations

from occ.compiler.ir.dim import Dim, lower
from occ.compiler.ir.te.expr import Call, Index, Select
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import PAD, WINDOW_ROWS
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, Directives, parallel, row_tail, tasks
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, element_bits, facts_of, work
from occ.compiler.targets.machine import Machine

_UNROLLED = 16  # taps that are unrolled
LONG_ROW = 3  # vectors; in vectors of shorter rows too many elements are beyond a border, or computed twice


def planar_window(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Windows over contiguous rows, such as pools: column results into L1, then along the row.

    A border along the rows is handled in separate loops (`likely`), and never copied. Column results of symbolic
    length have one piece of memory for all rows of a plane: one for each row took 22 % of the time (64 of 56x56).
    """
    facts = facts_of(f, machine)
    return facts.scheduled(planar_loops(facts.root, facts))


def planar_loops(s: AnyStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `planar_window` for a stage."""
    if not isinstance(s, TeStage) or len(s.axes) < 2:
        return Declined("it has no rows: fewer than two axes")
    sums = facts.reductions(s)
    if len(sums) != 1 or not is_along_rows(sums[0]) or sums[0].shape != s.shape:
        return Declined("it has no reduction over neighbours along the last axis")
    (acc,) = sums
    rows = _rows(acc, facts)
    width = s.axes[-1].extent
    lanes = 1 if may_be_short(width, facts) else lanes_along(s, acc, facts)
    out = StageSchedule(s)
    *outer, y, x = out.axes
    xo, xi = out.split(x, lanes, tail(width, lanes))
    out.vectorize(xi).reorder(xi, xo, y, *reversed(outer))
    counts = [tasks(a.extent) for a in s.axes[:-1]]
    fused = parallel(out, [*outer, y, INNERMOST], [*counts, 1], work(s, facts))
    level = fused.get(y, y)
    made = [*out.directives, *_reduced(acc, s.name, xo, lanes)]
    down = acc
    if rows is not None:
        (down,) = facts.reductions(rows)
        made += _line(rows, down, s.name, level, facts)
        if level == y and outer:
            made += StageSchedule(rows).store_at(s.name, fused.get(outer[-1], outer[-1])).directives
    for border in [b for b in facts.roots if _is_border(b, down, facts)]:
        made += _border(border, s.name, level, facts)
    return made


def lanes_along(s: TeStage, acc: TeStage, facts: ScheduleFacts) -> int:
    """Vector width along the rows: half if rows are short, or of symbolic length and not known to be long."""
    width, machine = s.axes[-1].extent, facts.machine
    lanes, whole = machine.lanes(max(element_bits(acc), element_bits(s)), width), machine.lanes(32)
    is_long = width >= LONG_ROW * whole if isinstance(width, int) else facts.full_vector
    return min(lanes, whole if is_long else machine.lanes(64))


def is_along_rows(acc: TeStage) -> bool:
    """Whether a reduction reads neighbours along the last axis of its result."""
    reduced = {a.name for a in reduce_axes(acc.expr)}
    read = list(dict.fromkeys(loads(acc.expr)))
    if len(read) != 1 or not read[0].index:
        return False
    found = {n.name for n in walk(read[0].index[-1]) if isinstance(n, Index)}
    return bool(found & reduced) and acc.axes[-1].name in found


def _line(rows: TeStage, down: TeStage, root: str, level: Loop, facts: ScheduleFacts) -> Directives:
    """Rows of column results, a vector of columns at a time."""
    columns = rows.axes[-1].extent
    lanes = lanes_along(rows, down, facts)
    if may_be_short(columns, facts):  # but not shorter than a window: these read nothing past the end of a row
        lanes = min(lanes, 1 << max(int(lower(columns)), 1).bit_length() - 1)
    out = StageSchedule(rows).compute_at(root, level)
    vectors, lane = out.split(out.axes[-1], lanes, tail(columns, lanes))
    out.vectorize(lane)
    return [*out.directives, *_reduced(down, rows.name, vectors, lanes)]


def _rows(acc: TeStage, facts: ScheduleFacts) -> TeStage | None:
    found = [r for n in loads(acc.expr) if isinstance(r := facts.stage(n.source), TeStage) and r.role == WINDOW_ROWS]
    return found[0] if found else None


def may_be_short(width: Dim, facts: ScheduleFacts) -> bool:
    """Whether rows may be shorter than a vector, which would then read past their end."""
    return not isinstance(width, int) and not facts.full_tile


def tail(extent: Dim, lanes: int) -> str:
    """The tail strategy for the last vector of a row: shifted inwards if rows have symbolic length."""
    return row_tail(extent, lanes) if isinstance(extent, int) else "ShiftInwards"


def _reduced(r: TeStage, root: str, level: Loop, lanes: int) -> Directives:
    """A reduction in registers, one vector at a time."""
    start, update = StageSchedule(r), StageSchedule(r, update=1)
    *outer, x = start.axes
    start.compute_at(root, level).vectorize(x, lanes)
    update.reorder(x, *reversed(update.reduced), *reversed(outer))
    update.vectorize(x, lanes)
    taps = 1
    for a, loop in zip(reversed(reduce_axes(r.expr)), reversed(update.reduced), strict=True):
        taps = taps * a.extent if isinstance(a.extent, int) else _UNROLLED + 1
        if taps <= _UNROLLED:
            update.unroll(loop)
    return [*start.directives, *update.directives]


def _is_border(p: AnyStage, down: TeStage, facts: ScheduleFacts) -> bool:
    readers = [x for x in facts.f.stages if any(n.source == p.name for e in x.exprs for n in loads(e))]
    return isinstance(p, TeStage) and p.role == PAD and len(p.axes) == len(down.axes) and readers == [down]


def _border(p: AnyStage, root: str, level: Loop, facts: ScheduleFacts) -> Directives:
    """A border around a stored tensor is tested for each tap.

    A border around computed elements is copied, a plane at a time.
    """
    assert isinstance(p, TeStage)
    functions = any(isinstance(n, Call) for x in (p, *facts.inlined_into(p)) for n in walk(x.expr))
    if isinstance(p.expr, Select) and not functions:
        return StageSchedule(p).compute_inline().directives
    made = StageSchedule(p).compute_at(root, level)
    lanes = facts.machine.lanes(element_bits(p), p.axes[-1].extent)
    if lanes > 1:
        made.vectorize(made.axes[-1], lanes, row_tail(p.axes[-1].extent, lanes))
    return made.directives
