"""Normalises ArgMax and ArgMin to two vectorisable reductions."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dtype import I32
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, binary, cast, equal, literal, not_equal, where
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, position
from occ.compiler.ir.te.walks import replace_indices, walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.targets.machine import Machine


def split_argmax(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """ArgMax and ArgMin as two vectorisable reductions: the element, then the first index that holds it.

    NaN is both the maximum and the minimum, and the index of the first NaN is the result.

    `out[i] = argmax[r<n](a[i, r])` --> `best[i] = max[r](a[i, r])`, `first[i] = min[r](a[i, r] is best[i] ? r : n)`,
    `out[i] = first[i]`; 0 where there are no elements.
    """
    made = in_two_reductions(f)
    return Declined("it has no ArgMax or ArgMin of a parameter") if made is f else made


def in_two_reductions(f: TeFunc) -> TeFunc:
    """The function with each ArgMax and ArgMin of a parameter as two reductions; itself if it has none."""
    params = {p.name for p in f.params}
    stages: list[AnyStage] = []
    for s in f.stages:
        stages += _best_and_first(s) if isinstance(s, TeStage) and _is_place(s.expr, params) else [s]
    return f if len(stages) == len(f.stages) else replace(f, stages=tuple(stages))


def _is_place(e: Expr, params: set[str]) -> bool:
    if not isinstance(e, Reduce) or e.kind not in ("argmax", "argmin"):
        return False
    along = Index(e.axes[0].name) in walk(e.body)  # an axis of one element is not an index
    return along and isinstance(e.body, Load) and e.body.source in params


def _best_and_first(s: TeStage) -> list[TeStage]:
    r = s.expr
    assert isinstance(r, Reduce)
    (axis,) = r.axes
    again = Axis(f"{axis.name}b", axis.extent)
    element = replace_indices(r.body, {axis.name: Index(again.name)})
    best = replace(s, name=f"{s.name}best", expr=Reduce(r.kind.removeprefix("arg"), (again,), element, r.body.dtype))
    found = equal(r.body, Load(best.name, position(s.axes), r.body.dtype))
    if r.body.dtype.is_float:
        found = binary("or", found, not_equal(r.body, r.body))
    place = where(found, cast(I32, Index(axis.name)), literal(I32.highest, I32))
    first = replace(s, name=f"{s.name}first", expr=Reduce("min", (axis,), place, I32))
    at = Load(first.name, position(s.axes), I32)
    return [
        best,
        first,
        replace(s, expr=cast(r.dtype, where(equal(at, literal(I32.highest, I32)), literal(0, I32), at))),
    ]
