"""The schedule of several stages over the same rows, such as softmax: row by row, in cache."""

from __future__ import annotations

from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Load, Reduce
from occ.compiler.ir.te.function import AnyStage, Scatter, TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import PREFIX, WINDOW_ROWS
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import INNERMOST, LONG_SUM_VECTORS, Directives, parallel, row_tail, tasks
from occ.compiler.passes.schedule.rules.elementwise import vectorise
from occ.compiler.passes.schedule.rules.sequential_folds import is_fold
from occ.compiler.passes.schedule.rules.window import window_loops
from occ.compiler.passes.schedule.stage_facts import (
    Part,
    ScheduleFacts,
    contraction,
    element_bits,
    facts_of,
    same_axes,
    work,
)
from occ.compiler.targets.machine import Machine


def fused_rows(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Several stages over the same rows (softmax, layer normalisation): all are computed row by row, in cache."""
    facts = facts_of(f, machine)
    s = facts.root
    if not isinstance(s, TeStage) or len(facts.f.results) != 1:
        return Declined("it has several results, or writes at computed positions")
    if isinstance(f, Part) and f.is_intermediate and isinstance(s.expr, Reduce):
        return Declined("it is only a reduction, which later stages read")
    others = [
        r
        for r in facts.f.stages
        if r is not s and (r.name in facts.root_names or isinstance(getattr(r, "expr", None), Reduce))
    ]
    same = all(isinstance(r, TeStage) and same_axes(s, r) for r in others)
    if same and (len(others) < 2 or not isinstance(window_loops(s, facts), Declined)):
        return Declined("it is reductions with an epilogue, for which other rules are better")
    if _is_product(others, facts) or any(isinstance(r, TeStage) and r.role == WINDOW_ROWS for r in others):
        return Declined("it is a product, or a window in planes")
    if any(is_fold(r) for r in others):  # inside an update's loops, and the loops fused here are not its own
        return Declined("it has folds, whose steps follow each other")
    depth = _shared_rows(s, others, facts)
    if not others or depth == 0 or len(s.axes) - depth > 1 or any(isinstance(r, Scatter) for r in others):
        return Declined("its stages do not share all axes of the result but one")
    out = StageSchedule(s)
    vectorise(out, s, facts, outer=depth)
    loops = out.axes[:depth]
    level = loops[-1]
    if work(s, facts) >= SERIAL or sum(work(r, facts) for r in others) >= SERIAL:
        fused = parallel(out, [*loops, INNERMOST], [tasks(a.extent) for a in s.axes[:depth]] + [1], SERIAL)
        level = fused.get(level, level)
    made = list(out.directives)
    for r in others:
        assert isinstance(r, TeStage)
        made += inside_rows(r, s.name, level, facts, depth)
    return facts.scheduled(made)


def _is_product(others: list[AnyStage], facts: ScheduleFacts) -> bool:
    """Whether the stages are a contraction, the operand it broadcasts, and parts of an epilogue too long for one."""
    sums = [r for r in others if isinstance(r, TeStage) and isinstance(r.expr, Reduce)]
    found = contraction(sums[0], facts.f) if len(sums) == 1 else None
    return found is not None and all(r.name == found.a.source for r in others[: others.index(sums[0])])


def _shared_rows(s: TeStage, others: list[AnyStage], facts: ScheduleFacts) -> int:
    """How many leading axes all stages have in common and are read at."""
    depth = min((len(r.axes) for r in [s, *others]), default=0)
    depth = min(depth, len(s.axes))
    names = {r.name for r in others}
    stages = {x.name: x for r in [s, *others] for x in [r, *facts.inlined_into(r)]}.values()
    for k in range(depth):
        if any(r.axes[k].extent != s.axes[k].extent for r in others):
            return k
        for r in stages:
            for e in r.exprs:
                for n in walk(e):
                    if isinstance(n, Load) and (n.source in names or n.source in {x.name for x in stages}):
                        here = r.axes[k].name if k < len(r.axes) else ""
                        index = n.index[k] if k < len(n.index) else None
                        if getattr(index, "name", None) != here:
                            return k
    return depth


def inside_rows(r: TeStage, root: str, level: Loop, facts: ScheduleFacts, depth: int) -> Directives:
    """A stage computed in the row loop of another one, vectorised along its own last axis."""
    start, update = StageSchedule(r).compute_at(root, level), StageSchedule(r, update=1)
    if len(r.axes) > depth and nominal(r.axes[-1].extent) >= 4:
        last = start.axes[-1]
        width = facts.machine.lanes(element_bits(r), r.axes[-1].extent)
        # By default the last vector of a row of any length starts before its end, and before the tensor if the row is
        # short.
        tail = ("GuardWithIf",) if row_tail(r.axes[-1].extent, width) == "GuardWithIf" else ()
        start.vectorize(last, width, *tail)
        if isinstance(r.expr, Reduce) and r.expr.kind in COMBINE:
            # Of an update, Halide rounds rows up to whole vectors, which read behind the tensor after its last row.
            extent = r.axes[-1].extent
            whole = isinstance(extent, int) and extent % width == 0
            _in_registers(r, update, width, () if whole else ("GuardWithIf",))
    elif len(r.axes) == depth and isinstance(r.expr, Reduce) and r.dtype.is_int and r.expr.kind in COMBINE:
        n, most = r.expr.axes[-1].extent, facts.machine.lanes(element_bits(r))
        if isinstance(n, int) and n <= most and n & (n - 1) == 0:
            update.atomic().vectorize(update.reduced[-1])  # integers are combined in any order
    return [*start.directives, *update.directives]


def _in_registers(r: TeStage, update: StageSchedule, width: int, tail: tuple[str, ...]) -> None:
    """The sums of a stage, a few vectors, over everything that is summed."""
    last, extent = update.axes[-1], r.axes[-1].extent
    if isinstance(extent, int) and extent in (2 * width, LONG_SUM_VECTORS * width):
        vectors, lane = update.split(last, width)
        update.reorder(lane, vectors, *reversed(update.reduced)).vectorize(lane).unroll(vectors)
        if r.role == PREFIX:
            update.unroll(update.reduced[-1])
        return
    update.reorder(last, *reversed(update.reduced)).vectorize(last, width, *tail)
    if r.role == PREFIX:
        update.unroll(update.reduced[-1])  # so that each term's lanes are known
    elif nominal(reduce_axes(r.expr)[-1].extent) >= 4:
        update.unroll(update.reduced[-1], 4)
