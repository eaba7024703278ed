"""Checks that a te function is well formed: loads match their sources, operands share one element type."""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.ir.dim import Dim, symbols
from occ.compiler.ir.dtype import BOOL, DType
from occ.compiler.ir.te.expr import Binary, Expr, Load, Reduce, Select, Size
from occ.compiler.ir.te.function import Scatter, TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.roles import ROLES
from occ.compiler.ir.te.schedule_check import schedule_problems
from occ.compiler.ir.te.walks import walk


def te_problems(f: TeFunc) -> Iterator[str]:
    """Errors of a te function.

    A pass that changes a stage but not its readers would read the wrong bytes.
    """
    if unknown := [name for name in symbols(*sizes_of(f)) if name not in f.dims]:
        yield f"te @{f.name} has the size {unknown[0]}, which is not one of its dims"
    known = {p.name: (p.type.dtype, p.type.rank) for p in f.params}
    for s in f.stages:
        for e in s.exprs:
            yield from (f"te @{f.name}: {s.name} {text}" for n in walk(e) if (text := _problem(n, known)))
        if isinstance(s, TeStage) and s.role and s.role not in ROLES:
            yield f"te @{f.name}: {s.name} has the role {s.role}, which no schedule uses"
        if s.name in known:
            yield f"te @{f.name}: {s.name} is computed twice"
        known[s.name] = s.dtype, len(s.axes)
    yield from (f"te @{f.name}{text}" for text in schedule_problems(f))
    for r in f.results:
        if not f.halide and known.get(r.name) != (r.type.dtype, r.type.rank):
            yield f"te @{f.name}: the result {r.name} is {r.type}, {_text(known.get(r.name))} is computed"


def sizes_of(f: TeFunc) -> Iterator[Dim]:
    """All sizes that a function computes with."""
    for p in (*f.params, *f.results):
        yield from p.type.dims
    exprs = [*(e for s in f.stages for e in s.exprs), *(c.cond for c in f.checks)]
    boxes = (
        [s.axes for s in f.stages] + [s.over for s in f.stages if isinstance(s, Scatter)] + [c.axes for c in f.checks]
    )
    boxes += [reduce_axes(e) for e in exprs]
    yield from (a.extent for axes in boxes for a in axes)
    yield from (n.dim for e in exprs for n in walk(e) if isinstance(n, Size))


def _problem(n: Expr, known: dict[str, tuple[DType, int]]) -> str:
    match n:
        case Load() if known.get(n.source) != (n.dtype, len(n.index)):
            return f"reads {n.source} as {_text((n.dtype, len(n.index)))}, which is {_text(known.get(n.source))}"
        case Binary() if n.lhs.dtype != n.rhs.dtype:
            return f"has {n.op} of {n.lhs.dtype} and {n.rhs.dtype}"
        case Select() if n.then.dtype != n.other.dtype or n.cond.dtype != BOOL:
            return f"chooses by {n.cond.dtype} between {n.then.dtype} and {n.other.dtype}"
        case Reduce(kind="fold" | "settle") if len(n.axes) != 1:
            return f"folds over {len(n.axes)} axes, not one"
        case Reduce(kind="sum" | "prod" | "max" | "min" | "fold" | "settle") if n.body.dtype != n.dtype:
            return f"reduces {n.body.dtype} to {n.dtype}"
        case _:
            return ""


def _text(found: tuple[DType, int] | None) -> str:
    return "nothing" if found is None else f"{found[0]} of rank {found[1]}"
