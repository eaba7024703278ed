"""Schedules of reductions that are in memory themselves."""

from __future__ import annotations

from occ.compiler.ir.te.expr import Reduce
from occ.compiler.ir.te.function import AnyStage, TeStage
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.schedule import Scheduler
from occ.compiler.passes.schedule.facts import ScheduleFacts, contiguous, element_bits
from occ.compiler.passes.schedule.loops import Directives, tasks

_REGISTERS = 16  # vectors that are computed together


def in_vectors(s: AnyStage, facts: ScheduleFacts) -> Directives | None:
    """A reduction that is in memory itself, as of a whole tensor in lanes: vectors along the last axis of its result.

    What is computed of the same elements, as the least and the greatest of them, is computed in one pass.
    """
    if not isinstance(s, TeStage) or not isinstance(s.expr, Reduce) or s.expr.kind not in COMBINE or not s.axes:
        return None
    last = s.axes[-1]
    lanes = facts.machine.lanes(max(element_bits(s), 32), last.extent)
    whole = isinstance(last.extent, int) and last.extent % lanes == 0
    if not whole or lanes < 4 or not contiguous(s, last.name, facts):
        return None
    vector, vectors = f"{last.name}i", f"{last.name}o"
    several = [a.name for a in s.axes[:-1] if isinstance(a.extent, int) and a.extent <= 2]
    loops = [a.name for a in (*s.axes[:-1], *s.expr.axes) if a.name not in several]
    start = Scheduler(s.name).vectorize(last.name, lanes)
    update = Scheduler(s.name, update=True).split(last.name, vectors, vector, lanes)
    if tasks(last.extent, lanes) > _REGISTERS:  # one vector after the other, each in a register
        reduced = [a.name for a in s.expr.axes if a.name not in several]
        others = [a.name for a in s.axes[:-1] if a.name not in several]
        update.reorder(vector, *several, *reversed(reduced), vectors, *reversed(others)).vectorize(vector)
    else:
        update.reorder(vector, vectors, *several, *reversed(loops)).vectorize(vector).unroll(vectors)
    for name in several:
        update.unroll(name)
    return [*start.directives, *update.directives]
