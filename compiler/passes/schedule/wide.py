"""A second schedule for small windows along rows of symbolic length, besides the one for any length: rows of a few elements more
are computed in whole tiles.
"""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.te.function import TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.schedule import AtMost, Directive
from occ.compiler.passes.schedule.depthwise import depthwise_planes
from occ.compiler.passes.schedule.facts import ScheduleFacts
from occ.compiler.passes.schedule.few import has_few, with_variant
from occ.compiler.passes.schedule.planes import lanes_along, planes
from occ.compiler.passes.schedule.product import packed_contraction
from occ.compiler.passes.schedule.window import window
from occ.compiler.targets.machine import Machine


def wide_rows(f: TeFunc, machine: Machine) -> TeFunc:
    """Depthwise convolutions and pools compute some neighbours at once, the last of which lie inwards where a row is no
    multiple of them; so rows must have as many. Where their length is symbolic a run decides.

    Zen 4, time over that of a fixed shape: 96 channels of 6x48, 5x5: 1.63 --> 0.86, 48 of 24x96, 3x3: 2.3 --> 1.1.
    """
    if has_few(f):
        return f
    facts = ScheduleFacts(f, machine)
    for s in facts.roots:
        if isinstance(s, TeStage) and _is_window(s, facts):
            tile = _together(s, f, machine)
            if tile > 1:
                test = AtMost(tile, s.axes[-2].extent)
                return with_variant(f, s, _mine(s, f, machine), test, lambda x, alone: _schedule(x, alone, machine))
    return f


def wide_planes(f: TeFunc, machine: Machine) -> TeFunc:
    """Where the length of the rows is symbolic, those that have a vector's worth take a schedule whose last vector lies
    inwards, so that none is partial; in shorter ones only columns are taken in vectors.

    Partial vectors are gathered element by element. 512 averages of 7x7, Zen 5: 72 --> 19 us.
    """
    if has_few(f):
        return f
    facts = ScheduleFacts(f, machine)
    for s in facts.roots:
        if not isinstance(s, TeStage) or not s.axes or isinstance(s.axes[-1].extent, int):
            continue
        rule = next((r for r in (depthwise_planes, planes) if r(s, facts) is not None), None)
        if rule is not None:
            (acc,) = facts.reductions(s)
            lanes = lanes_along(s, acc, machine)
            wide = lambda x, alone, rule=rule: rule(x, ScheduleFacts(alone, machine, wide=True))
            inside = _inside(s, facts)
            narrow = _rescheduled(f, s, inside, rule(s, ScheduleFacts(f, machine, narrow=True)) or [])
            return with_variant(narrow, s, inside, AtMost(lanes, s.axes[-1].extent), wide)
    return f


def _rescheduled(f: TeFunc, s: TeStage, inside: list[TeStage], made: list[Directive]) -> TeFunc:
    mine = {s.name, *(x.name for x in inside)}
    kept = [d for d in f.schedule if d.stage not in mine or (d.stage == s.name and d.call == "compute_root")]
    return replace(f, schedule=(*kept, *made))


def _is_window(s: TeStage, facts: ScheduleFacts) -> bool:
    sums = facts.reductions(s)
    symbolic = len(s.axes) > 1 and not isinstance(s.axes[-2].extent, int)
    small = len(sums) == 1 and all(isinstance(a.extent, int) for a in reduce_axes(sums[0].expr))
    return symbolic and small and packed_contraction(s, facts) is None and window(s, facts) is not None


def _schedule(s: TeStage, f: TeFunc, machine: Machine) -> list[Directive]:
    return window(s, ScheduleFacts(f, machine, wide=True)) or []


def _together(s: TeStage, f: TeFunc, machine: Machine) -> int:
    """Neighbours that this schedule computes together, or 0."""
    splits = (d.args for d in _schedule(s, f, machine) if d.call == "split" and d.stage == s.name)
    return next((n for axis, _, _, n, *_ in splits if axis == s.axes[-2].name and isinstance(n, int)), 0)


def _mine(s: TeStage, f: TeFunc, machine: Machine) -> list[TeStage]:
    """What this schedule computes in the loops of a stage: stages without memory, and a border that it places there; another one
    stays in memory, for both schedules.
    """
    facts = ScheduleFacts(f, machine)
    names = {x.name for x in facts.inlined_into(s)} | {d.stage for d in _schedule(s, f, machine)} - {s.name}
    return [x for x in f.stages if isinstance(x, TeStage) and x.name in names]


def _inside(s: TeStage, facts: ScheduleFacts) -> list[TeStage]:
    """What is computed in the loops of `s`."""
    names: set[str] = {s.name}
    for x in reversed(facts.f.stages):
        readers = {r.name for r in facts.f.stages if any(n.source == x.name for e in r.exprs for n in loads(e))}
        if readers and readers <= names:
            names.add(x.name)
    results = {r.name for r in facts.f.results}
    return [x for x in facts.f.stages if isinstance(x, TeStage) and x.name in names - {s.name} - results]
