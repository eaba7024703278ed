"""Applies schedule rules: all normalisers, the first rule that matches, then variants and finishers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from occ.compiler.ir.te.function import AnyStage, TeFunc
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.passes.rules.schedule_rule import Log, ScheduleRule
from occ.compiler.passes.schedule.stage_facts import Part, facts_of
from occ.compiler.targets.machine import Machine


def all_of(rules: Iterable[ScheduleRule], f: TeFunc, machine: Machine, log: Log) -> TeFunc:
    """The function after all rules of a list, in order: for normalisers and finishers."""
    for rule in rules:
        f = log.ask(rule, f, machine) or f
    return f


def first_of(rules: Iterable[ScheduleRule], f: TeFunc, machine: Machine, log: Log) -> TeFunc:
    """The function after the first rule that applies, unchanged if none does: for variants."""
    return next((made for rule in rules if (made := log.ask(rule, f, machine)) is not None), f)


def by_rules(rules: Sequence[ScheduleRule], f: TeFunc, machine: Machine, log: Log) -> TeFunc:
    """Schedules each stage in memory by the first rule that applies, starting with the last stage.

    A rule may schedule other stages in memory inside these loops; a rule for whole functions leaves none to others.
    """
    placed: set[str] = set()
    roots = facts_of(f, machine).roots
    whole, f = f, replace(f, schedule=())
    for s in reversed(roots):
        if s.name in placed:
            continue
        part = Part.of(whole, s)
        asked = (r for r in rules if not r.whole or s is roots[-1])
        rule, made = next((r, made) for r in asked if (made := log.ask(r, part, machine)) is not None)
        f = _joined(f, s, made, rule)
        if rule.whole:
            break
        placed |= {d.stage for d in made.schedule if d.call in ("compute_at", "compute_inline")}
    return f


def _joined(f: TeFunc, s: AnyStage, made: TeFunc, rule: ScheduleRule) -> TeFunc:
    """The function with one part, which ends with a stage, replaced by a rule's result."""
    k = next(k for k, x in enumerate(f.stages) if x.name == s.name) + 1
    in_memory = any(r.name == s.name for r in f.results)
    root = () if in_memory else (Directive(s.name, "compute_root", rule=rule.name),)
    return replace(f, stages=(*made.stages, *f.stages[k:]), schedule=(*root, *made.schedule, *f.schedule))
