"""Rewrites te functions to physical memory order, so that the innermost axis is contiguous."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dtype import I16
from occ.compiler.ir.layout import Layout
from occ.compiler.ir.te.expr import Expr, Index, Load, Reduce
from occ.compiler.ir.te.function import AnyStage, Param, Scatter, TeFunc, loads
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import facts_of_role
from occ.compiler.ir.te.walks import transform, walk
from occ.compiler.ir.types import TensorType

Order = tuple[int, ...]
_NARROW = 8  # channels below which a border is added in input order: vectors along them would be short


def physical(f: TeFunc) -> TeFunc:
    """The function with every permuted (not tiled) parameter and result in memory order, row-major.

    Stages in between use the order of the result with their rank, so that all loops run in the same order. Tiled
    layouts stay.

    `y[n, c, i] = x[n, c, i] + 1` with `y`, `x` in layout `acb` --> `y[n, i, c] = x[n, i, c] + 1`
    """
    given = {p.name: p.type.layout.order for p in (*f.params, *f.results) if p.type.layout.is_permuted}
    if not given:
        return f
    results = {r.name for r in f.results}
    of_rank = {len(given[r.name]): given[r.name] for r in f.results if r.name in given}
    orders = dict(given)
    kept = any(facts_of_role(role).keeps_order for role in f.by_role)  # a head at a time, in whatever order heads are
    for s in () if kept else f.stages:
        if s.name not in results and (order := of_rank.get(len(s.axes))) and not _keeps_rows(s, order, orders, f):
            orders[s.name] = order

    def of(e: Expr) -> Expr:
        def visit(n: Expr) -> Expr | None:
            if isinstance(n, Load) and n.source in orders:
                return Load(n.source, tuple(n.index[k] for k in orders[n.source]), n.dtype)
            return _as_read(n) if isinstance(n, Reduce) else None

        return transform(e, visit)

    def stage(s: AnyStage) -> AnyStage:
        order = orders.get(s.name, tuple(range(len(s.axes))))
        axes = tuple(s.axes[k] for k in order)
        if isinstance(s, Scatter):
            target = tuple(of(s.target[k]) for k in order)
            return replace(s, axes=axes, init=of(s.init), target=target, value=of(s.value))
        return replace(s, axes=axes, expr=of(s.expr))

    def param(p: Param) -> Param:
        if p.name not in given:
            return p
        shape = tuple(p.type.dims[k] for k in given[p.name])
        return Param(p.name, TensorType(p.type.dtype, shape, Layout(within=p.type.layout.moved(given[p.name]))))

    return replace(
        f,
        params=tuple(map(param, f.params)),
        stages=tuple(map(stage, f.stages)),
        results=tuple(map(param, f.results)),
    )


def _as_read(r: Reduce) -> Reduce | None:
    """A reduction of one operand along its axes in their order in memory."""
    read = {n.index for n in walk(r.body) if isinstance(n, Load)}
    if len(read) != 1 or r.kind not in COMBINE:
        return None
    place = {i.name: k for k, i in enumerate(read.pop()) if isinstance(i, Index)}
    if not all(a.name in place or a.extent == 1 for a in r.axes):
        return None
    return replace(r, axes=tuple(sorted(r.axes, key=lambda a: place.get(a.name, -1))))


def _keeps_rows(s: AnyStage, order: Order, orders: dict[str, Order], f: TeFunc) -> bool:
    """Whether a stage keeps its operand's order, such as a border around an image with few channels.

    Not for codes, whose adjacent channels are multiplied in one lane: in fours, or as i16 in pairs.
    """
    narrow = s.axes[order[-1]].extent
    if (
        s.dtype.bits == 8
        or s.dtype == I16
        or not isinstance(narrow, int)
        or narrow >= _NARROW
        or any(isinstance(n, Reduce) for e in s.exprs for n in walk(e))
    ):
        return False
    return all(ld.source not in orders for ld in loads(*s.exprs))
