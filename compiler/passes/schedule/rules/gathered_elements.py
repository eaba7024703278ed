"""The schedule of gathers of single elements: positions in vectors, then loads one by one."""

from __future__ import annotations

from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.ir.te.roles import POSITIONS
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, parallel, row_tail, tasks, typical_tasks
from occ.compiler.passes.schedule.rules.elementwise import vectorise
from occ.compiler.passes.schedule.stage_facts import facts_of, work
from occ.compiler.targets.machine import Machine

_FEW = 16  # elements loaded in order without a loop
_BLOCK = 2048  # positions that are computed before their elements are loaded: 8 KB


def gathered_elements(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Gathers of single elements: a block of positions in vectors, then its elements one by one, a few unrolled.

    Sapphire Rapids, GatherElements of 64 rows of 1,024: 56 --> 34 us.
    """
    facts = facts_of(f, machine)
    s = facts.root
    read = {n.source for n in loads(*s.exprs)}
    found = [p for p in facts.roots if isinstance(p, TeStage) and p.role == POSITIONS and p.name in read]
    if not isinstance(s, TeStage) or len(found) != 1 or found[0].shape != s.shape:
        return Declined("it gathers no single elements")
    out = StageSchedule(s)
    *outer, x = out.axes
    extent = s.axes[-1].extent
    if isinstance(extent, int):
        groups, near = out.split(x, _FEW, row_tail(extent, _FEW))
        out.unroll(near)
        blocks, _ = out.split(groups, _BLOCK // _FEW, "GuardWithIf", root=x)
    else:  # unrolled loads would be tested one by one
        blocks, _ = out.split(x, _BLOCK, row_tail(extent, _BLOCK))
    counts = [*typical_tasks(s.axes[:-1]), tasks(extent, _BLOCK), 1]
    fused = parallel(out, [*outer, blocks, INNERMOST], counts, work(s, facts))
    positions = StageSchedule(found[0]).compute_at(s.name, fused.get(blocks, blocks))
    vectorise(positions, found[0], facts, outer=0)
    return facts.scheduled([*out.directives, *positions.directives])
