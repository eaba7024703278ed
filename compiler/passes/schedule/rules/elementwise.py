"""The schedule of elementwise work, copies and concatenations."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from occ.compiler.ir.dim import Dim, Sym, cases, is_multiple, upper
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Binary, Const, Index, Load, Reduce, Select
from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.piecewise import Part, along, parts
from occ.compiler.ir.te.roles import PAD
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, TASKS, Directives, parallel, row_tail, tasks, typical_tasks
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, element_bits, facts_of, rows_of_task, work
from occ.compiler.targets.machine import Machine

_FEW = 16  # elements read in order without a loop
_SHORT = 4  # elements of a part that are written out, as a border is
_BLOCK = 4096  # elements per task if their number is symbolic


def elementwise(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Elementwise work, copies and concatenations: vectors along the innermost axis, the outermost in parallel."""
    facts = facts_of(f, machine)
    s = facts.root
    if not isinstance(s, TeStage) or facts.reductions(s) or any(isinstance(n, Reduce) for n in walk(s.expr)):
        return Declined("it reduces, or writes at computed positions")
    return facts.scheduled(_loops(s, facts))


def _loops(s: TeStage, facts: ScheduleFacts) -> Directives:
    out = StageSchedule(s)
    if not s.axes:
        return []
    if pieces := _pieces(s):
        return _in_pieces(out, s, pieces, facts)
    if found := _parts(s, facts):
        return _in_parts(s, found, facts)
    if joined := next(_joined(s, facts), None):
        return _one_after_the_other(s, *joined, facts)
    if rows := across(s, facts):
        return _in_squares(out, s, rows, facts)
    if _looks_up(s):
        return _by_elements(out, s, facts)
    if len(s.axes) == 1 and work(s, facts) >= SERIAL:
        return _in_blocks(out, s.axes[0].extent, facts.machine.lanes(element_bits(s)))
    vectorise(out, s, facts, outer=0)
    if len(s.axes) == 2 and work(s, facts) >= SERIAL and (rows := rows_of_task(s, _BLOCK)) > 1:
        return out.parallel(out.split(out.axes[0], rows, "GuardWithIf")[0]).directives
    parallel(out, [*out.axes[:-1], INNERMOST], typical_tasks(s.axes), work(s, facts))
    return out.directives


def _looks_up(s: TeStage) -> bool:
    """Whether a stage only gathers elements of less than 32 bits, each at a data-dependent position of its own."""
    e, last = s.expr, Index(s.axes[-1].name)
    return (
        isinstance(e, Load)
        and e.dtype.bits < 32
        and any(isinstance(n, Load) and last in walk(n) for i in e.index for n in walk(i))
    )


