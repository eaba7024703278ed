"""Forms of reductions that schedules can take hold of: reductions apart from what is done with them, and in lanes."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import Dim, floordiv
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, binary, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, position
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.walks import replace_indices


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


def in_lanes(s: TeStage, lanes: int) -> list[TeStage]:
    """A reduction along a contiguous axis as one over lanes, which vectors can do, and a rest; all have its role.

    `acc[i] = sum[r<n](f(r))` --> `part[i, l<16] = sum[q<n//16](f(16*q + l))`,
    `rest[i] = sum[t<n%16](f(16*(n//16) + t))`, `acc[i] = sum[l<16](part[i, l]) + rest[i]`
    """
    r = s.expr
    assert isinstance(r, Reduce)
    *outer, last = r.axes
    whole = floordiv(last.extent, lanes)
    left: Dim = last.extent - whole * lanes
    lane, chunk, tail = Axis(f"{last.name}l", lanes), Axis(f"{last.name}q", whole), Axis(f"{last.name}t", left)

    def body(at: Expr) -> Expr:
        return replace_indices(r.body, {last.name: at})

    part_expr = Reduce(r.kind, (*outer, chunk), body(Index(chunk.name) * lanes + Index(lane.name)), r.dtype)
    part = replace(s, name=f"{s.name}part", axes=(*s.axes, lane), expr=part_expr)
    across_axis = Axis(f"{last.name}x", lanes)
    of_part = Load(part.name, (*position(s.axes), Index(across_axis.name)), r.dtype)
    across = replace(s, name=f"{s.name}across", expr=Reduce(r.kind, (across_axis,), of_part, r.dtype))
    if left == 0:
        return [part, replace(across, name=s.name)]
    again = {a.name: Axis(f"{a.name}t", a.extent) for a in outer}  # no two stages of a kernel share an axis
    moved = replace_indices(body(wrap(whole * lanes) + Index(tail.name)), {n: Index(a.name) for n, a in again.items()})
    rest_expr = Reduce(r.kind, (*again.values(), tail), moved, r.dtype)
    rest = replace(s, name=f"{s.name}rest", expr=rest_expr)
    loads = [Load(x.name, position(s.axes), r.dtype) for x in (across, rest)]
    return [part, across, rest, replace(s, expr=binary(COMBINE[r.kind], *loads))]
