"""Schedule rules as a list: each applies somewhere, and none only where an earlier one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import machines
import pytest
from test_passes import FILES, read

from occ.compiler.frontend.text import parse
from occ.compiler.ir.module import Module
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.lower.rule_list import NAMES, NORMALISERS, RULES
from occ.compiler.passes.lower.schedule import Schedule
from occ.compiler.passes.manager import Manager
from occ.compiler.passes.registry import parse_pipeline
from occ.compiler.passes.rules.schedule_rule import Log, ScheduleRule
from occ.compiler.passes.schedule.apply import all_of
from occ.compiler.passes.schedule.stage_facts import Part, facts_of
from occ.compiler.targets.machine import Machine
from occ.compiler.targets.registry import get_target


def texts() -> Iterator[tuple[Module, list[Pass], Context]]:
    """The texts of this folder that are scheduled, for each machine: what is before, the passes, and the context."""
    for file in FILES:
        _, how, text, _ = read(file)
        for name in how.machines:
            if isinstance((listed := parse_pipeline(how.passes))[-1], Schedule):
                yield parse(text), listed, Context(get_target(how.target), machines.named(name))


@cache
def fired() -> Counter[str]:
    """How often each rule applies in them as the pass runs."""
    hits = Counter[str]()
    for m, passes, ctx in texts():
        Manager().run(m, passes, ctx)
        hits += ctx.hits
    return hits


@cache
def parts() -> tuple[tuple[Part, Machine], ...]:
    """The candidates of rules in them: functions that end with one of their stages in memory."""
    found: list[tuple[Part, Machine]] = []
    for m, (*before, _), ctx in texts():
        Manager().run(m, before, ctx)
        for f in m.te.values():
            f = all_of(NORMALISERS, f, ctx.machine, Log())
            found += ((Part.of(f, s), ctx.machine) for s in facts_of(f, ctx.machine).roots)
    return tuple(found)


def taken_from(rule: ScheduleRule) -> Counter[str]:
    """The earlier rules that take what a rule would schedule as well."""
    found = Counter[str]()
    earlier = RULES[: RULES.index(rule)]
    for part, machine in parts():
        if isinstance(rule.apply(part, machine), TeFunc):
            found[next((r.name for r in earlier if isinstance(r.apply(part, machine), TeFunc)), "")] += 1
    return found


def test_each_step_of_scheduling_applies_in_some_text() -> None:
    assert [n for n in NAMES if not fired()[n]] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_no_rule_is_shadowed_by_earlier_ones(rule: ScheduleRule) -> None:
    """Where it applies there is a place that none of them takes."""
    taken = taken_from(rule)
    assert taken[""], f"what `{rule.name}` would schedule goes to {dict(taken)}"


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