def _by_elements(out: StageSchedule, s: TeStage, facts: ScheduleFacts) -> Directives:
    """Element by element, a few unrolled: no processor gathers bytes into vectors.

    Sapphire Rapids, 2 million codes through a table of 256: 1,060 --> 480 us.
    """
    *outer, x = out.axes
    extent = s.axes[-1].extent
    if isinstance(extent, int) and extent < _FEW:
        parallel(out, out.axes, typical_tasks(s.axes), work(s, facts))
        return out.directives
    groups, near = out.split(x, _FEW, row_tail(extent, _FEW))
    out.unroll(near)
    blocks, _ = out.split(groups, _BLOCK // _FEW, "GuardWithIf", root=x)
    counts = [*typical_tasks(s.axes[:-1]), tasks(extent, _BLOCK), 1]
    parallel(out, [*outer, blocks, INNERMOST], counts, work(s, facts))
    return out.directives


def _in_blocks(out: StageSchedule, extent: Dim, lanes: int) -> Directives:
    """Blocks of a long axis in parallel, each vectorised.

    If the extent is symbolic, the blocks are whole vectors: a block's loop ends with the last vector that has elements,
    however few. A guard on single elements would be one per lane, which ends no loop.
    """
    (x,) = out.axes
    if isinstance(extent, int):
        block = max(1024, min(16384, -(-extent // 8)))
        blocks, within = out.split(x, block, row_tail(extent, block))
        out.vectorize(within, lanes)
    else:
        vectors, lane = out.split(x, lanes, row_tail(extent, lanes), "vl")
        out.vectorize(lane)
        blocks, _ = out.split(vectors, _BLOCK // lanes, row_tail(extent, _BLOCK), root=x)
    return out.parallel(blocks).directives


def _pieces(s: TeStage) -> int:
    """Length of the pieces of the last axis between points where the expression changes (Concat), or 0."""
    last = s.axes[-1]
    marks = [
        n.rhs.value
        for n in walk(s.expr)
        if isinstance(n, Binary) and n.op == "lt" and n.lhs == Index(last.name) and isinstance(n.rhs, Const)
    ]
    if not marks or not isinstance(last.extent, int):
        return 0
    piece = gcd(last.extent, *(int(m) for m in marks))  # pyright: ignore[reportArgumentType]
    return piece if piece >= 8 and last.extent // piece <= 32 else 0


def _in_pieces(out: StageSchedule, s: TeStage, piece: int, facts: ScheduleFacts) -> Directives:
    """One piece after the other, unrolled: within each, the source of the elements is known."""
    *outer, last = out.axes
    pieces, within = out.split(last, piece)
    out.reorder(within, pieces, *reversed(outer)).unroll(pieces)
    lanes = facts.machine.lanes(element_bits(s), piece)
    out.vectorize(within, lanes, row_tail(piece, lanes))
    parallel(out, [*outer, INNERMOST], typical_tasks(s.axes), work(s, facts))
    return out.directives


def _parts(s: TeStage, facts: ScheduleFacts) -> tuple[Part, ...]:
    """The parts in which a stage is computed in order.

    None if only a border of known extent is tested, at which loops are split, or if rows or most parts are no vector.
    """
    extent, lanes = s.axes[-1].extent, facts.machine.lanes(element_bits(s))
    if lanes > facts.machine.lanes(element_bits(s), extent) or (
        isinstance(extent, int) and s.role == PAD and isinstance(s.expr, Select)
    ):
        return ()
    found = parts(s)
    return found if _apart(found) and len(found) * lanes <= 2 * nominal(extent) else ()


def _in_parts(s: TeStage, found: tuple[Part, ...], facts: ScheduleFacts) -> Directives:
    """Vectorises each part separately, whatever its length.

    Zen 5, 512 rows of 33, 7 and 100 elements: 106 --> 14 us; 1,792 of two times 56, symbolic: 198 --> 32 us. Borders of
    three, whose positions are computed in the run, written out: 83 --> 54 us (Zen 4, 64 planes of 56x56).
    """
    start = StageSchedule(s)
    made = list(start.in_parts(start.axes[-1]).directives)
    for k, part in enumerate(found, 1):
        out = StageSchedule(s, update=k)
        *outer, inner = out.axes
        lanes = facts.machine.lanes(element_bits(s), part.extent)
        if _divides(part, s) or (not outer and not is_multiple(part.extent, lanes) and _runs_backwards(part, s, facts)):
            lanes = 1
        if not outer and work(s, facts) >= SERIAL:
            blocks, inner = out.split(inner, _BLOCK, "GuardWithIf")
            out.parallel(blocks)
        if outer and isinstance(part.extent, int) and part.extent <= _SHORT:
            out.unroll(inner)
        elif lanes > 1:
            out.vectorize(inner, lanes, "Auto" if is_multiple(part.extent, lanes) and outer else "GuardWithIf")
        parallel(out, [*outer, INNERMOST], [*(tasks(a.extent) for a in s.axes[:-1]), 1], work(s, facts) if outer else 0)
        made += out.directives
    return made


def _joined(s: TeStage, facts: ScheduleFacts) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """The axes other than the last along which tensors are read one after another, as by Concat, and their parts."""
    if facts.machine.lanes(element_bits(s)) > nominal(s.axes[-1].extent):
        return
    choices = [n for n in walk(s.expr) if isinstance(n, Select) and loads(n.then) and loads(n.other)]
    chosen = {i.name for n in choices for i in walk(n.cond) if isinstance(i, Index)}
    for a in s.axes[:-1]:
        if a.name in chosen and _apart(found := parts(along(s, a.name))):
            yield a.name, found


def _apart(found: tuple[Part, ...]) -> bool:
    """Whether there are parts, and Halide proves that none writes a place twice.

    It does not where one begins at the least or largest of two sizes.
    """
    return bool(found) and not any(isinstance(p.start, Sym) and cases(p.start) for p in found)


def _one_after_the_other(s: TeStage, axis: str, found: tuple[Part, ...], facts: ScheduleFacts) -> Directives:
    """A loop for each part of an axis other than the last.

    A select in vectors loads both of its sides.

    Zen 4, two of 64x3136 f32: 53 --> 38 us.
    """
    start = StageSchedule(s)
    made = list(start.in_parts(start.loop(axis)).directives)
    before = s.axes[: next(k for k, a in enumerate(s.axes) if a.name == axis)]
    counts = typical_tasks(before)
    for k, part in enumerate(found, 1):
        out = StageSchedule(s, update=k)
        *outer, last = out.axes
        out.reorder(last, *reversed(outer))
        vectorise(out, s, facts, outer=0)
        if prod(max(n, 1) for n in counts) >= TASKS:
            parallel(out, [*map(out.loop, (a.name for a in before)), INNERMOST], [*counts, 1], work(s, facts))
        else:
            parallel(out, [out.loop(axis), INNERMOST], [tasks(part.extent), 1], work(s, facts))
        made += out.directives
    return made


def _divides(part: Part, s: TeStage) -> bool:
    """Whether a part divides its position, as a reflected border does. No processor divides vectors of integers.

    Eight planes of 32x32, reflected by numbers of a run: 49 --> 23 us (Zen 4).
    """
    last = Index(s.axes[-1].name)
    divisions = (n for n in walk(part.expr) if isinstance(n, Binary) and n.op in ("mod", "floordiv"))
    return any(last in walk(n.lhs) for n in divisions)


def _runs_backwards(part: Part, s: TeStage, facts: ScheduleFacts) -> bool:
    """Whether a part reads a tensor from its end, as a reflected border does.

    Halide takes what the last vector would read past the end of the part for what is read, and refuses the kernel.
    """
    symbols, last = axis_symbols(s.axes), s.axes[-1].name
    steps = (step(n, last, symbols, facts.f.shapes) for n in walk(part.expr) if isinstance(n, Load))
    return any(k is not None and upper(k) < 0 for k in steps)


def across(s: TeStage, facts: ScheduleFacts) -> str:
    """The axis along which a load other than the last axis's is contiguous (a transposition), or nothing."""
    symbols = axis_symbols(s.axes)
    for n in walk(s.expr):
        if not isinstance(n, Load) or n.source not in {p.name for p in facts.f.params}:
            continue
        if step(n, s.axes[-1].name, symbols, facts.f.shapes) in (0, 1, None):
            continue
        for a in s.axes[:-1]:
            if step(n, a.name, symbols, facts.f.shapes) == 1 and nominal(a.extent) >= 16:
                return a.name
    return ""


def _in_squares(out: StageSchedule, s: TeStage, across: str, facts: ScheduleFacts) -> Directives:
    """Tiles of a cache line by a cache line, so that strided reads stay in cache."""
    *outer, last = out.axes
    place, extent = outer.index(Loop(across)), s.axes[-1].extent
    length = s.axes[place].extent
    lanes = facts.machine.lanes(max(element_bits(s), 32), extent)
    if lanes < 2:
        return []
    if extent == lanes <= 4 and isinstance(length, int):
        return _interleaved(out, s, place, facts)
    vectors, lane = out.split(last, lanes, row_tail(extent, lanes))
    outer[place], row = out.split(outer[place], 16, row_tail(length, 16))
    out.reorder(lane, row, vectors, *reversed(outer)).vectorize(lane)
    counts = [tasks(a.extent, 16 if k == place else 1) for k, a in enumerate(s.axes[:-1])]
    parallel(out, [*outer, INNERMOST], [*counts, 1], work(s, facts))
    return out.directives


def _interleaved(out: StageSchedule, s: TeStage, place: int, facts: ScheduleFacts) -> Directives:
    """Vectors along the axis that is contiguous in memory; the last axis, of two or four elements, interleaves them."""
    (*loops, last), extent = out.axes, s.axes[place].extent
    lanes = facts.machine.lanes(max(element_bits(s), 32), extent)
    loops[place], lane = out.split(loops[place], lanes, row_tail(extent, lanes))
    out.reorder(last, lane, *reversed(loops)).unroll(last).vectorize(lane)
    counts = [tasks(a.extent, lanes if k == place else 1) for k, a in enumerate(s.axes[:-1])]
    parallel(out, [*loops, INNERMOST], [*counts, 1], work(s, facts))
    return out.directives


def vectorise(out: StageSchedule, s: TeStage, facts: ScheduleFacts, *, outer: int) -> None:
    """Vectors along the last axis, if it is long enough and not one of the first `outer` axes."""
    if len(s.axes) <= outer:
        return
    last = s.axes[-1]
    lanes = facts.machine.lanes(element_bits(s), last.extent)
    if lanes > 1:
        tail = row_tail(last.extent, lanes)
        if tail == "ShiftInwards" and (out.number or _by_blocks(s, lanes, facts)):
            # An update writes each element once; shifted, the last vector would be in two blocks, and all taken apart.
            tail = "GuardWithIf"
        out.vectorize(out.axes[-1], lanes, tail)


def _by_blocks(s: TeStage, lanes: int, facts: ScheduleFacts) -> bool:
    """Whether a stage reads one element for each block of its last axis; blocks are whole vectors."""
    for r in (s, *facts.inlined_into(s)):
        if not r.axes or r.axes[-1].extent != s.axes[-1].extent:
            continue
        last = Index(r.axes[-1].name)
        for b in (b for n in walk(r.expr) if isinstance(n, Load) for i in n.index for b in walk(i)):
            if isinstance(b, Binary) and (b.op, b.lhs) == ("div", last) and isinstance(b.rhs, Const):
                return int(b.rhs.value.real) % lanes == 0
    return False
