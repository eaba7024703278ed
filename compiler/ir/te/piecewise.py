"""Piecewise stages: intervals of an axis with one expression each, as in Concat and Pad.

`c[i<9] = i < 4 ? a[i] : b[i - 4]` has the parts `c[i<4] = a[i]` and, from 4 on, `c[i<5] = b[i]`. Within each part the
source of the elements is fixed, so they are read as vectors. The last axis has the parts;
`along` makes another one the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cmp_to_key
from itertools import pairwise

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.te.expr import Axis, Binary, Expr, Index, wrap
from occ.compiler.ir.te.function import TeStage
from occ.compiler.ir.te.index import axis_symbols, is_axis, simplify, to_dim
from occ.compiler.ir.te.walks import transform, walk
from occ.runtime.dataclass import dataclass

MOST = 32  # maximum number of parts; more would make the code explode


@dataclass(frozen=True)
class Part:
    """An interval of a stage's last axis.

    Attributes:
        start: its first position.
        extent: its length.
        expr: the element as a function of the position in the part, named like the axis.
    """

    start: Dim
    extent: Dim
    expr: Expr


def parts(s: TeStage, *, clamps: bool = False) -> tuple[Part, ...]:
    """The parts of a stage in order, covering its last axis.

    None if it is the same everywhere, or if the order of the boundaries depends on sizes. With `clamps`, parts end
    where the least or largest of two positions changes too.
    """
    if not s.axes:
        return ()
    *outer, last = s.axes
    marks = _boundaries(s, clamps=clamps)
    if not marks:
        return ()
    found: list[Part] = []
    for start, end in zip((0, *marks), (*marks, last.extent), strict=True):
        here = Index(last.name) + wrap(start)

        def moved(n: Expr, here: Expr = here) -> Expr | None:
            return here if isinstance(n, Index) and n.name == last.name else None

        axis = Axis(last.name, end - start)
        expr = simplify(transform(s.expr, moved), axis_symbols((*outer, axis)))
        inner = parts(replace(s, axes=(*outer, axis), expr=expr), clamps=True) if clamps else ()  # a clamp of a clamp
        found += [replace(p, start=start + p.start) for p in inner] or [Part(start, end - start, expr)]
    return tuple(found) if len(found) <= MOST else ()


def along(s: TeStage, axis: str) -> TeStage:
    """The stage with an axis as its last."""
    return replace(s, axes=(*(a for a in s.axes if a.name != axis), *(a for a in s.axes if a.name == axis)))


def part_count(s: TeStage) -> int:
    """The number of `parts`, without their expressions."""
    marks = _boundaries(s) if s.axes else ()
    return len(marks) + bool(marks)


def _boundaries(s: TeStage, *, clamps: bool = False) -> Sequence[Dim]:
    """Where the parts of a stage begin, but for the first; none if it has no parts."""
    extent = s.axes[-1].extent
    if extent in (0, 1):
        return ()
    marks = _ordered({m for m in _marks(s, clamps=clamps) if m not in (0, extent)}, extent)
    return marks if len(marks) < MOST else ()


def _ordered(marks: set[Dim], extent: Dim) -> list[Dim]:
    """The boundaries within the axis in order, or none if their order is unknown."""
    inside = [m for m in marks if dim.upper(m) > 0 and dim.lower(m - extent) < 0]
    if any(dim.lower(m) < 0 or dim.upper(m - extent) > 0 for m in inside):
        return []
    in_order = sorted(inside, key=cmp_to_key(lambda a, b: -1 if dim.lower(b - a) >= 0 else 1))
    known = all(dim.lower(b - a) >= 0 for a, b in pairwise(in_order))
    return in_order if known else []


def _marks(s: TeStage, *, clamps: bool) -> Iterator[Dim]:
    """The first positions along the last axis at which a comparison changes its result, or a remainder restarts."""
    symbols = axis_symbols(s.axes)
    for n in walk(s.expr):
        if isinstance(n, Binary) and n.lhs.dtype == I64:
            if n.op in ("lt", "le") or (clamps and n.op in ("min", "max")):
                yield from _mark(n, s.axes[-1], symbols)
            elif n.op in ("mod", "floordiv"):
                yield from _periods(n, s.axes[-1])


def _mark(n: Binary, axis: Axis, symbols: dict[str, Dim]) -> Iterator[Dim]:
    left, right = to_dim(n.lhs, symbols), to_dim(n.rhs, symbols)
    if left is None or right is None:
        return
    here, gap = symbols[axis.name], right - left
    for sign in (1, -1):
        rest = gap - sign * here
        if not any(map(is_axis, dim.symbols(rest))):  # it holds from -rest on, or until rest
            strict = n.op == "lt"
            yield -rest + strict if sign > 0 else rest + (not strict)


def _periods(n: Binary, axis: Axis) -> Iterator[Dim]:
    """Multiples of a position's divisor, if there are certainly only a few."""
    period = to_dim(n.rhs, {})
    if n.lhs != Index(axis.name) or period is None:
        return
    if period == 0 or not isinstance(times := dim.floordiv(axis.extent, period), int) or times > MOST:
        return
    yield from (period * k for k in range(1, times + (axis.extent != period * times)))
