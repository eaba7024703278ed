"""The schedule of rows that are repeated, as by Tile."""

from __future__ import annotations

from math import prod

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import Binary, Const, Index, Load
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, TASKS, parallel, row_tail, tasks
from occ.compiler.passes.schedule.stage_facts import element_bits, facts_of, work
from occ.compiler.targets.machine import Machine


def repeated_rows(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Rows that are repeated: each goes to all its places while it is in cache.

    Zen 4, 1024x2048 f32 to 2048x4096: 3.5 --> 2.0 ms; 512x2040 to 512x8160: 1.9 --> 1.1.

    `out[i, j] = p[i % 4, j % 64]` --> for i in 4, for each of its places, for each of the places of j: 64 elements
    """
    facts = facts_of(f, machine)
    s = facts.root
    if not isinstance(s, TeStage) or not isinstance(s.expr, Load):
        return Declined("it does more than load")
    lengths = _lengths(s, s.expr)
    *counts, row = lengths.values() or [0]
    lanes = machine.lanes(element_bits(s))
    if not isinstance(row, int) or row < 2 * lanes or prod(map(tasks, counts)) < TASKS:
        return Declined("rows are short, few or of symbolic length, or not read in order")
    out = StageSchedule(s)
    repeats: list[Loop] = []
    within: list[Loop] = []
    for loop, a in zip(out.axes, s.axes, strict=True):
        length = lengths[a.name]
        if isinstance(length, int) and length != a.extent:
            repeat, loop = out.split(loop, length)
            repeats.append(repeat)
        within.append(loop)
    if not repeats:
        return Declined("it repeats nothing a whole number of times")
    *outer, last = within
    out.reorder(last, *reversed(repeats), *reversed(outer)).vectorize(last, lanes, row_tail(row, lanes))
    parallel(out, [*outer, INNERMOST], [*map(tasks, counts), 1], work(s, facts))
    return facts.scheduled(out.directives)


def _lengths(s: TeStage, read: Load) -> dict[str, Dim]:
    """By axis, its extent, or the period that divides it; none if the load has other positions than these."""
    lengths = {a.name: a.extent for a in s.axes}
    for i in read.index:
        if isinstance(i, Binary) and i.op == "mod" and isinstance(i.lhs, Index) and isinstance(i.rhs, Const):
            extent, period = lengths[i.lhs.name], int(i.rhs.value.real)
            if not isinstance(extent, int) or extent % period:
                return {}
            lengths[i.lhs.name] = period
        elif not isinstance(i, Index):
            return {}
    return lengths
