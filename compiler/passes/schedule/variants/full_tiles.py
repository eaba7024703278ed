"""Variants for rows of symbolic length that have at least one full tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from occ.compiler.ir.dim import Dim, Func, minimum, terms_of
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.passes.rules.schedule_rule import Declined, made_by
from occ.compiler.passes.schedule.loops import Directives
from occ.compiler.passes.schedule.rules.depthwise_planes import (
    depthwise_loops,
    depthwise_planes,
    is_small_window,
    tile_of_planes,
)
from occ.compiler.passes.schedule.rules.packed_contraction import product_loops
from occ.compiler.passes.schedule.rules.planar_window import LONG_ROW, lanes_along, planar_loops, planar_window
from occ.compiler.passes.schedule.rules.window import SHORT_STRIP, column_sums, window, window_loops
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of
from occ.compiler.passes.schedule.variants.variant import with_variant
from occ.compiler.targets.machine import Machine

_PLANAR = {depthwise_planes.__name__: depthwise_loops, planar_window.__name__: planar_loops}


def full_tile_rows(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Windows with possibly long rows: a second schedule for rows of at least one tile of neighbours.

    Depthwise convolutions and pools compute several neighbours at once. If a row is not a multiple of them, the last
    group is shifted inwards; so rows must have at least that many. A symbolic length decides at run time.

    Zen 4, time over that of a fixed shape: 96 channels of 6x48, 5x5: 1.63 --> 0.86, 48 of 24x96, 3x3: 2.3 --> 1.1.
    """
    facts = facts_of(f, machine)
    for s in facts.roots:
        if isinstance(s, TeStage) and _rule_of(s, f) in (*_PLANAR, window.__name__) and _is_window(s, facts):
            tile = _together(s, f, machine)
            mine = _mine(s, f, machine)
            if tile > 1 and not _is_cut(s.axes[-2].extent) and _reads_memory(mine, s, f):
                test = AtMost(tile, s.axes[-2].extent)
                made = with_variant(f, s, mine, test, lambda x, alone: _wide(x, alone, machine))
                return Declined("rows are never that long") if made is f else made
    return Declined("it has no small window along rows of symbolic length whose neighbours are computed together")


