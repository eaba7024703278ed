"""Forms of reductions that schedules can take hold of: reductions apart from what is done with them, and in lanes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from occ.compiler.ir.dim import Dim, floordiv
from occ.compiler.ir.dtype import I32
from occ.compiler.ir.te.expr import (
    Axis,
    Expr,
    Index,
    Load,
    Reduce,
    binary,
    cast,
    equal,
    literal,
    not_equal,
    where,
    wrap,
)
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, position
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.walks import replace_indices, walk

_FOUR = 4  # lanes of a vector whose elements are combined one by one


def separate(f: TeFunc) -> TeFunc:
    """Every result that is a bare reduction becomes a copy of a stage that reduces, so that there is something to tile.

    `out[i] = sum[r](x)` --> `out_acc[i] = sum[r](x)  out[i] = out_acc[i]`
    """
    results = {r.name for r in f.results}
    stages: list[AnyStage] = []
    for s in f.stages:
        if isinstance(s, TeStage) and s.name in results and isinstance(s.expr, Reduce) and s.expr.kind in COMBINE:
            inner = replace(s, name=f"{s.name}acc")
            axes = tuple(Axis(f"{a.name}c", a.extent) for a in s.axes)
            copied = Load(inner.name, position(axes), s.dtype)
            stages += [inner, TeStage(s.name, axes, copied, s.note)]
        else:
            stages.append(s)
    return replace(f, stages=tuple(stages))


def two_passes(f: TeFunc) -> TeFunc:
    """The place of the greatest or least element of a parameter as two reductions, which vectors can do: the element, then
    the first place that has it. A NaN is both, and the first NaN is the place.

    `out[i] = argmax[r<n](a[i, r])` --> `best[i] = max[r](a[i, r])`, `first[i] = min[r](a[i, r] is best[i] ? r : n)`,
    `out[i] = first[i]`; 0 where there are no elements.
    """
    params = {p.name for p in f.params}
    stages: list[AnyStage] = []
    for s in f.stages:
        stages += _best_and_first(s) if isinstance(s, TeStage) and _is_place(s.expr, params) else [s]
    return replace(f, stages=tuple(stages))


def _is_place(e: Expr, params: set[str]) -> bool:
    if not isinstance(e, Reduce) or e.kind not in ("argmax", "argmin"):
        return False
    along = Index(e.axes[0].name) in walk(e.body)  # an axis of one element is no index
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


def in_lanes(s: TeStage, lanes: int) -> list[TeStage]:
    """A reduction along a contiguous axis as one over lanes, which vectors can do, and a rest; all have its role.

    `acc[i] = sum[r<n](f(r))` --> `part[i, l<16] = sum[q<n//16](f(16*q + l))`,
    `rest[i] = sum[t<n%16](f(16*(n//16) + t))`, `acc[i] = sum[l<16](part[i, l]) + rest[i]`

    Floats, each of which would wait for the one before, are combined by fours (`_by_fours`).
    """
    r = s.expr
    assert isinstance(r, Reduce)
    last = r.axes[-1]
    start: Dim = floordiv(last.extent, lanes) * lanes
    part = _strided(s, "", "part", lanes, 0, floordiv(last.extent, lanes))
    if r.dtype.is_float and not s.role and lanes > _FOUR:
        return [part, *_by_fours(s, part, start)]
    across_axis = Axis(f"{last.name}x", lanes)
    of_part = Load(part.name, (*position(s.axes), Index(across_axis.name)), r.dtype)
    across = replace(s, name=f"{s.name}across", expr=Reduce(r.kind, (across_axis,), of_part, r.dtype))
    if last.extent == start:
        return [part, replace(across, name=s.name)]
    rest = _rest(s, start)
    loads = [Load(x.name, position(s.axes), r.dtype) for x in (across, rest)]
    return [part, across, rest, replace(s, expr=binary(COMBINE[r.kind], *loads))]


def _by_fours(s: TeStage, part: TeStage, start: Dim) -> list[TeStage]:
    """What the lanes come to in a vector of four, with the fours that follow from `start` on; then the elements of that
    vector, and the fewer than four that are left. Rows of 56 take half as long as one element after the other.

    `four[i, l<4] = sum[x<4](part[i, 4*x + l])`, `next[i, l<4] = sum[q<n%16//4](f(16*(n//16) + 4*q + l))`,
    `acc[i] = (four[i, 0] + next[i, 0] + four[i, 2] + next[i, 2]) + (..) + rest[i]`
    """
    r = s.expr
    assert isinstance(r, Reduce)
    last, lanes = r.axes[-1], part.axes[-1].extent
    fours = floordiv(lanes, _FOUR)
    lane, group = Axis(f"{last.name}f", _FOUR), Axis(f"{last.name}g", fours)
    of_part = Load(part.name, (*position(s.axes), Index(group.name) * _FOUR + Index(lane.name)), r.dtype)
    vectors = [replace(s, name=f"{s.name}four", axes=(*s.axes, lane), expr=Reduce(r.kind, (group,), of_part, r.dtype))]
    left: Dim = last.extent - start
    if (more := floordiv(left, _FOUR)) != 0:
        vectors.append(_strided(s, "n", "next", _FOUR, start, more))

    def combined(*elements: Expr) -> Expr:
        return reduce(partial(binary, COMBINE[r.kind]), elements)

    def element(k: int) -> Expr:
        return combined(*(Load(x.name, (*position(s.axes), wrap(k)), r.dtype) for x in vectors))

    total = combined(combined(element(0), element(2)), combined(element(1), element(3)))
    if left == more * _FOUR:
        return [*vectors, replace(s, expr=total)]
    rest = _rest(s, start + more * _FOUR)
    return [*vectors, rest, replace(s, expr=combined(total, Load(rest.name, position(s.axes), r.dtype)))]


def _strided(s: TeStage, mark: str, name: str, lanes: int, start: Dim, steps: Dim) -> TeStage:
    """The reduction in lanes: each takes every `lanes`-th element, of `steps` from `start` on."""
    last = _last(s)
    lane, step = Axis(f"{last}{mark}l", lanes), Axis(f"{last}{mark}q", steps)
    at = Index(step.name) * lanes + Index(lane.name)
    expr = _reduced(s, mark, step, at if start == 0 else wrap(start) + at)
    return replace(s, name=f"{s.name}{name}", axes=(*s.axes, lane), expr=expr)


def _rest(s: TeStage, start: Dim) -> TeStage:
    """The reduction of what lies from `start` on."""
    assert isinstance(s.expr, Reduce)
    tail = Axis(f"{_last(s)}t", s.expr.axes[-1].extent - start)
    return replace(s, name=f"{s.name}rest", expr=_reduced(s, "t", tail, wrap(start) + Index(tail.name)))


def _reduced(s: TeStage, mark: str, step: Axis, at: Expr) -> Reduce:
    """The reduction over `step`, which is `at` along the last axis; no two stages of a kernel share an axis."""
    r = s.expr
    assert isinstance(r, Reduce)
    *outer, last = r.axes
    again = [Axis(f"{a.name}{mark}", a.extent) for a in outer]
    moved = {a.name: Index(b.name) for a, b in zip(outer, again, strict=True)}
    return Reduce(r.kind, (*again, step), replace_indices(r.body, {last.name: at, **moved}), r.dtype)


def _last(s: TeStage) -> str:
    assert isinstance(s.expr, Reduce)
    return s.expr.axes[-1].name
