"""Schedule rules for CPUs, in order; the first that applies to a stage schedules it, and the last always applies.

A rule takes a stage that is computed into memory, and returns the directives for it and for the reductions that are
computed inside of its loops. Each has a module of its own, with what was measured.
"""

from __future__ import annotations

from collections.abc import Callable

from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.function import AnyStage, TeStage
from occ.compiler.ir.te.schedule import Scheduler
from occ.compiler.passes.schedule.depthwise import depthwise_planes
from occ.compiler.passes.schedule.elementwise import elementwise
from occ.compiler.passes.schedule.facts import (
    ScheduleFacts,
    work,
)
from occ.compiler.passes.schedule.folds import folds
from occ.compiler.passes.schedule.in_vectors import in_vectors
from occ.compiler.passes.schedule.loops import Directives, parallel, tasks
from occ.compiler.passes.schedule.planes import planes
from occ.compiler.passes.schedule.product import packed_contraction
from occ.compiler.passes.schedule.resample import resample
from occ.compiler.passes.schedule.rows import inside_rows
from occ.compiler.passes.schedule.transposed import transposed
from occ.compiler.passes.schedule.window import window

ScheduleRule = Callable[[AnyStage, ScheduleFacts], Directives | None]


def fallback(s: AnyStage, facts: ScheduleFacts) -> Directives | None:
    """Always legal: loops in order, reductions computed where they are read, the outermost loop in parallel."""
    out = Scheduler(s.name)
    made: Directives = []
    level = s.axes[-1].name if s.axes else ""
    for r in facts.reductions(s):
        made += (
            inside_rows(r, s.name, level, facts, len(s.axes)) if level else Scheduler(r.name).compute_root().directives
        )
    if isinstance(s, TeStage) and len(s.axes) > 1 and work(s, facts) >= SERIAL:
        parallel(out, [a.name for a in s.axes], [tasks(a.extent) for a in s.axes], work(s, facts))
    return [*out.directives, *made]


RULES: tuple[ScheduleRule, ...] = (
    folds, depthwise_planes, packed_contraction, planes, window, resample, transposed, elementwise, in_vectors, fallback,
)  # fmt: skip
