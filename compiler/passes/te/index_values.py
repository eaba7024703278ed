"""Index arithmetic with values of a call: steps of long windows, starts of slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import NamedTuple

from occ.compiler.ir.dim import Dim, symbol
from occ.compiler.ir.te.expr import Binary, Const, Expr, Index, Load, Size, binary, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, within
from occ.compiler.ir.te.walks import transform, walk
from occ.compiler.passes.te.certain_reads import is_bordered_row
from occ.compiler.passes.te.dim_names import is_product
from occ.compiler.passes.te.measured_extents import SMALL
from occ.runtime.dataclass import dataclass

_AtCall = Callable[[int], Expr]  # a new dim of a value


class Border(NamedTuple):
    """The border before a row: of which tensor, how long, and its dim."""

    source: str
    length: int
    dim: Dim


@dataclass(frozen=True)
class IndexValues:
    """A function with dims for numbers of its index arithmetic.

    Attributes:
        function: its new dims are not among its `dims` yet.
        values: of the new dims, by name, in order.
        read: the axes of tensors that are read so, by name and position.
        borders: of stages that are a row with a border, by name.
    """

    function: TeFunc
    values: dict[str, int] = field(default_factory=dict[str, int])
    read: frozenset[tuple[str, int]] = frozenset()
    borders: Mapping[str, Border] = field(default_factory=dict[str, Border])


def index_values(f: TeFunc) -> IndexValues:
    """The function with dims for the steps of long windows and the starts of slices.

    `%x[i * 128 + r] * %w[r, j]` --> `%x[i * dim(D0) + r] * %w[r, j]` for a window of more than `SMALL` terms `r`, and
    so for a step of 1. Lanes are columns `j`, for which the same element of `%x` is read: its place is as cheap to find
    as a row of a matrix.
    `%x[i, j + 64]` --> `%x[i, j + dim(D0)]` where a map reads a part of a tensor, and so for a start of 0.
    The length of a long border before a row is a dim too.
    """
    values: dict[str, int] = {}
    read: set[tuple[str, int]] = set()
    places = Counter(n.source for s in f.stages for n in dict.fromkeys(loads(*s.exprs)))
    parts = {p.name for p in f.params if places[p.name] == 1}  # tensors read in one place

    def at_call(value: int) -> Expr:
        name = f"D{len(f.dims) + len(values)}"
        values[name] = value
        return wrap(symbol(name))

    def indices(n: Load, s: TeStage) -> tuple[Expr, ...]:
        if is_product(s):
            return tuple(_with_step(i, s, at_call) for i in n.index)
        if reduce_axes(s.expr) or n.source not in parts:
            return n.index
        return tuple(_with_start(i, k, s, at_call) for i, k in zip(n.index, f.shapes[n.source], strict=True))

    def stage(s: AnyStage) -> AnyStage:
        if not isinstance(s, TeStage):
            return s
        made: dict[Load, Load] = {}
        for n in dict.fromkeys(loads(s.expr)):
            index = indices(n, s)
            if index != n.index:
                made[n] = replace(n, index=index)
                read.update((n.source, k) for k, (i, j) in enumerate(zip(n.index, index, strict=True)) if i != j)
        return replace(s, expr=transform(s.expr, lambda n: made.get(n) if isinstance(n, Load) else None))

    function = replace(f, stages=tuple(map(stage, f.stages)))
    return IndexValues(function, values, frozenset(read), dict(_borders(f, at_call)))


def _borders(f: TeFunc, at_call: _AtCall) -> Iterator[tuple[str, Border]]:
    """The stages that put a long border around a row."""
    for s in f.stages:
        for n in loads(*s.exprs) if is_bordered_row(s) else ():
            match n.index:
                case (Binary(op="sub", lhs=Index(), rhs=Const(value=int(length))),) if length > SMALL:
                    made = at_call(length)
                    assert isinstance(made, Size)
                    yield s.name, Border(n.source, length, made.dim)
                case _:
                    pass


def _with_step(i: Expr, s: TeStage, at_call: _AtCall) -> Expr:
    """The place in a long window with its step as a value, or the index itself where it is none."""
    if not isinstance(i, Binary) or i.op != "add":
        return i
    row, step = (i.lhs.lhs, _number(i.lhs.rhs)) if isinstance(i.lhs, Binary) and i.lhs.op == "mul" else (i.lhs, 1)
    rows = {a.name for a in s.axes[:-1]}
    if not isinstance(row, Index) or row.name not in rows or step is None:
        return i
    terms = {a.name for a in reduce_axes(s.expr) if not isinstance(a.extent, int) or a.extent > SMALL}
    inside = {n.name for n in walk(i.rhs) if isinstance(n, Index)}
    slides = terms & inside and inside <= {*terms, s.axes[-1].name}
    return binary("add", row * at_call(step), i.rhs) if slides else i


def _with_start(i: Expr, extent: Dim, s: TeStage, at_call: _AtCall) -> Expr:
    """The place in a part of an axis, with its start as a value.

    The index itself if all of the axis is read.
    """
    if not isinstance(extent, int) or extent == 1 or not within(i, extent, axis_symbols(s.axes)):
        return i
    if (only := _number(i)) is not None:
        return at_call(only)
    place, start = (i.lhs, _number(i.rhs)) if isinstance(i, Binary) and i.op == "add" else (i, 0)
    if not isinstance(place, Index) or start is None:
        return i
    whole = any(a.name == place.name and a.extent == extent for a in s.axes)
    return i if whole else place + at_call(start)


def _number(e: Expr) -> int | None:
    return e.value if isinstance(e, Const) and isinstance(e.value, int) else None
