"""The fallback schedule, which always applies: plain loops."""

from __future__ import annotations

from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.passes.rules.schedule_rule import Declined, ScheduleRule
from occ.compiler.passes.schedule.loops import Directives, parallel, tasks
from occ.compiler.passes.schedule.rules.fused_rows import inside_rows
from occ.compiler.passes.schedule.stage_facts import facts_of, work
from occ.compiler.targets.machine import Machine


def fallback(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Anything else: plain loops in order, reductions computed where they are read, the outermost loop in parallel."""
    facts = facts_of(f, machine)
    s = facts.root
    out = StageSchedule(s)
    made: Directives = []
    for r in facts.reductions(s):
        if out.axes:
            made += inside_rows(r, s.name, out.axes[-1], facts, len(s.axes))
        else:
            made += StageSchedule(r).compute_root().directives
    if isinstance(s, TeStage) and len(s.axes) > 1 and work(s, facts) >= SERIAL:
        parallel(out, out.axes, [tasks(a.extent) for a in s.axes], work(s, facts))
    return facts.scheduled([*out.directives, *made])


FALLBACK = ScheduleRule.of(fallback)
