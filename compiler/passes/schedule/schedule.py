"""Attaches a schedule to every te function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from occ.compiler.ir.module import Module
from occ.compiler.ir.shape import nominal, nominal_count
from occ.compiler.ir.te.expr import Index, Load, Reduce, minimum, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import SUM_BLOCK
from occ.compiler.ir.te.schedule import Directive, Hint, Scheduler
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.schedule.attention import attention, clamped_rows
from occ.compiler.passes.schedule.block_products import block_product, parts_of
from occ.compiler.passes.schedule.facts import ScheduleFacts, contraction, element_bits, extent_of
from occ.compiler.passes.schedule.few import few_rows, has_few
from occ.compiler.passes.schedule.few_queries import few_queries, fixed_queries
from occ.compiler.passes.schedule.long_sums import long_sums
from occ.compiler.passes.schedule.named_tests import name_tests
from occ.compiler.passes.schedule.overlap import without_overlaps
from occ.compiler.passes.schedule.panels import in_columns
from occ.compiler.passes.schedule.rows import rows
from occ.compiler.passes.schedule.rules import RULES, ScheduleRule, fallback
from occ.compiler.passes.schedule.samples import samples
from occ.compiler.passes.schedule.strassen import strassen
from occ.compiler.passes.schedule.transposed import with_squares
from occ.compiler.passes.schedule.wide import wide_planes, wide_rows
from occ.compiler.passes.schedule.widen import widened
from occ.compiler.passes.schedule.winograd import winograd
from occ.compiler.passes.te.columns import columns_first
from occ.compiler.passes.te.lanes import in_lanes, separate, two_passes
from occ.compiler.targets.machine import Machine

_LONG = 4096  # elements of a tensor that is reduced as a whole


@dataclass(frozen=True)
class Schedule(Pass):
    """Chooses a schedule for each te function: the rules of `rules.py` in order, the first that applies.

    `te @f { acc[..] = sum[..](..)  out[..] = .. }` --> the same `with schedule { out.split(..)  acc.compute_at(..) }`
    """

    fallback: bool = False  # plain loops for all kernels: the baseline of measurements
    apart: bool = False  # no two tasks write the same element, which a thread sanitizer would report

    name: ClassVar[str] = "schedule"

    def run(self, m: Module, ctx: Context) -> bool:
        make = plain if self.fallback else scheduled
        hints = ctx.tune(m) if ctx.tune is not None else {}
        m.te |= {name: replace(m.te[name], hint=hint) for name, hint in hints.items()}
        fired = Counter[str]()
        made = {name: make(f, ctx.machine, fired) for name, f in m.te.items() if not f.halide}
        if self.apart:
            made = {name: without_overlaps(f) for name, f in made.items()}
        made = name_tests(m, made)
        changed = [name for name, f in made.items() if f != m.te[name]]
        m.te |= made
        ctx.hits["schedule"] += len(changed)
        ctx.hits.update(fired)
        return bool(changed)


def scheduled(f: TeFunc, machine: Machine, fired: Counter[str] | None = None) -> TeFunc:
    """A te function with a schedule, its reductions in the form that the schedule takes hold of, and long sums in blocks.

    Args:
        f: the function.
        machine: that it is scheduled for.
        fired: counts the rules that apply, by name (`NAMES`).
    """
    if SUM_BLOCK in f.by_role:
        return f  # it has its schedule
    return long_sums(_scheduled(f, machine, Counter() if fired is None else fired))


def _scheduled(f: TeFunc, machine: Machine, fired: Counter[str]) -> TeFunc:
    if f.hint:
        hint = Hint.parse(f.hint)
        machine = replace(machine, fixed_lanes=hint.vectorize, rows=hint.tile)
    if not machine.sums_neighbours and parts_of(f) is not None:
        return plain(f, machine, fired)  # in vectors Halide 21 fails an assertion of LLVM, or computes something else
    if (made := block_product(f, machine)) is not None:
        fired["block_product"] += 1
        return made
    if has_few(f):
        return f
    f = in_columns(two_passes(separate(f)), machine)
    f = clamped_rows(widened(_lanes(columns_first(f), machine)))
    if (made := fixed_queries(f, machine)) is not None:
        fired["fixed_queries"] += 1
        return made
    facts = ScheduleFacts(f, machine)
    last = facts.roots[-1]
    for whole in _WHOLE:
        if (made := whole(facts)) is not None:
            fired[whole.__name__] += 1
            return few_queries(replace(f, schedule=tuple(made)), machine)
    if (by_rows := rows(last, facts)) is not None:
        fired[rows.__name__] += 1
        return replace(f, schedule=tuple(by_rows))
    facts = ScheduleFacts(with_squares(f, machine), machine)
    tiled = few_rows(by_rules := _by_rules(facts, RULES, fired), machine)
    fired[few_rows.__name__] += tiled is not by_rules
    long = wide_planes(tiled, machine)
    fired[wide_planes.__name__] += long is not tiled
    both = wide_rows(long, machine)
    fired[wide_rows.__name__] += both is not long
    return _clamp_rows(both)


_WHOLE = (winograd, strassen, attention, samples)  # of a whole function
NAMES = (
    "block_product",
    "fixed_queries",
    *(r.__name__ for r in (*_WHOLE, rows, few_rows, wide_planes, wide_rows, *RULES)),
)


def plain(f: TeFunc, machine: Machine, fired: Counter[str] | None = None) -> TeFunc:
    """A te function with the schedule that always applies and nothing else: what measurements take for their baseline."""
    return _by_rules(ScheduleFacts(separate(f), machine), (fallback,), Counter() if fired is None else fired)


def _by_rules(facts: ScheduleFacts, rules: Sequence[ScheduleRule], fired: Counter[str]) -> TeFunc:
    """The function with each stage in memory scheduled by the first rule that applies to it."""
    f = facts.f
    parts: list[list[Directive]] = []
    results = {r.name for r in f.results}
    placed: set[str] = set()  # stages that the rule of a reader computes in its loops
    for s in reversed(facts.roots):
        if s.name in placed:
            continue
        rule, made = next((rule, made) for rule in rules if (made := rule(s, facts)) is not None)
        fired[rule.__name__] += 1
        placed |= {d.stage for d in made if d.call in ("compute_at", "compute_inline")}
        root = [] if s.name in results else Scheduler(s.name).compute_root().directives
        parts.append([*root, *made])
    return replace(f, schedule=tuple(d for part in reversed(parts) for d in part))


def _lanes(f: TeFunc, machine: Machine) -> TeFunc:
    """Reductions along their contiguous axis, which vectors along the result cannot do, in lanes."""
    stages: list[AnyStage] = []
    for s in f.stages:
        if isinstance(s, TeStage) and _wants_lanes(s, f) and isinstance(s.expr, Reduce):
            # One vector after the other would wait for the one before: sums of a whole tensor take four at a time.
            several = 4 if nominal_count(s.shape) <= 2 and nominal(s.expr.axes[-1].extent) >= _LONG else 1
            stages += in_lanes(s, machine.lanes(max(element_bits(s), 32)) * several)
        else:
            stages.append(s)
    return replace(f, stages=tuple(stages))


def _wants_lanes(s: TeStage, f: TeFunc) -> bool:
    r = s.expr
    if not isinstance(r, Reduce) or r.kind not in COMBINE or not r.axes or nominal(r.axes[-1].extent) < 32:
        return False
    if contraction(s, f) is not None:
        return False
    symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
    loads: list[Load] = []

    def collect(n):
        if isinstance(n, Load):
            loads.append(n)

    transform(s.expr, collect)
    along = [step(n, r.axes[-1].name, symbols, f.shapes) for n in loads]
    across = [step(n, s.axes[-1].name, symbols, f.shapes) if s.axes else None for n in loads]
    reads_rows = any(d == 1 for d in along) and all(d in (0, 1) for d in along)
    has_columns = bool(loads and s.axes) and nominal(s.axes[-1].extent) > 2
    reads_columns = has_columns and all(d in (0, 1) for d in across)
    return reads_rows and not reads_columns


def _clamp_rows(f: TeFunc) -> TeFunc:
    """Rows of a tile with a guarded tail may lie past the end of an axis; what is read there is a row that exists.

    The results of such rows are not stored.
    """
    guarded = {(d.stage, d.args[0]) for d in f.schedule if d.call == "bound_extent"}
    stages: list[AnyStage] = []
    for s in f.stages:
        found = contraction(s, f) if isinstance(s, TeStage) else None
        tile = next((a for a in (found.tile, *found.outer) if (s.name, a) in guarded), "") if found is not None else ""
        if found is None or not tile:
            stages.append(s)
            continue
        assert isinstance(s, TeStage)
        last = wrap(extent_of(s, tile) - 1)

        def clamp(n, source=found.a.source, axis=tile, last=last):
            if isinstance(n, Load) and n.source == source:
                index = tuple(minimum(i, last) if isinstance(i, Index) and i.name == axis else i for i in n.index)
                return Load(n.source, index, n.dtype)
            return None

        stages.append(replace(s, expr=transform(s.expr, clamp)))
    return replace(f, stages=tuple(stages))