def full_tile_planes(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Windows in planes with possibly long rows: a second schedule for rows of at least one vector.

    The last vector of such a row is shifted inwards, so that none is partial; in shorter rows only columns use vectors.

    Partial vectors are gathered element by element. 512 averages of 7x7, Zen 5: 72 --> 19 us.
    """
    facts = facts_of(f, machine)
    for s in facts.roots:
        loops = _PLANAR.get(_rule_of(s, f))
        if loops is not None and isinstance(s, TeStage) and not isinstance(s.axes[-1].extent, int):
            return _with_planes(f, s, loops, facts)
    return Declined("it has no window in planes whose rows are of symbolic length")


def _with_planes(f: TeFunc, s: TeStage, loops: Callable[..., Directives | Declined], facts: ScheduleFacts) -> TeFunc:
    """Variants for rows of at least half a vector, and for longer ones.

    Whole vectors are for large windows by channel, where a row has one, and for pools of long rows.
    """
    (acc,) = facts.reductions(s)
    machine, inside, made = facts.machine, _inside(s, facts), f
    is_depthwise = _rule_of(s, f) == depthwise_planes.__name__

    def test(full_vector: bool) -> AtMost:
        asked = replace(facts, full_vector=full_vector)
        if not is_depthwise:
            return AtMost(lanes_along(s, acc, asked) * (LONG_ROW if full_vector else 1), s.axes[-1].extent)
        tile = tile_of_planes(s, acc, asked)
        return AtMost(max(tile), minimum(s.axes[-1].extent, s.axes[-2].extent))  # one comparison for both sides

    kinds = (False,) if is_depthwise and is_small_window(acc) else (False, True)
    for asked, full_vector in {test(k): k for k in kinds}.items():  # of two that ask the same, the wider
        wide = lambda x, alone, full=full_vector: loops(
            x, ScheduleFacts(alone, machine, full_tile=True, full_vector=full)
        )
        made = with_variant(f, s, inside, asked, wide, onto=made, suffix="wide" if full_vector else "few")
    return made


def full_vectors(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Columns with possibly long rows: a second schedule for rows of at least one vector.

    The last vector of such a row starts before its end, so that none is partial, and nothing is read past the end.

    Long columns are summed in strips of several vectors, where there are as many. Means of 77 columns of 512 rows take
    half of the time, sums of 1,024 columns of 64 rows 33 --> 9.6 us (Zen 4).
    """
    facts = facts_of(f, machine)
    for s in facts.roots:
        if isinstance(s, TeStage) and _rule_of(s, f) == window.__name__ and (lanes := _guarded_lanes(s, f)):
            made = f
            for strips in (False, True):
                full = lambda x, alone, strips=strips: _columns(
                    x, ScheduleFacts(alone, machine, full_vector=True), strips
                )
                mine = _read_by(s, full(s, f), facts)
                test = AtMost(lanes * (SHORT_STRIP if strips else 1), s.axes[-1].extent)
                made = with_variant(f, s, mine, test, full, onto=made, suffix="wide" if strips else "few")
            return made
    return Declined("it has no columns of symbolic number that are reduced in vectors")


def _columns(s: AnyStage, facts: ScheduleFacts, strips: bool) -> Directives | Declined:
    if strips:
        return column_sums(s, facts) or Declined("it has no long columns")
    return window_loops(s, facts)


def _read_by(s: TeStage, directives: Directives | Declined, facts: ScheduleFacts) -> list[TeStage]:
    """Stages that a schedule of `s` computes in its loops."""
    placed = {d.stage for d in facts.f.schedule if d.call == "compute_at" and d.args[0] == s.name}
    placed |= set() if isinstance(directives, Declined) else {d.stage for d in directives} - {s.name}
    names = {x.name for x in facts.inlined_into(s)} | placed
    return [x for x in facts.f.stages if isinstance(x, TeStage) and x.name in names]


def _is_cut(rows: Dim) -> bool:
    """Whether rows are the smaller or larger of two numbers; Halide does not see then that a tile is full."""
    return any(isinstance(a, Func) and a.name in ("min", "max") for term, _ in terms_of(rows) for a, _ in term)


def _guarded_lanes(s: TeStage, f: TeFunc) -> int:
    """Elements of a vector along the last axis if the last vector of a row is guarded, or 0."""
    splits = (d.args for d in f.schedule if d.stage == s.name and d.call == "split")
    found = (n for axis, _, _, n, *tail in splits if axis == s.axes[-1].name and tail == ["GuardWithIf"])
    return next((n for n in found if isinstance(n, int)), 0)


def _rule_of(s: AnyStage, f: TeFunc) -> str:
    """The rule that scheduled a stage; empty for one computed in the loops of another."""
    placed = any(d.stage == s.name and d.call in ("compute_at", "compute_inline") for d in f.schedule)
    return "" if placed else made_by(f, s.name)


def _is_window(s: TeStage, facts: ScheduleFacts) -> bool:
    sums = facts.reductions(s)
    symbolic = len(s.axes) > 1 and not isinstance(s.axes[-2].extent, int)
    small = len(sums) == 1 and all(isinstance(a.extent, int) for a in reduce_axes(sums[0].expr))
    if not symbolic or not small or not isinstance(product_loops(s, facts), Declined):
        return False
    return not isinstance(window_loops(s, facts), Declined)


def _wide(s: TeStage, f: TeFunc, machine: Machine) -> Directives:
    made = window_loops(s, ScheduleFacts(f, machine, full_tile=True))
    return [] if isinstance(made, Declined) else made


def _together(s: TeStage, f: TeFunc, machine: Machine) -> int:
    """Neighbours that this schedule computes together, or 0."""
    splits = (d.args for d in _wide(s, f, machine) if d.call == "split" and d.stage == s.name)
    return next((n for axis, _, _, n, *_ in splits if axis == s.axes[-2].name and isinstance(n, int)), 0)


def _mine(s: TeStage, f: TeFunc, machine: Machine) -> list[TeStage]:
    """Stages that this variant computes in a stage's loops: inlined ones, and a border.

    Any other one stays in memory, for both schedules.
    """
    facts = facts_of(f, machine)
    names = {x.name for x in facts.inlined_into(s)} | {d.stage for d in _wide(s, f, machine)} - {s.name}
    return [x for x in f.stages if isinstance(x, TeStage) and x.name in names]


def _reads_memory(mine: list[TeStage], s: TeStage, f: TeFunc) -> bool:
    """Whether stages of a variant read no other stage that is computed in loops, such as sums down the columns."""
    placed = {d.stage for d in f.schedule if d.call == "compute_at"} - {x.name for x in (*mine, s)}
    return placed.isdisjoint(n.source for x in mine for n in loads(x.expr))


def _inside(s: TeStage, facts: ScheduleFacts) -> list[TeStage]:
    """Stages computed in the loops of `s`."""
    names: set[str] = {s.name}
    for x in reversed(facts.f.stages):
        readers = {r.name for r in facts.f.stages if any(n.source == x.name for e in r.exprs for n in loads(e))}
        if readers and readers <= names:
            names.add(x.name)
    results = {r.name for r in facts.f.results}
    return [x for x in facts.f.stages if isinstance(x, TeStage) and x.name in names - {s.name} - results]
