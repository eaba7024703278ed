"""The schedule of decision trees: sequential folds over leaves."""

from __future__ import annotations

from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import FOLDS, Reduce
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import Directives, row_tail, tasks
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, facts_of, work
from occ.compiler.targets.machine import Machine

_ROWS = 32  # steps that a tree takes before the next one
_TOGETHER = 8  # trees evaluated for a row at a time


def sequential_folds(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Decision trees: sequential folds over nodes for a block of rows, then the fold over leaves.

    What a block of rows reads is computed before them, one tree after the other, with the tree's nodes in cache. The
    steps of a fold depend on each other but not on its neighbours': a processor overlaps several, so they stay scalar.
    500 trees of 31 leaves, 10,000 rows: three times as fast as row by row.
    """
    facts = facts_of(f, machine)
    s = facts.root
    if not is_fold(s) or not isinstance(s, TeStage) or not s.axes:
        return Declined("it is not a fold, whose steps follow each other")
    first = s.axes[0]
    read = {n.source for n in loads(s.expr)}
    inner = [p for p in facts.roots if isinstance(p, TeStage) and is_fold(p) and p.name in read and _only(p, s, facts)]
    if not inner or any(not p.axes or p.axes[0].extent != first.extent for p in inner):
        return Declined("it reads no other fold of as many rows")
    out = StageSchedule(s, update=1)
    rows = min(_ROWS, first.extent) if isinstance(first.extent, int) and first.extent else _ROWS
    tail = row_tail(first.extent, rows)
    # ShiftInwards would add a row twice: Halide rejects it.
    block, row = out.split(out.axes[0], rows, "GuardWithIf" if tail == "ShiftInwards" else tail)
    out.reorder(*_steps(s, out), *reversed(out.axes[1:]), row, block)
    if tasks(first.extent, rows) != 1 and sum(work(p, facts) for p in inner) >= SERIAL:
        out.parallel(block)
    made = out.directives
    for p in inner:
        made += [*StageSchedule(p).compute_at(s.name, block).directives, *_together(p)]
    return facts.scheduled(made)


def _together(p: TeStage) -> Directives:
    """The steps of some neighbours on the last axis at once, one row after the other.

    Those past the last are unused. Neighbours are separate in memory, or LLVM would form vectors of them, gathered an
    element at a time.
    """
    update = StageSchedule(p, update=1)
    (row, *others), steps = update.axes, _steps(p, update)
    if not others or not isinstance(count := p.axes[-1].extent, int) or count < _TOGETHER or not steps:
        loops = [*steps, row, *reversed(others)]
        return update.reorder(*loops).directives if len(loops) > 1 else []
    made = StageSchedule(p).reorder_storage(row, *reversed(others)).directives
    *others, last = others
    groups, near = update.split(last, _TOGETHER, "RoundUp")
    update.unroll(near).reorder(near, *steps, row, groups, *reversed(others))
    return [*made, *update.directives]


def _steps(s: TeStage, update: StageSchedule) -> list[Loop]:
    """The axis of a fold if it is a loop: Halide replaces an axis of one step by 0."""
    return [loop for a, loop in zip(reduce_axes(s.expr), update.reduced, strict=True) if a.extent != 1]


def is_fold(s: AnyStage) -> bool:
    """Whether a stage is one fold with sequentially dependent steps."""
    return isinstance(s, TeStage) and isinstance(s.expr, Reduce) and s.expr.kind in FOLDS


def _only(p: TeStage, s: TeStage, facts: ScheduleFacts) -> bool:
    """Whether `s` alone reads a stage, which is not a result."""
    readers = [r for r in facts.f.stages if any(n.source == p.name for n in loads(*r.exprs))]
    return readers == [s] and p.name not in {r.name for r in facts.f.results}
