"""Binds the dims of a te function to numbers or to other dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from occ.compiler.ir.dim import Dim, Sym, substitute
from occ.compiler.ir.te.expr import Axis, Expr, Reduce, Size, wrap
from occ.compiler.ir.te.function import AnyStage, Param, Scatter, TeFunc
from occ.compiler.ir.te.schedule import Arg, AtMost, Directive
from occ.compiler.ir.te.walks import of_kind, transform


def bind_dims(f: TeFunc, values: Mapping[str, Dim]) -> TeFunc:
    """The function with the dims named in `values` replaced; the others remain.

    Args:
        f: a function, with or without a schedule.
        values: the replacement of a dim, by name.
    """
    made = with_dims(f, cache(lambda d: substitute(d, values)))
    return replace(made, dims=tuple(d for d in f.dims if d not in values))


def with_dims(f: TeFunc, put: Callable[[Dim], Dim]) -> TeFunc:
    """The function with all dims replaced, also in its schedule; its parameters stay."""

    def in_schedule(a: Arg) -> Arg:
        if isinstance(a, AtMost):
            return AtMost(put(a.left), put(a.right))
        return put(a) if isinstance(a, Sym) else a

    def with_args(d: Directive) -> Directive:
        args = tuple(map(in_schedule, d.args))
        return d if args == d.args else replace(d, args=args)

    def of(e: Expr) -> Expr:
        return transform(e, lambda n: _bound(n, put)) if of_kind(Size, e) or of_kind(Reduce, e) else e

    made = with_extents(f, put, of)
    return replace(made, schedule=tuple(map(with_args, f.schedule)))


def with_extents(f: TeFunc, put: Callable[[Dim], Dim], of: Callable[[Expr], Expr]) -> TeFunc:
    """The function with other extents of tensors and stages, and with other expressions.

    Without `checks`, which are a stage by then.
    """
    assert not f.checks, "checks are a stage of their own"

    def axes(listed: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, put(a.extent)) for a in listed)

    def param(p: Param) -> Param:
        return Param(p.name, p.type.with_dims(put))

    def stage(s: AnyStage) -> AnyStage:
        if isinstance(s, Scatter):
            target = tuple(map(of, s.target))
            return replace(s, axes=axes(s.axes), init=of(s.init), over=axes(s.over), target=target, value=of(s.value))
        return replace(s, axes=axes(s.axes), expr=of(s.expr))

    return replace(
        f, params=tuple(map(param, f.params)), stages=tuple(map(stage, f.stages)), results=tuple(map(param, f.results))
    )


def without_whole_parts(f: TeFunc) -> TeFunc:
    """The function with plain layouts where a part of a tensor is all of it."""

    def of(p: Param) -> Param:
        within = tuple((k, n) for k, n in p.type.layout.within if n != p.type.dims[k])
        return replace(p, type=p.type.with_layout(replace(p.type.layout, within=within)))

    return replace(f, params=tuple(map(of, f.params)), results=tuple(map(of, f.results)))


def _bound(n: Expr, put: Callable[[Dim], Dim]) -> Expr | None:
    if isinstance(n, Size):
        return wrap(put(n.dim))
    if isinstance(n, Reduce):
        axes = tuple(Axis(a.name, put(a.extent)) for a in n.axes)
        return None if axes == n.axes else replace(n, axes=axes)
    return None
