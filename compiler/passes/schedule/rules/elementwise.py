"""Schedules of stages without a reduction: elementwise work, copies, concatenations and transpositions."""

from __future__ import annotations

from math import gcd

from occ.compiler.ir.dim import is_multiple
from occ.compiler.ir.shape import nominal
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Axis, Binary, Const, Index, Load, Reduce, Select
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.parts import Part, parts
from occ.compiler.ir.te.roles import PAD
from occ.compiler.ir.te.schedule import Scheduler
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import Directives, parallel, row_tail, tasks, typical_tasks
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, element_bits, facts_of, work
from occ.compiler.targets.machine import Machine

_BLOCK = 4096  # elements of a symbolic number that are computed in one task


def elementwise(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Elementwise work, copies and concatenations: vectors along the innermost axis, the outermost in parallel."""
    facts = facts_of(f, machine)
    s = facts.root
    if not isinstance(s, TeStage) or facts.reductions(s) or any(isinstance(n, Reduce) for n in walk(s.expr)):
        return Declined("it reduces, or writes at computed positions")
    return facts.scheduled(_loops(s, facts))


def _loops(s: TeStage, facts: ScheduleFacts) -> Directives:
    out = Scheduler(s.name)
    if not s.axes:
        return []
    if pieces := _pieces(s):
        return _in_pieces(out, s, pieces, facts)
    if found := _parts(s, facts):
        return _in_parts(s, found, facts)
    if rows := across(s, facts):
        return _in_squares(out, s, rows, facts)
    if len(s.axes) == 1 and work(s, facts) >= SERIAL:
        return _in_blocks(out, s.axes[0], facts.machine.lanes(element_bits(s)))
    vectorise(out, s, facts, outer=0)
    parallel(out, [a.name for a in s.axes[:-1]] + ["_"], typical_tasks(s.axes), work(s, facts))
    return out.directives


def _in_blocks(out: Scheduler, axis: Axis, lanes: int) -> Directives:
    """Blocks of a long axis in parallel, each in vectors.

    Where the extent is symbolic the blocks are of whole vectors: the loop in a block ends with the last vector that has
    elements, however few there are. A guard around single elements is one around each lane, which no loop ends at.
    """
    name, extent = axis.name, axis.extent
    if isinstance(extent, int):
        block = max(1024, min(16384, -(-extent // 8)))
        out.split(name, f"{name}o", f"{name}i", block, row_tail(extent, block)).vectorize(f"{name}i", lanes)
    else:
        out.split(name, f"{name}v", f"{name}l", lanes, row_tail(extent, lanes)).vectorize(f"{name}l")
        out.split(f"{name}v", f"{name}o", f"{name}i", _BLOCK // lanes, row_tail(extent, _BLOCK))
    return out.parallel(f"{name}o").directives


def _pieces(s: TeStage) -> int:
    """Length of the pieces of the last axis between the places where the expression changes (Concat), or 0."""
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


def _in_pieces(out: Scheduler, s: TeStage, piece: int, facts: ScheduleFacts) -> Directives:
    """One piece after the other, unrolled: in each of them it is known where the elements come from."""
    *outer, last = (a.name for a in s.axes)
    out.split(last, f"{last}o", f"{last}i", piece)
    out.reorder(f"{last}i", f"{last}o", *reversed(outer)).unroll(f"{last}o")
    lanes = facts.machine.lanes(element_bits(s), piece)
    out.vectorize(f"{last}i", lanes, row_tail(piece, lanes))
    parallel(out, [*outer, "_"], typical_tasks(s.axes), work(s, facts))
    return out.directives


def _parts(s: TeStage, facts: ScheduleFacts) -> tuple[Part, ...]:
    """The parts in which a stage is computed one after the other; none where a border alone is tested, which loops are cut at, or
    rows, or most of the parts, are shorter than vectors.
    """
    extent, lanes = s.axes[-1].extent, facts.machine.lanes(element_bits(s))
    if lanes > facts.machine.lanes(element_bits(s), extent) or (s.role == PAD and isinstance(s.expr, Select)):
        return ()
    found = parts(s)
    return found if len(found) * lanes <= 2 * nominal(extent) else ()


def _in_parts(s: TeStage, found: tuple[Part, ...], facts: ScheduleFacts) -> Directives:
    """Each part in vectors of its own, whatever its length. Zen 5, 512 rows of 33, 7 and 100 elements: 106 --> 14 us;
    1,792 of two times 56, symbolic: 198 --> 32 us.
    """
    *outer, last = s.axes
    made = list(Scheduler(s.name).in_parts(last.name).directives)
    for k, part in enumerate(found, 1):
        out = Scheduler(s.name, update=k)
        lanes, inner = facts.machine.lanes(element_bits(s), part.extent), last.name
        if not outer and work(s, facts) >= SERIAL:
            inner = f"{last.name}i"
            out.split(last.name, f"{last.name}o", inner, _BLOCK, "GuardWithIf").parallel(f"{last.name}o")
        if lanes > 1:
            out.vectorize(inner, lanes, "Auto" if is_multiple(part.extent, lanes) and outer else "GuardWithIf")
        parallel(
            out, [*(a.name for a in outer), "_"], [*(tasks(a.extent) for a in outer), 1], work(s, facts) if outer else 0
        )
        made += out.directives
    return made


def across(s: TeStage, facts: ScheduleFacts) -> str:
    """The axis along which a load is contiguous that is not along the last one (a transposition), or nothing."""
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


def _in_squares(out: Scheduler, s: TeStage, across: str, facts: ScheduleFacts) -> Directives:
    """Squares of a cache line by a cache line, so that what is read across stays in cache until it is used up."""
    sizes = {a.name: a.extent for a in s.axes}
    last = s.axes[-1].name
    lanes = facts.machine.lanes(max(element_bits(s), 32), sizes[last])
    if lanes < 2:
        return []
    if sizes[last] == lanes <= 4 and isinstance(sizes[across], int):
        return _interleaved(out, s, across, facts)
    for name, width in ((last, lanes), (across, 16)):
        tail = row_tail(sizes[name], width)
        out.split(name, f"{name}o", f"{name}i", width, tail)
    outer = [f"{a.name}o" if a.name == across else a.name for a in s.axes[:-1]]
    out.reorder(f"{last}i", f"{across}i", f"{last}o", *reversed(outer)).vectorize(f"{last}i")
    counts = [tasks(a.extent, 16 if a.name == across else 1) for a in s.axes[:-1]]
    parallel(out, [*outer, "_"], [*counts, 1], work(s, facts))
    return out.directives


def _interleaved(out: Scheduler, s: TeStage, across: str, facts: ScheduleFacts) -> Directives:
    """Vectors along the axis that is contiguous in memory; the last one, of two or four elements, interleaves them."""
    *outer, last = (a.name for a in s.axes)
    extent = next(a.extent for a in s.axes if a.name == across)
    lanes = facts.machine.lanes(max(element_bits(s), 32), extent)
    out.split(across, f"{across}o", f"{across}i", lanes, row_tail(extent, lanes))
    loops = [f"{a}o" if a == across else a for a in outer]
    out.reorder(last, f"{across}i", *reversed(loops)).unroll(last).vectorize(f"{across}i")
    counts = [tasks(a.extent, lanes if a.name == across else 1) for a in s.axes[:-1]]
    parallel(out, [*loops, "_"], [*counts, 1], work(s, facts))
    return out.directives


def vectorise(out: Scheduler, s: TeStage, facts: ScheduleFacts, *, outer: int) -> None:
    """Vectors along the last axis, if it is not one of the `outer` first and long enough."""
    if len(s.axes) <= outer:
        return
    last = s.axes[-1]
    lanes = facts.machine.lanes(element_bits(s), last.extent)
    if lanes > 1:
        tail = row_tail(last.extent, lanes)
        out.vectorize(last.name, lanes, tail)
