"""The schedule of transpositions, with or without elementwise work, in square register tiles."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import Axis, Index, Load, Reduce
from occ.compiler.ir.te.function import TeFunc, TeStage, certain_loads, position
from occ.compiler.ir.te.piecewise import parts
from occ.compiler.ir.te.roles import SQUARES
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import replace_indices, transform, walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, Directives, parallel, row_tail, tasks
from occ.compiler.passes.schedule.rules.elementwise import across
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of, work
from occ.compiler.targets.machine import Machine

_SIDE = 4  # of a square in registers, for any element type: larger ones take longer


def transpose_tiles(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Transpositions: squares are read along the operand's rows, and transposed in registers by shuffles.

    Squares go in blocks of a cache line by a cache line, in which lines of the result are completed first: rows a power
    of two of bytes apart share few places of a cache.

    Zen 5, 64 of 56x56: f32 36 --> 19 us, f16 26 --> 16, bytes 25 --> 18. Blocks, Sapphire Rapids: 25600x64 f32
    2,650 --> 970 us, 1024x2048 f32 3,450 --> 1,650, 2048x2048 f16 6,900 --> 3,000.

    `out[i, j] = p[j, i]` --> `squares[i, j] = p[j, i]  out[i, j] = squares[i, j]`, a square at a time
    """
    *before, s = f.stages
    if not isinstance(s, TeStage):
        return Declined("it writes at computed positions")
    *made, s = with_squares(s, facts_of(f, machine))
    facts = facts_of(replace(f, stages=(*before, *made, s)) if made else f, machine)
    return facts.scheduled(square_loops(s, facts))


def square_loops(s: TeStage, facts: ScheduleFacts) -> Directives | Declined:
    """The directives of `transpose_tiles` for a stage that reads squares."""
    squares = [r for r in facts.inlined_into(s) if r.role == SQUARES]
    if not squares:
        return Declined("it reduces, or reads no tensor across rows of known lengths")
    (place,) = {next(k for k, a in enumerate(r.axes) if a.name == across(r, facts)) for r in squares}
    out, level = _blocks(s, place, facts)
    made = list(out.directives)
    for r in squares:
        square = StageSchedule(r)
        row, column = square.axes[place], square.axes[-1]
        rest = [x for x in reversed(square.axes) if x not in (row, column)]
        square.compute_at(s.name, level).reorder_storage(row, column, *rest)
        square.bound_extent(row, _SIDE).bound_extent(column, _SIDE)
        square.reorder(row, column, *rest).vectorize(row, _SIDE).unroll(column)
        made += square.directives
    return made


def _blocks(s: TeStage, place: int, facts: ScheduleFacts) -> tuple[StageSchedule, Loop]:
    """Loops over blocks, squares and elements of a stage whose axis `place` is contiguous in an operand.

    Returns:
        The schedule, and the loop over the squares of a row.
    """
    out = StageSchedule(s)
    *outer, last = out.axes
    side = block_side(s, facts.machine)
    (rows, band, row), (columns, level, lane) = (
        _split(out, loop, axis.extent, side, facts)
        for loop, axis in ((outer[place], s.axes[place]), (last, s.axes[-1]))
    )
    outer[place] = rows or band
    inner = [level, *([band] if rows else []), *([columns] if columns else [])]
    out.reorder(lane, row, *inner, *reversed(outer)).vectorize(lane).unroll(row)
    counts = [tasks(a.extent, (side if rows else _SIDE) if k == place else 1) for k, a in enumerate(s.axes[:-1])]
    parallel(out, [*outer, INNERMOST], [*counts, 1], work(s, facts))
    return out, level


def _split(
    out: StageSchedule, loop: Loop, extent: Dim, side: int, facts: ScheduleFacts
) -> tuple[Loop | None, Loop, Loop]:
    """Loops over blocks of `side`, squares of a block, elements of a square; no blocks if all are less."""
    if extent < side if isinstance(extent, int) else not facts.full_tile:
        return None, *out.split(loop, _SIDE, row_tail(extent, _SIDE))
    blocks, block = out.split(loop, side, row_tail(extent, side) if isinstance(extent, int) else "ShiftInwards")
    return blocks, *out.split(block, _SIDE)


def block_side(s: TeStage, machine: Machine) -> int:
    """Elements of a cache line."""
    return machine.line * 8 // max(s.dtype.bits, 8)


def with_squares(s: TeStage, facts: ScheduleFacts, *, any_size: bool = False) -> list[TeStage]:
    """Inserts a stage read along rows for what an elementwise stage reads across them.

    With `any_size` also if lengths are symbolic.

    `out[i, j] = p[j, i]` --> `squares[i, j] = p[j, i]`, `out[i, j] = squares[i, j]`
    """
    plain = s.axes and not facts.reductions(s) and not any(isinstance(n, Reduce) for n in walk(s.expr))
    name = across(s, facts) if plain else ""
    sides = [a.extent for a in s.axes if a.name in (name, s.axes[-1].name)]
    if not name or not all(n >= 2 * _SIDE if isinstance(n, int) else any_size for n in sides) or parts(s):
        return [s]
    certain = certain_loads(s.expr)
    made: dict[Load, TeStage] = {}

    def read(n: object) -> Load | None:
        if not isinstance(n, Load) or n not in certain or across(replace(s, expr=n), facts) != name:
            return None
        if n not in made:
            mark = f"q{len(made)}"
            axes = tuple(Axis(f"{a.name}{mark}", a.extent) for a in s.axes)
            moved = replace_indices(n, {a.name: Index(b.name) for a, b in zip(s.axes, axes, strict=True)})
            made[n] = TeStage(f"{s.name}{mark}", axes, moved, s.note, SQUARES)
        return Load(made[n].name, position(s.axes), n.dtype)

    last = replace(s, expr=transform(s.expr, read))
    return [*made.values(), last]
