"""Finds out-of-bounds reads of a te function: native code does not check bounds.

A search, not a proof: indices are computed at sample positions of the box, its corners among them. Every finding is
real: no check of the function on sizes and no `Select` prevents it. Data-dependent indices are skipped: native code
clamps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from occ.compiler.ir.dim import Dim, evaluate
from occ.compiler.ir.dtype import BOOL
from occ.compiler.ir.te.expr import Axis, Binary, Call, Cast, Const, Expr, Index, Load, Reduce, Select, Size
from occ.compiler.ir.te.function import AnyStage, Scatter, TeFunc, reduce_axes
from occ.compiler.ir.te.walks import children, walk

Array = np.ndarray  # f64, with NaN for unknown values
_EXACT = 1 << 53  # elements that f64 counts exactly; no memory has that many
_POSITIONS = 4096  # positions of a stage's box that are sampled
_VISITS = 20_000  # nodes of a function: one below several `Select`s is visited for each
_UNKNOWN = np.array(np.nan)
_BINARY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "mod": np.mod,
    "floordiv": np.floor_divide, "rem": np.fmod, "div": lambda a, b: np.trunc(a / b), "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal,
}  # fmt: skip
_CALLS: dict[str, Any] = {"neg": np.negative, "abs": np.abs, "not": lambda a: 1 - a}


def out_of_bounds_read(f: TeFunc, dims: Mapping[str, int]) -> str:
    """Where a function reads outside of a tensor; empty if no sample does.

    Args:
        f: the function; a user's, in C++, is not inspected.
        dims: the sizes of a call; nothing is checked beyond what positions can count.
    """
    if f.halide:
        return ""
    shapes = {name: _extents(shape, dims) for name, shape in f.shapes.items()}
    for r in f.results:
        if shapes.get(r.name) != _extents(r.type.dims, dims):
            return f"computes {_shown(shapes.get(r.name))} for the result {r.name} : {r.type}"
    if any(n > _EXACT for n in (*dims.values(), *(n for shape in shapes.values() for n in shape))):
        return ""
    with np.errstate(all="ignore"):
        return _Call(f, dims, shapes).problem()


def _extents(shape: Sequence[Dim], dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, dims) for d in shape)


def _shown(shape: Sequence[int] | None) -> str:
    return "nothing" if shape is None else str([*shape])


class _Call:
    """A call of a function."""

    def __init__(self, f: TeFunc, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.f, self.dims, self.shapes = f, dims, shapes
        self.visits = 0

    def problem(self) -> str:
        """The out-of-bounds read; none if a check certainly fails."""
        if any(np.any(_Scope(self, c.axes, len(c.axes)).value(c.cond) == 0) for c in self.f.checks):
            return ""
        for s in self.f.stages:
            for axes, exprs in _parts(s):
                scope = _Scope(self, axes, len(axes) + sum(len(reduce_axes(e)) for e in exprs))
                if text := next(self._visit(scope, exprs), ""):
                    return f"{s.name} {text}"
        return ""

    def _visit(self, first: _Scope, exprs: Sequence[Expr]) -> Iterator[str]:
        """Loads that are certainly evaluated."""
        stack: list[tuple[Expr, _Scope, Array]] = [(e, first, np.array(True)) for e in exprs]
        seen: dict[tuple[int, int, int], Any] = {}
        while stack and self.visits < _VISITS:
            item = node, scope, guard = stack.pop()
            key = id(node), id(scope), id(guard)
            if key in seen:
                continue
            seen[key] = item  # which keeps the named nodes alive
            self.visits += 1
            match node:
                case Select():
                    cond = scope.value(node.cond)
                    stack.append((node.cond, scope, guard))
                    for side, e in ((1, node.then), (0, node.other)):
                        taken = guard & (cond == side)
                        if taken.any():
                            stack.append((e, scope, taken))
                case Reduce():  # in a branch of a select too: native code computes it before selecting
                    stack.append((node.body, scope.within(node.axes), np.array(True)))
                case Load():
                    for k, (i, n) in enumerate(zip(node.index, self.shapes.get(node.source, ()), strict=False)):
                        what = f"reads {node.source} at {{}} of {n} along its axis {k}"
                        at = scope.value(i)
                        yield from _left(
                            np.where(np.isnan(at), -1.0, at) if _is_fixed(i) else at, n, guard, scope, what
                        )
                        stack.append((i, scope, guard))
                case _:
                    stack.extend((e, scope, guard) for e in children(node))


def _parts(s: AnyStage) -> list[tuple[tuple[Axis, ...], tuple[Expr, ...]]]:
    """The boxes of a stage, with the expressions computed in each."""
    if isinstance(s, Scatter):
        return [(s.axes, (s.init,)), (s.over, (*s.target, s.value))]
    return [(s.axes, s.exprs)]


def _is_fixed(e: Expr) -> bool:
    """Whether an index depends on positions and sizes only: then it may slightly exceed 64 bits."""
    return all(
        isinstance(n, (Const, Index, Size, Select)) or (isinstance(n, Binary) and n.op in (*_BINARY, "and", "or"))
        for n in walk(e)
    )


def _left(index: Array, extent: int, guard: Array, scope: _Scope, text: str) -> Iterator[str]:
    wrong = guard & ((index < 0) | (index >= extent))
    if wrong.any() and not scope.is_empty:
        found = np.broadcast_to(index, wrong.shape)[wrong]
        yield text.format(int(found.flat[0]))


class _Scope:
    """Positions on axes, each on an array axis of its own, and the values of expressions at them."""

    def __init__(self, call: _Call, axes: Sequence[Axis], count: int, outer: _Scope | None = None) -> None:
        self.call, self.count = call, max(count, 1)
        self.along: dict[str, Array] = dict(outer.along) if outer else {}
        self.rank = outer.rank if outer else 0
        self.is_empty = bool(outer and outer.is_empty)
        for a in axes:
            at = self._positions(evaluate(a.extent, call.dims))
            self.is_empty |= not at.size
            self.along[a.name] = at.reshape(-1, *[1] * self.rank)
            self.rank += 1
        self._inner: dict[tuple[Axis, ...], _Scope] = {}
        self._memo: dict[int, tuple[Expr, Array]] = {}

    def _positions(self, n: int) -> Array:
        n = min(n, _EXACT)
        most = max(int(_POSITIONS ** (1 / self.count)), 4)
        if n <= most:
            return np.arange(float(max(n, 0)))
        return np.unique(np.concatenate([np.linspace(0, n - 1, most - 2).round(), [1.0, n - 2.0]]))

    def within(self, axes: tuple[Axis, ...]) -> _Scope:
        """The positions of a reduction here."""
        if axes not in self._inner:
            self._inner[axes] = _Scope(self.call, axes, self.count, self)
        return self._inner[axes]

    def value(self, e: Expr) -> Array:
        """The value at each position; it broadcasts."""
        if id(e) not in self._memo:
            for n in walk(e):
                if id(n) not in self._memo:
                    self._memo[id(n)] = n, self._compute(n)
        return self._memo[id(e)][1]

    def _compute(self, e: Expr) -> Array:
        if e.dtype != BOOL and not e.dtype.is_int:
            return _UNKNOWN
        match e:
            case Const():
                found = np.array(float(e.value.real))
            case Size():
                found = np.array(float(evaluate(e.dim, self.call.dims)))
            case Index():
                found = self.along.get(e.name, _UNKNOWN)
            case Binary():
                found = _binary(e, self._known(e.lhs), self._known(e.rhs))
            case Call() if e.fn in (("not",) if e.dtype == BOOL else ("neg", "abs")):
                found = _CALLS[e.fn](self._known(e.args[0]))
            case Select():
                cond, then, other = map(self._known, (e.cond, e.then, e.other))
                found = np.where(cond == 1, then, np.where(cond == 0, other, np.nan))
            case Cast() if e.dtype.is_int and (e.arg.dtype.is_int or e.arg.dtype == BOOL):
                found = self._known(e.arg)
            case _:
                found = _UNKNOWN
        if e.dtype == BOOL:
            return found
        return np.where((found >= e.dtype.lowest) & (found <= e.dtype.highest), found, np.nan)

    def _known(self, e: Expr) -> Array:
        return self._memo[id(e)][1]


def _binary(e: Binary, a: Array, b: Array) -> Array:
    if e.op in ("and", "or") and e.dtype == BOOL:
        decides = float(e.op == "or")
        return np.where(
            (a == decides) | (b == decides), decides, np.where(np.isnan(a) | np.isnan(b), np.nan, 1 - decides)
        )
    if e.op not in _BINARY:
        return _UNKNOWN
    unknown = np.isnan(a) | np.isnan(b) | ((b == 0) & (e.op in ("floordiv", "mod", "div", "rem")))
    return np.where(unknown, np.nan, _BINARY[e.op](a, b))
