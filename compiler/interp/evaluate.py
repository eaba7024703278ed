"""Evaluates te functions with numpy. It shares no code with the code generators.

A stage is evaluated over its whole box at once. Every axis, reduced ones too, is an array axis; a value that does not
depend on an axis has extent 1 there, so that loads with affine indices are strided views and sums of products are
`einsum` calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from occ.compiler.interp.contraction import contract, factors_of, is_contraction
from occ.compiler.interp.conversions import convert
from occ.compiler.interp.scalar_functions import BINARY, call
from occ.compiler.ir.dim import evaluate as dim_value
from occ.compiler.ir.dtype import STR, DType
from occ.compiler.ir.layout import pack, unpack
from occ.compiler.ir.te.expr import (
    FOLDS,
    Axis,
    Binary,
    Bitcast,
    Call,
    Carried,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
)
from occ.compiler.ir.te.function import AnyStage, Check, Scatter, TeFunc, loads, reduce_axes
from occ.compiler.ir.te.scatter_rows import running
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

Array = np.ndarray
# Elements of an intermediate: larger boxes are evaluated in slices of the first axis, smaller where nothing is summed.
LARGEST_BOX, IN_CACHE = 1 << 25, 1 << 18


def run(f: TeFunc, inputs: Sequence[Array], dims: Mapping[str, int]) -> list[Array]:
    """Evaluate a te function.

    Args:
        f: the function.
        inputs: an array for each parameter, in its layout.
        dims: values of the symbolic dims.

    Raises:
        RunError: OCC0504 a check of the function fails.
    """
    sources: dict[str, Array] = {}
    for p, x in zip(f.params, inputs, strict=True):
        shape = tuple(dim_value(d, dims) for d in p.type.dims)
        sources[p.name] = unpack(x, p.type.layout, shape)
    with np.errstate(all="ignore"):
        waiting = _check(f.checks, sources, dims)
        for s in f.stages:
            sources[s.name] = _stage(s, sources, dims)
            waiting = _check(waiting, sources, dims)
    return [pack(sources[r.name], r.type.layout) for r in f.results]


def _check(checks: Sequence[Check], sources: Mapping[str, Array], dims: Mapping[str, int]) -> list[Check]:
    """Fail if one does not hold; returns those that depend on stages that are not computed yet."""
    waiting = [c for c in checks if not {n.source for n in loads(c.cond)} <= sources.keys()]
    for c in (c for c in checks if c not in waiting):
        box = _Box(c.axes, dims, sources)
        if not np.all(np.broadcast_to(box.value(c.cond), box.shape)):
            raise RunError("OCC0504", c.message)
    return waiting


def _stage(s: AnyStage, sources: Mapping[str, Array], dims: Mapping[str, int]) -> Array:
    if isinstance(s, Scatter):
        return _scatter(s, sources, dims)
    box, reduced = _Box(s.axes, dims, sources), reduce_axes(s.expr)
    if (out := np.empty(box.shape, s.dtype.numpy)).size == 0:
        return out
    per_row = math.prod(box.shape[1:]) * math.prod(dim_value(a.extent, dims) for a in reduced)
    rows = max(1, (LARGEST_BOX if reduced else IN_CACHE) // max(per_row, 1))
    if not box.shape or rows >= box.shape[0] or is_contraction(s.expr):
        out[...] = box.value(s.expr)
        return out
    for start in range(0, box.shape[0], rows):
        part = slice(start, min(start + rows, box.shape[0]))
        out[part] = _Box(s.axes, dims, sources, first=part).value(s.expr)
    return out


_SCATTER: dict[str, Callable[..., Any]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scatter(s: Scatter, sources: Mapping[str, Array], dims: Mapping[str, int]) -> Array:
    box = _Box(s.axes, dims, sources)
    out = np.empty(box.shape, s.dtype.numpy)
    out[...] = box.value(s.init)
    over = _Box(s.over, dims, sources)
    if math.prod(over.shape) == 0:
        return out
    if how := running(s):
        return _running(s, how, over, out)
    target = tuple(np.broadcast_to(over.value(e), over.shape).reshape(-1) for e in s.target)
    value = np.broadcast_to(over.value(s.value), over.shape).reshape(-1)
    if s.combine in ("set", "into"):
        out[target] = value
    else:
        _SCATTER[s.combine](out, target, value)
    return out


def _running(s: Scatter, how: str, over: _Box, out: Array) -> Array:
    target = tuple(np.broadcast_to(over.value(e), over.shape) for e in s.target)
    value = np.broadcast_to(over.value(s.value), over.shape)
    ufunc = np.add if how == "add" else np.multiply
    out[target] = ufunc.accumulate(value, axis=0, dtype=out.dtype)
    return out


@dataclass(frozen=True)
class _Affine:
    const: int
    coeffs: dict[str, int]


class _Box:
    """An index box, and the values of expressions over it."""

    def __init__(
        self, axes: Sequence[Axis], dims: Mapping[str, int], sources: Mapping[str, Array], first: slice | None = None
    ) -> None:
        self.dims, self.sources = dims, sources
        self.ranges: dict[str, range] = {a.name: range(dim_value(a.extent, dims)) for a in axes}
        if first is not None:
            self.ranges[axes[0].name] = range(first.start, first.stop)
        self._memo: dict[int, tuple[Expr, Any]] = {}
        self.carried: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.ranges.values()))

    def value(self, e: Expr) -> Any:
        """The value over the box: an array that broadcasts to its shape, or a scalar."""
        found = self._memo.get(id(e))
        if found is None:
            found = self._memo[id(e)] = (e, self._compute(e))
        return found[1]

    def _compute(self, e: Expr) -> Any:
        match e:
            case Const():
                return "" if e.dtype == STR else e.dtype.numpy.type(e.value)  # 0 is no text
            case Size():
                return np.int64(dim_value(e.dim, self.dims))
            case Index():
                return self._along(e.name)
            case Load():
                return self._load(e)
            case Binary():
                return BINARY[e.op](self.value(e.lhs), self.value(e.rhs), e.lhs.dtype)
            case Call():
                return call(e.fn, [self.value(a) for a in e.args], e.args[0].dtype)
            case Select():
                return np.where(self.value(e.cond), self.value(e.then), self.value(e.other))
            case Cast():
                return convert(self.value(e.arg), e.arg.dtype, e.dtype)
            case Bitcast():
                return np.asarray(self.value(e.arg), order="C").view(e.dtype.numpy)
            case Carried():
                return self.carried
            case Reduce() if e.kind in FOLDS:
                return self._folded(e)
            case Reduce():
                return self._reduce(e)
            case _:
                raise AssertionError(type(e))

    def _along(self, axis: str) -> Array:
        position = list(self.ranges).index(axis)
        r = self.ranges[axis]
        return np.arange(r.start, r.stop).reshape([-1 if k == position else 1 for k in range(len(self.ranges))])

    def _load(self, e: Load) -> Any:
        source = self.sources[e.source]
        if source.size == 0:
            return source.dtype.type(0)
        affine = [self._affine(i) for i in e.index]
        known = [a for a in affine if a is not None]
        if len(known) == len(affine) and all(self._inside(a, n) for a, n in zip(known, source.shape, strict=True)):
            return self._view(source, known)
        index = [np.clip(self.value(i), 0, n - 1) for i, n in zip(e.index, source.shape, strict=True)]
        return source[tuple(index)]

    def _affine(self, e: Expr) -> _Affine | None:
        match e:
            case Const():
                return _Affine(int(e.value.real), {})
            case Size():
                return _Affine(dim_value(e.dim, self.dims), {})
            case Index():
                return _Affine(0, {e.name: 1})
            case Binary(op="add" | "sub" | "mul"):
                a, b = self._affine(e.lhs), self._affine(e.rhs)
                if a is None or b is None:
                    return None
                if e.op == "mul":
                    if a.coeffs and b.coeffs:
                        return None
                    a, k = (a, b.const) if a.coeffs else (b, a.const)
                    return _Affine(a.const * k, {n: c * k for n, c in a.coeffs.items()})
                sign = 1 if e.op == "add" else -1
                names = {**a.coeffs, **b.coeffs}
                return _Affine(
                    a.const + sign * b.const, {n: a.coeffs.get(n, 0) + sign * b.coeffs.get(n, 0) for n in names}
                )
            case _:
                return None

    def _inside(self, a: _Affine, extent: int) -> bool:
        lo = hi = a.const
        for name, c in a.coeffs.items():
            r = self.ranges[name]
            if len(r) == 0:
                return False
            ends = (c * r.start, c * (r.stop - 1))
            lo, hi = lo + min(ends), hi + max(ends)
        return lo >= 0 and hi < extent

    def _view(self, source: Array, index: list[_Affine]) -> Array:
        start = tuple(a.const + sum(c * self.ranges[n].start for n, c in a.coeffs.items()) for a in index)
        strides = dict.fromkeys(self.ranges, 0)
        for a, step in zip(index, source.strides, strict=True):
            for n, c in a.coeffs.items():
                strides[n] += c * step
        strides |= {n: 0 for n, r in self.ranges.items() if len(r) == 1}  # never taken, and of any size
        used = {n for a in index for n, c in a.coeffs.items() if c}
        shape = [len(r) if n in used else 1 for n, r in self.ranges.items()]
        origin = source[tuple(slice(s, None) for s in start)]
        if source.dtype.isbuiltin != 2:  # of a built-in numpy type; 0 if it was unpickled
            return as_strided(origin, shape, [strides[n] for n in self.ranges], writeable=False)
        bits = origin.view(f"u{source.itemsize}")  # numpy does not describe the strides of types it does not know
        return as_strided(bits, shape, [strides[n] for n in self.ranges], writeable=False).view(source.dtype)

    def _folded(self, e: Reduce) -> Any:
        (axis,) = e.axes
        carried: Any = e.dtype.numpy.type(0)
        for k in range(dim_value(axis.extent, self.dims)):
            step = _Box((), self.dims, self.sources)
            step.ranges, step.carried = self.ranges | {axis.name: range(k, k + 1)}, carried
            before, carried = carried, step.value(e.body)
            if e.kind == "settle" and k and np.array_equal(before, carried):
                break
        return np.asarray(carried).reshape(np.shape(carried)[: len(self.ranges)])  # without that axis

    def _reduce(self, e: Reduce) -> Any:
        inner = _Box((), self.dims, self.sources)
        inner.ranges = self.ranges | {a.name: range(dim_value(a.extent, self.dims)) for a in e.axes}
        rank, extra = len(self.ranges), len(e.axes)
        if is_contraction(e) and all(len(inner.ranges[a.name]) for a in e.axes):
            return contract([inner.value(x) for x in factors_of(e.body)], inner.shape, rank)
        body = np.asarray(inner.value(e.body))
        full = np.broadcast_to(
            body, [*np.broadcast_shapes(body.shape, (1,) * (rank + extra))[:rank], *inner.shape[rank:]]
        )
        return _fold(e.kind, full, tuple(range(rank, rank + extra)), e.body.dtype)


def _fold(kind: str, x: Array, axes: tuple[int, ...], dtype: DType) -> Any:
    if kind in ("argmax", "argmin"):
        (axis,) = axes
        if x.shape[axis] == 0:
            return np.zeros([n for k, n in enumerate(x.shape) if k != axis], np.int64)
        return (np.argmax if kind == "argmax" else np.argmin)(x, axis=axis)
    match kind:
        case "sum":
            return np.sum(x, axes, dtype=x.dtype)
        case "prod":
            return np.prod(x, axes, dtype=x.dtype)
        case "max":
            return np.max(x, axes, initial=convert(np.array(dtype.lowest), dtype, dtype))
        case "min":
            return np.min(x, axes, initial=convert(np.array(dtype.highest), dtype, dtype))
        case "any":
            return np.any(x, axes)
        case _:
            return np.all(x, axes)
