"""The schedule of windows and other reductions with lanes along the last axis of the result."""

from __future__ import annotations

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Cast, Const, Index, Load, Reduce, Select
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, Directives, parallel, row_tail, tasks, tile_size
from occ.compiler.passes.schedule.stage_facts import (
    ScheduleFacts,
    contiguous,
    element_bits,
    facts_of,
    same_axes,
    work,
)
from occ.compiler.targets.machine import Machine

_WINDOW = 7  # taps along an axis of a small window
_STRIP = 16  # vectors of columns added together
SHORT_STRIP = 8  # the same, of a symbolic number of columns
# Taps that are unrolled: else only those of a row. Depthwise convolutions of 5x5 and 7x7 are as fast with a loop over
# rows (three nets of PP-OCR 0.98 to 0.99 of the time on Zen 4, one of them 1.04 on AVX2), and Halide and LLVM take 0.3
# of the time for 5x5, a ninth for 7x7; 3x3 takes 1.02 (MobileNet v2) to 1.46 (one of PP-OCR). A maximum of 5x5 takes
# 0.69 of the time, and Halide a seventh for it; of 3x3 1.02, and Halide and LLVM half of the work (Sapphire Rapids).
_MOST = 9
_MOST_COMPARED = 8


def window(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Windows and other reductions with vectors along the last axis: depthwise convolutions, pools, column sums.

    A few neighbours along the second-last axis share the taps that they load. Whether those are beyond a border is
    tested once for all of them: depthwise convolutions are 1.4 to 2.4 times as fast as with a padded copy. If there are
    no neighbours, or vectors cross the border, the border is added a few rows at a time, while they are in cache.
    """
    facts = facts_of(f, machine)
    return facts.scheduled(column_sums(facts.root, facts) or window_loops(facts.root, facts))


def column_sums(s: AnyStage, facts: ScheduleFacts) -> Directives:
    """Sums of long columns, several adjacent vectors in registers; nothing if there are none, or few columns.

    A column of vectors reads one line of each page. Sapphire Rapids, the sums of 2,048 columns of 1,024 rows: 840 -->
    350 us.
    """
    sums = facts.reductions(s) if isinstance(s, TeStage) and s.axes else []
    if len(sums) != 1 or not isinstance(s, TeStage) or not (lanes := _lanes(s, sums, facts)):
        return []
    (r,), (last, extent) = sums, (s.axes[-1].name, s.axes[-1].extent)
    strip = lanes * (SHORT_STRIP if facts.full_vector else min(_STRIP, facts.machine.registers // 2))
    inner = reduce_axes(r.expr)
    rows = len(inner) == 1 and nominal(inner[0].extent) > _WINDOW * _WINDOW
    known = isinstance(extent, int) and extent % strip == 0 and extent >= 4 * strip
    if not rows or not (known or facts.full_vector):
        return []
    out, start, update = StageSchedule(s), StageSchedule(r), StageSchedule(r, update=1)
    strips, within = out.split(out.loop(last), strip, "Auto" if known else "ShiftInwards")
    out.reorder(within, strips, *reversed(out.axes[:-1])).vectorize(within, lanes)
    loops = [*out.axes[:-1], strips, INNERMOST]
    counts = [*(tasks(a.extent) for a in s.axes[:-1]), tasks(extent, strip), 1]
    fused = parallel(out, loops, counts, work(s, facts))
    made = out.directives
    for part in (start, update):
        vectors, lane = part.split(part.axes[-1], lanes)
        if part is update:
            part.reorder(lane, vectors, *part.reduced, *reversed(part.axes[:-1]))
        part.vectorize(lane).unroll(vectors)
    return [*made, *start.compute_at(s.name, fused.get(strips, strips)).directives, *update.directives]


def window_loops(s: AnyStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `window` for a stage."""
    if not isinstance(s, TeStage) or not s.axes:
        return Declined("it is a single element, or writes at computed positions")
    sums = facts.reductions(s)
    lanes = _lanes(s, sums, facts)
    if not lanes:
        return Declined("it has no reductions of its own shape that read contiguous elements along its last axis")
    out = StageSchedule(s)
    *outer, last = out.axes
    end = "ShiftInwards" if facts.full_vector else row_tail(s.axes[-1].extent, lanes)
    vectors, lane = out.split(last, lanes, end)
    out.vectorize(lane)
    taps = [a.extent for r in sums for a in reduce_axes(r.expr)]
    small = len(sums) == 1 and all(isinstance(n, int) and n <= _WINDOW for n in taps)
    tile, block = (
        _neighbours(s, facts) if small and len(s.axes) > 1 else 1,
        (facts.hint.block or 4) if small and len(s.axes) > 2 else 1,
    )
    inner = [lane]
    if tile > 1:
        tail = "ShiftInwards" if facts.full_tile else row_tail(s.shape[-2], tile)
        outer[-1], near = out.split(outer[-1], tile, tail)
        out.unroll(near)
        inner.append(near)
    borders = [p for p in facts.roots if p is not s and _is_border(p, s, sums, facts)] if block > 1 else []
    if borders:
        height = s.shape[-3]
        block = min(block, height) if isinstance(height, int) else block
        blocks, row = out.split(outer[-2], block, row_tail(height, block))
        outer = [*outer[:-2], blocks, vectors, row, outer[-1]]
    else:
        outer = [*outer, vectors] if tile == 1 else [*outer[:-1], vectors, outer[-1]]
    out.reorder(*inner, *reversed(outer))
    counts = [tasks(a.extent) for a in s.axes[: len(outer) - 2]]
    fused = parallel(out, outer, [*counts, *[1] * (len(outer) - len(counts))], work(s, facts))
    made = list(out.directives)
    for p in borders:
        made += _border(p, s.name, fused.get(outer[-3], outer[-3]), tile, facts)
    for r in sums:
        made += _taps(r, s.name, outer[-1], lanes, tile, guarded=end == "GuardWithIf")
    return made


def _lanes(s: TeStage, sums: list[TeStage], facts: ScheduleFacts) -> int:
    """Elements of a vector along the last axis.

    0 if vectors cannot run along it, or it is too short for them.
    """
    if not sums or not all(same_axes(s, r) and contiguous(r, r.axes[-1].name, facts) for r in sums):
        return 0
    bits, extent = max(element_bits(r) for r in sums), s.axes[-1].extent
    if isinstance(extent, int) and extent < max(facts.machine.lanes(bits) // 4, 2):
        return 0
    return facts.machine.lanes(bits, extent)


def _neighbours(s: TeStage, facts: ScheduleFacts) -> int:
    """How many elements along the second-last axis are computed at once."""
    extent = s.axes[-2].extent
    if any(_tests_lanes(r) or _gathers_border(r, facts) for r in facts.reductions(s)):
        return 1
    most = max(facts.machine.registers // 4, 2)
    return tile_size(extent, most, facts.machine.rows) if isinstance(extent, int) or facts.full_tile else 1


def _tests_lanes(r: TeStage) -> bool:
    """Whether a reduction selects by its position in a row of symbolic length, as a transposed convolution does.

    Halide analyses each lane of each such tap: 36 taps of 8 neighbours took it minutes.
    """
    return not isinstance(r.axes[-1].extent, int) and _selects_along(r)


def _gathers_border(r: TeStage, facts: ScheduleFacts) -> bool:
    """Whether a reduction reads an inlined border in a row of symbolic length, by lanes that are not adjacent there.

    Each lane of each tap is a branch then: 18 taps of 8 neighbours were 420 KB, which took LLVM a minute.
    """
    last = r.axes[-1]
    if isinstance(last.extent, int):
        return False
    symbols = axis_symbols((*r.axes, *reduce_axes(r.expr)))
    apart = {n.source for n in loads(r.expr) if step(n, last.name, symbols, facts.f.shapes) not in (0, 1)}
    return any(p.name in apart and _selects_along(p) for p in facts.inlined_into(r))


def _selects_along(s: TeStage) -> bool:
    """Whether a stage selects by the position along its last axis."""
    return any(Index(s.axes[-1].name) in walk(n.cond) for n in walk(s.expr) if isinstance(n, Select))


def _is_border(p: AnyStage, s: TeStage, sums: list[TeStage], facts: ScheduleFacts) -> bool:
    """Whether a stage in memory only prepares the input of a window: same axes, read by its reductions alone."""
    readers = [r for r in facts.f.stages if any(ld.source == p.name for e in r.exprs for ld in loads(e))]
    results = {r.name for r in facts.f.results}
    plain = isinstance(p, TeStage) and not any(isinstance(n, Reduce) for n in walk(p.expr))
    return plain and p.name not in results and len(p.axes) == len(s.axes) and all(r in sums for r in readers)


def _is_outside_vectors(p: AnyStage, facts: ScheduleFacts) -> bool:
    """Whether a border tests nothing along the last axis, and only passes its input through.

    Widened for all neighbours or not.
    """
    e = p.expr if isinstance(p, TeStage) else None
    e = e.arg if isinstance(e, Cast) and e.dtype == F32 and facts.machine.has_f16c else e
    if not isinstance(p, TeStage) or not isinstance(e, Select) or not isinstance(e.then, Load):
        return False
    # Otherwise each tap would gather its lanes, and Halide would analyse each of those, for minutes.
    if not contiguous(p, p.axes[-1].name, facts):
        return False
    tested = {n.name for n in walk(e.cond) if isinstance(n, Index)}
    return isinstance(e.other, Const) and p.axes[-1].name not in tested and not [*loads(e.cond)]


def _border(p: AnyStage, root: str, level: Loop, tile: int, facts: ScheduleFacts) -> Directives:
    """A border: tested once for all neighbours of a tile if possible, otherwise for some rows."""
    if tile > 1 and _is_outside_vectors(p, facts):
        return StageSchedule(p).compute_inline().directives
    made = StageSchedule(p).compute_at(root, level)
    extent = p.axes[-1].extent
    lanes = facts.machine.lanes(element_bits(p), extent)
    if lanes > 1:
        made.vectorize(made.axes[-1], lanes, row_tail(extent, lanes))
    return made.directives


def _most(r: TeStage) -> int:
    return _MOST_COMPARED if isinstance(r.expr, Reduce) and r.expr.kind in ("max", "min") else _MOST


def _taps(r: TeStage, root: str, level: Loop, lanes: int, tile: int, *, guarded: bool) -> Directives:
    """A reduction in registers: vectors along the last axis, neighbours and the taps of a small window unrolled."""
    start, update = StageSchedule(r), StageSchedule(r, update=1)
    *others, x = start.axes
    # Rounded up to whole vectors, as Halide does by default, a row of any length would be read past its end.
    tail = ("GuardWithIf",) if guarded else ()
    start.compute_at(root, level).vectorize(x, lanes, *tail)
    near = [others.pop()] if tile > 1 else []
    update.reorder(x, *near, *reversed(update.reduced), *reversed(others)).vectorize(x, lanes, *tail)
    for loop in near:
        start.unroll(loop)
        update.unroll(loop)
    unrolled, most = 1, 1 if _tests_lanes(r) else _most(r)
    for a, loop in zip(reversed(reduce_axes(r.expr)), reversed(update.reduced), strict=True):
        if isinstance(a.extent, int) and a.extent <= _WINDOW and unrolled * a.extent <= most:
            update.unroll(loop)
            unrolled *= a.extent
    return [*start.directives, *update.directives]
