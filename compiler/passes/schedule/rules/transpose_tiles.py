"""The schedule of transpositions, with or without elementwise work, in square register tiles."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import Axis, Index, Load, Reduce
from occ.compiler.ir.te.function import TeFunc, TeStage, certain_loads, position
from occ.compiler.ir.te.piecewise import parts
from occ.compiler.ir.te.roles import SQUARES, TURNED
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import replace_indices, transform, walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, Directives, parallel, row_tail, tasks
from occ.compiler.passes.schedule.rules.elementwise import across
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of, work
from occ.compiler.targets.machine import Machine

_RUN = 128  # bits of an operand's row that a square reads
_SHORTEST = 8  # elements of an axis that is cut into squares
_LEAST = 4  # elements of a side where larger ones leave a remainder


def transpose_tiles(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Transpositions: squares are read along the operand's rows, and transposed in registers by shuffles.

    16 bytes of as many rows as fill four vectors. They are stored as read, then in the order of the result by one
    vector of all elements, which LLVM turns into shuffles of whole registers. Where the result loads a column of what
    was read, each of its elements is moved alone.

    Squares go in blocks of a cache line by a cache line, in which lines of the result are completed first: rows a power
    of two of bytes apart share few places of a cache. Blocks, Sapphire Rapids: 25600x64 f32 2,650 --> 970 us, 1024x2048
    f32 3,450 --> 1,650, 2048x2048 f16 6,900 --> 3,000.

    Against squares of 4x4 elements, Zen 4, AVX-512: 3136x64 bytes 23 --> 8 us, f16 23 --> 12, f32 25600x64 880 --> 590,
    f64 3136x64 118 --> 77; AVX2: bytes 43 --> 24 us.

    `out[i, j] = p[j, i]` --> `squares[i, j] = p[j, i]  turned[i, j] = squares[i, j]  out[i, j] = turned[i, j]`
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
    sides = _sides(s, place, max(r.dtype.bits for r in squares), facts)
    out, level = _blocks(s, place, sides, facts)
    made = list(out.directives)
    for r in facts.inlined_into(s):
        if r.role in (SQUARES, TURNED):
            square = StageSchedule(r)
            row, column = square.axes[place], square.axes[-1]
            order = (row, column) if r.role == SQUARES else (column, row)
            order = (*order, *(x for x in reversed(square.axes) if x not in order))
            square.compute_at(s.name, level).reorder_storage(*order).reorder(*order)
            square.bound_extent(row, sides[0]).bound_extent(column, sides[1])
            if r.role == SQUARES:
                square.vectorize(row, sides[0]).unroll(column)
            else:
                square.vectorize(column).vectorize(row)
            made += square.directives
    return made


def _sides(s: TeStage, place: int, bits: int, facts: ScheduleFacts) -> tuple[int, int]:
    """Elements of a square along the axis `place`, in which an operand is read, and along the last axis."""
    block = block_side(s, facts.machine)

    def fitting(side: int, extent: Dim) -> int:
        """Halved until blocks are multiples; shorter axes too, if that takes no less than `_LEAST`."""
        while side > block or (isinstance(extent, int) and extent < block and side > _LEAST and extent % side):
            side //= 2
        return side

    wanted = max(_RUN // max(bits, 8), 2), facts.machine.vector_bits * 4 // _RUN
    return fitting(wanted[0], s.axes[place].extent), fitting(wanted[1], s.axes[-1].extent)


def _blocks(s: TeStage, place: int, sides: tuple[int, int], facts: ScheduleFacts) -> tuple[StageSchedule, Loop]:
    """Loops over blocks, squares and elements of a stage whose axis `place` is contiguous in an operand.

    Returns:
        The schedule, and the loop over the squares of a row.
    """
    out = StageSchedule(s)
    *outer, last = out.axes
    block = block_side(s, facts.machine)
    (rows, band, row), (columns, level, lane) = (
        _split(out, loop, axis.extent, side, block, facts)
        for loop, axis, side in ((outer[place], s.axes[place], sides[0]), (last, s.axes[-1], sides[1]))
    )
    outer[place] = rows or band
    inner = [level, *([band] if rows else []), *([columns] if columns else [])]
    out.reorder(lane, row, *inner, *reversed(outer)).vectorize(lane).unroll(row)
    counts = [tasks(a.extent, (block if rows else sides[0]) if k == place else 1) for k, a in enumerate(s.axes[:-1])]
    parallel(out, [*outer, INNERMOST], [*counts, 1], work(s, facts))
    return out, level


def _split(
    out: StageSchedule, loop: Loop, extent: Dim, side: int, block: int, facts: ScheduleFacts
) -> tuple[Loop | None, Loop, Loop]:
    """Loops over blocks, squares of a block, elements of a square; no blocks if all are less."""
    if extent < block if isinstance(extent, int) else not facts.full_tile:
        return None, *out.split(loop, side, row_tail(extent, side))
    blocks, within = out.split(loop, block, row_tail(extent, block) if isinstance(extent, int) else "ShiftInwards")
    return blocks, *out.split(within, side)


def block_side(s: TeStage, machine: Machine) -> int:
    """Elements of a cache line."""
    return machine.line * 8 // max(s.dtype.bits, 8)


def with_squares(s: TeStage, facts: ScheduleFacts, *, any_size: bool = False) -> list[TeStage]:
    """Inserts two stages for what an elementwise stage reads across rows: it is read along them, and turned.

    With `any_size` also if lengths are symbolic.

    `out[i, j] = p[j, i]` --> `squares[i, j] = p[j, i]`, `turned[i, j] = squares[i, j]`, `out[i, j] = turned[i, j]`
    """
    plain = s.axes and not facts.reductions(s) and not any(isinstance(n, Reduce) for n in walk(s.expr))
    name = across(s, facts) if plain else ""
    sides = [a.extent for a in s.axes if a.name in (name, s.axes[-1].name)]
    if not name or not all(n >= _SHORTEST if isinstance(n, int) else any_size for n in sides) or parts(s):
        return [s]
    certain = certain_loads(s.expr)
    made: dict[Load, list[TeStage]] = {}

    def read(n: object) -> Load | None:
        if not isinstance(n, Load) or n not in certain or across(replace(s, expr=n), facts) != name:
            return None
        if n not in made:
            square = _copied(s, n, f"q{len(made)}", SQUARES)
            turned = _copied(s, Load(square.name, position(s.axes), n.dtype), f"t{len(made)}", TURNED)
            made[n] = [square, turned]
        return Load(made[n][-1].name, position(s.axes), n.dtype)

    last = replace(s, expr=transform(s.expr, read))
    return [*chain(*made.values()), last]


def _copied(s: TeStage, n: Load, mark: str, role: str) -> TeStage:
    """A stage over the axes of `s` that holds what a load in `s` reads."""
    axes = tuple(Axis(f"{a.name}{mark}", a.extent) for a in s.axes)
    moved = replace_indices(n, {a.name: Index(b.name) for a, b in zip(s.axes, axes, strict=True)})
    return TeStage(f"{s.name}{mark}", axes, moved, s.note, role)
