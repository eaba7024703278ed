"""The operand extents that a te body reads.

Only exact requirements are derived: from loads that occur at every position, at indices whose extremes are reached.
Other loads are in selects, which bodies guard, or at data-dependent indices, which native code clamps.
`bounds_check.py` searches for what remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from occ.compiler.ir.dim import Dim, floordiv, lower, maximum, minimum, upper
from occ.compiler.ir.te.expr import Axis, Binary, Call, Const, Expr, Index, Load, Reduce, Select, Size
from occ.compiler.ir.te.function import AnyStage, Scatter
from occ.compiler.ir.te.walks import children


class Needed(NamedTuple):
    """An axis that is read, and the first and last position read along it.

    Attributes:
        source: parameter or stage.
        axis: of it.
        extent: its extent.
        first, last: positions.
        reads: 1 where some position is computed, so that they are read, and 0 where an axis is empty.
    """

    source: str
    axis: int
    extent: Dim
    first: Dim
    last: Dim
    reads: Dim


class _Ends(NamedTuple):
    """The minimum and maximum that an index reaches, and the axes that it depends on."""

    low: Dim
    high: Dim
    axes: frozenset[str]


def needed(stages: Sequence[AnyStage], shapes: Mapping[str, Sequence[Dim]]) -> Iterator[Needed]:
    """Operand extents that stages require without proof.

    Args:
        stages: in order; later ones may read earlier ones.
        shapes: of the parameters.
    """
    known = dict(shapes)
    for s in stages:
        parts = [(s.axes, (s.init,)), (s.over, (*s.target, s.value))] if isinstance(s, Scatter) else [(s.axes, s.exprs)]
        for axes, exprs in parts:
            for e in exprs:
                yield from _of_expr(e, axes, known)
        known[s.name] = s.shape


def _of_expr(e: Expr, axes: Sequence[Axis], known: Mapping[str, Sequence[Dim]]) -> Iterator[Needed]:
    todo: list[tuple[Expr, tuple[Axis, ...]]] = [(e, tuple(axes))]
    seen = set[int]()
    while todo:
        n, box = todo.pop()
        if id(n) in seen or any(a.extent == 0 for a in box):
            continue
        seen.add(id(n))
        match n:
            case Select():  # the branches may be guarded for a reason
                todo.append((n.cond, box))
                todo += [(r, box) for side in (n.then, n.other) for r in _reductions(side)]
            case Reduce():
                todo.append((n.body, (*box, *n.axes)))
            case Load():
                yield from _of_load(n, box, known)
                todo += [(i, box) for i in n.index]
            case _:
                todo += [(c, box) for c in children(n)]


def _reductions(e: Expr) -> list[Reduce]:
    """The reductions in a branch of a select, which native code computes before selecting."""
    found: list[Reduce] = []
    todo, seen = [e], set[int]()
    while todo:
        n = todo.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        if isinstance(n, Reduce):
            found.append(n)
        else:
            todo += children(n)
    return found


def _of_load(load: Load, box: tuple[Axis, ...], known: Mapping[str, Sequence[Dim]]) -> Iterator[Needed]:
    extents = {a.name: a.extent for a in box}
    for k, (i, n) in enumerate(zip(load.index, known.get(load.source, ()), strict=False)):
        if isinstance(i, Index) and extents.get(i.name) == n:
            continue
        ends = _ends(i, extents)
        if ends is None or (lower(ends.low) >= 0 and lower(n - 1 - ends.high) >= 0):
            continue
        yield Needed(load.source, k, n, ends.low, ends.high, reduce(minimum, extents.values(), 1))


def _ends(e: Expr, extents: Mapping[str, Dim]) -> _Ends | None:
    match e:
        case Const(value=int() as value):
            return _Ends(value, value, frozenset())
        case Size():
            return _Ends(e.dim, e.dim, frozenset())
        case Index() if e.name in extents:
            return _Ends(0, extents[e.name] - 1, frozenset((e.name,)))
        case Call(fn="neg"):
            a = _ends(e.args[0], extents)
            return None if a is None else _Ends(-a.high, -a.low, a.axes)
        case Binary():
            a, b = _ends(e.lhs, extents), _ends(e.rhs, extents)
            return None if a is None or b is None or a.axes & b.axes else _combined(e.op, a, b)
        case _:
            return None


def _combined(op: str, a: _Ends, b: _Ends) -> _Ends | None:
    axes = a.axes | b.axes
    match op:
        case "add":
            return _Ends(a.low + b.low, a.high + b.high, axes)
        case "sub":
            return _Ends(a.low - b.high, a.high - b.low, axes)
        case "min" if not a.axes or not b.axes:
            return _Ends(minimum(a.low, b.low), minimum(a.high, b.high), axes)
        case "max" if not a.axes or not b.axes:
            return _Ends(maximum(a.low, b.low), maximum(a.high, b.high), axes)
        case "mul" if not b.axes:
            return _scaled(a, b.low)
        case "mul" if not a.axes:
            return _scaled(b, a.low)
        case "floordiv" if not b.axes and lower(b.low) > 0:
            return _Ends(floordiv(a.low, b.low), floordiv(a.high, b.low), axes)
        case "mod" if not b.axes and lower(a.low) >= 0 and lower(b.low - 1 - a.high) >= 0:
            return a
        case _:
            return None


def _scaled(a: _Ends, by: Dim) -> _Ends | None:
    if lower(by) >= 0:
        return _Ends(a.low * by, a.high * by, a.axes)
    return _Ends(a.high * by, a.low * by, a.axes) if upper(by) <= 0 else None
