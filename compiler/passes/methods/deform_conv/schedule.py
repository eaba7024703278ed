"""The schedule of deformable convolutions: sampling tables per pixel, then vectors along the channels."""

from __future__ import annotations

from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.roles import SAMPLES
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import parallel, tasks
from occ.compiler.passes.schedule.rules.elementwise import vectorise
from occ.compiler.passes.schedule.rules.fused_rows import inside_rows
from occ.compiler.passes.schedule.stage_facts import facts_of, work
from occ.compiler.targets.machine import Machine


def deform_conv(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Samples of a deformable convolution: positions and weights of a pixel's taps, then vectors of channels.

    Zen 5, DCNv2 block of 64 channels of 56 by 56, nine taps: 2.5 ms; 2.9 with symbolic extents. With a table per tap it
    takes 2.5 and 11.2 ms, since a tap's table is not known to be small in a loop of fused symbolic axes.
    """
    facts = facts_of(f, machine)
    s = facts.root
    tables = [r for r in facts.roots if r is not s and isinstance(r, TeStage)]
    depth = len(tables[0].axes) - 1 if tables else 0
    if not isinstance(s, TeStage) or s.role != SAMPLES or depth < 1 or len(tables) != len(facts.roots) - 1:
        return Declined("it is not a sum of samples of a deformable convolution")
    out = StageSchedule(s)
    loops = out.axes[:depth]
    vectorise(out, s, facts, outer=depth)
    fused = parallel(out, loops, [tasks(a.extent) for a in s.axes[:depth]], work(s, facts))
    made = list(out.directives)
    for r in tables:
        made += inside_rows(r, s.name, fused.get(loops[-1], loops[-1]), facts, depth)
    return facts.scheduled(made)
