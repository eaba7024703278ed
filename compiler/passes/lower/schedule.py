"""The pass `schedule`: attaches a schedule to every te function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from occ.compiler.ir.module import Module, nodes_of
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.te.roles import SUM_BLOCK
from occ.compiler.ir.te.schedule import Hint
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.lower.rule_list import BRIEF_VARIANTS, FINISHERS, NORMALISERS, RULES, VARIANTS
from occ.compiler.passes.rules.schedule_rule import Log, ScheduleRule
from occ.compiler.passes.schedule.apply import all_of, by_rules, first_of
from occ.compiler.passes.schedule.finish.disjoint_writes import without_overlaps
from occ.compiler.passes.schedule.finish.variant_conditions import name_conditions
from occ.compiler.passes.schedule.normalise.separate_reductions import separate_reductions
from occ.compiler.passes.schedule.rules.fallback import FALLBACK
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Schedule(Pass):
    """Chooses a schedule for each te function: the first rule of `rule_list.py` that applies.

    `te @f { acc[..] = sum[..](..)  out[..] = .. }` --> the same
    `with schedule by RULE { out.split(..)  acc.compute_at(..) }`
    """

    fallback: bool = False  # the fallback schedule for all kernels: the baseline of measurements
    split_overlaps: bool = False  # no two tasks write the same element, which a thread sanitizer would report
    variants: bool = True  # all variants for sizes known at run time, not BRIEF_VARIANTS alone

    name: ClassVar[str] = "schedule"

    def run(self, m: Module, ctx: Context) -> bool:
        hints = ctx.tune(m) if ctx.tune is not None else {}
        m.te |= {name: replace(m.te[name], hint=hint) for name, hint in hints.items()}
        log = Log() if ctx.schedule_log is None else ctx.schedule_log
        if log.keep:
            log.nodes |= nodes_of(m)
        variants = VARIANTS if self.variants else BRIEF_VARIANTS
        make = plain if self.fallback else partial(scheduled, rules=(*ctx.schedule_rules, *RULES), variants=variants)
        made = {name: make(f, ctx.machine, log) for name, f in m.te.items() if not f.halide}
        if self.split_overlaps:
            made = {name: without_overlaps(f) for name, f in made.items()}
        made = name_conditions(m, made)
        changed = [name for name, f in made.items() if f != m.te[name]]
        m.te |= made
        ctx.hits["schedule"] += len(changed)
        ctx.hits.update(log.fired)
        return bool(changed)


def scheduled(
    f: TeFunc,
    machine: Machine,
    log: Log | None = None,
    *,
    rules: Sequence[ScheduleRule] = RULES,
    variants: Sequence[ScheduleRule] = VARIANTS,
) -> TeFunc:
    """A te function with a schedule, its stages in the form that the schedule refers to.

    Args:
        f: the function; variants and long sums are left alone, as their stages exist already.
        machine: the CPU to schedule for.
        log: counts and times the rules that are tried.
        rules: for stages in memory and for whole functions.
        variants: rules for second schedules.
    """
    log = Log() if log is None else log
    if SUM_BLOCK in f.by_role or any(d.call == "specialize" for d in f.schedule):
        return f
    if f.hint:
        hint = Hint.parse(f.hint)
        machine = replace(machine, fixed_lanes=hint.vectorize, rows=hint.tile)
    f = all_of(NORMALISERS, f, machine, log)
    f = by_rules(rules, f, machine, log)
    f = first_of(variants, f, machine, log)
    return all_of(FINISHERS, f, machine, log)


def plain(f: TeFunc, machine: Machine, log: Log | None = None) -> TeFunc:
    """A te function with only the fallback schedule, the baseline of measurements."""
    log = Log() if log is None else log
    return by_rules((FALLBACK,), all_of((_SEPARATE,), f, machine, log), machine, log)


_SEPARATE = ScheduleRule.of(separate_reductions)
