"""Normalises sums of squared differences of two operands to the form of a product."""

from __future__ import annotations

from occ.compiler.ir.te.expr import Binary, Load, Reduce
from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.normalise.pack_rhs import right_operand
from occ.compiler.passes.te.inline import inline
from occ.compiler.targets.machine import Machine


def squared_distances(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Distances between the rows of two operands in one sum, which is tiled as a product of two inputs is.

    `d[i, j, r] = a[i, r] - b[j, r]`, `s[i, j, r] = d[i, j, r] * d[i, j, r]`, `acc[i, j] = sum[r](s[i, j, r])` -->
    `acc[i, j] = sum[r]((a[i, r] - b[j, r]) * (a[i, r] - b[j, r]))`
    """
    sums = [s for s in f.stages if isinstance(s, TeStage) and isinstance(s.expr, Reduce)]
    if len(sums) != 1 or any(not isinstance(s, TeStage) or s.role for s in f.stages):
        return Declined("it does not have exactly one reduction, or has its own method")
    (acc,) = sums
    terms = _terms(acc, f)
    if not _sums_squares(acc, f, terms):
        return Declined("it does not sum squares")
    whole = inline(f, {s.name for s in f.stages} - terms)
    if right_operand(next(s for s in whole.stages if s.name == acc.name), whole) is None:
        return Declined("it does not sum squared differences of two operands with many rows")
    return whole


def _sums_squares(acc: TeStage, f: TeFunc, terms: set[str]) -> bool:
    """Whether each term of a reduction is a stage's element times itself."""
    body = acc.expr.body if isinstance(acc.expr, Reduce) else None
    term = next((s for s in f.stages if isinstance(body, Load) and s.name == body.source and s.name in terms), None)
    e = term.expr if isinstance(term, TeStage) else None
    return isinstance(e, Binary) and e.op == "mul" and e.lhs == e.rhs


def _terms(acc: TeStage, f: TeFunc) -> set[str]:
    """Names of the stages that compute what a reduction sums."""
    results = {r.name for r in f.results}
    before = {s.name: s for s in f.stages[: f.stages.index(acc)]}
    found: set[str] = set()
    todo: list[Load] = loads(acc.expr)
    while todo:
        name = todo.pop().source
        if name in before and name not in found | results:
            found.add(name)
            todo += loads(*before[name].exprs)
    return found
