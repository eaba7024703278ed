"""Evaluates te functions with numpy. It shares no code with the code generators.

A stage is evaluated over its whole box at once. Every axis, reduced ones too, is an array axis; a value that does not
depend on an axis has extent 1 there, so that loads with affine indices are strided views and sums of products are
`einsum` calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from occ.compiler.interp.conversions import convert
from occ.compiler.ir.dim import evaluate as dim_value
from occ.compiler.ir.dtype import BOOL, DType
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
    call_dtype,
)
from occ.compiler.ir.te.function import AnyStage, Check, Scatter, TeFunc, loads, reduce_axes
from occ.runtime.errors import RunError

Array = np.ndarray
LARGEST_BOX = 1 << 25  # elements of an intermediate; larger boxes are evaluated in slices of the first axis


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
    """Fail where one does not hold; returns those that look at stages which are not computed yet."""
    waiting = [c for c in checks if not {n.source for n in loads(c.cond)} <= sources.keys()]
    for c in (c for c in checks if c not in waiting):
        box = _Box(c.axes, dims, sources)
        if not np.all(np.broadcast_to(box.value(c.cond), box.shape)):
            raise RunError("OCC0504", c.message)
    return waiting


def _stage(s: AnyStage, sources: Mapping[str, Array], dims: Mapping[str, int]) -> Array:
    if isinstance(s, Scatter):
        return _scatter(s, sources, dims)
    box = _Box(s.axes, dims, sources)
    out = np.empty(box.shape, s.dtype.numpy)
    if out.size == 0:
        return out
    per_row = math.prod(box.shape[1:]) * math.prod(dim_value(a.extent, dims) for a in reduce_axes(s.expr))
    rows = max(1, LARGEST_BOX // max(per_row, 1))
    if not box.shape or rows >= box.shape[0] or _is_contraction(s.expr):
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
    target = tuple(np.broadcast_to(over.value(e), over.shape).reshape(-1) for e in s.target)
    value = np.broadcast_to(over.value(s.value), over.shape).reshape(-1)
    if s.combine in ("set", "into"):
        out[target] = value
    else:
        _SCATTER[s.combine](out, target, value)
    return out


def _is_contraction(e: Expr) -> bool:
    return isinstance(e, Reduce) and e.kind == "sum" and len(_factors(e.body)) > 1


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Binary) and e.op == "mul" and e.dtype.kind in "fiu":
        return _factors(e.lhs) + _factors(e.rhs)
    return [e]


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
                return e.dtype.numpy.type(e.value)
            case Size():
                return np.int64(dim_value(e.dim, self.dims))
            case Index():
                return self._along(e.name)
            case Load():
                return self._load(e)
            case Binary():
                return _BINARY[e.op](self.value(e.lhs), self.value(e.rhs), e.lhs.dtype)
            case Call():
                return _call(e.fn, [self.value(a) for a in e.args], e.args[0].dtype)
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
        used = {n for a in index for n, c in a.coeffs.items() if c}
        shape = [len(r) if n in used else 1 for n, r in self.ranges.items()]
        origin = source[tuple(slice(s, None) for s in start)]
        if source.dtype.isbuiltin != 2:  # of a type that numpy itself has; 0 where that came out of a pickle
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
        if _is_contraction(e) and all(len(inner.ranges[a.name]) for a in e.axes):
            return _contract([inner.value(x) for x in _factors(e.body)], inner.shape, rank)
        body = np.asarray(inner.value(e.body))
        full = np.broadcast_to(
            body, [*np.broadcast_shapes(body.shape, (1,) * (rank + extra))[:rank], *inner.shape[rank:]]
        )
        return _fold(e.kind, full, tuple(range(rank, rank + extra)), e.body.dtype)


def _contract(factors: list[Any], shape: tuple[int, ...], rank: int) -> Array:
    """Sum of a product over the axes from `rank` on, as an einsum of its factors."""
    arrays = [np.asarray(x) for x in factors]
    arrays = [x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in arrays]
    varying = [k for k in range(len(shape)) if any(x.shape[k] > 1 for x in arrays)]
    operands: list[Any] = []
    for x in arrays:
        axes = [k for k in varying if x.shape[k] > 1]
        operands += [x.reshape([x.shape[k] for k in axes]) if x.flags.c_contiguous else _squeeze(x, axes), axes]
    kept = [k for k in varying if k < rank]
    total = np.einsum(*operands, kept, optimize=True)
    constant = math.prod(shape[k] for k in range(rank, len(shape)) if k not in varying)
    total = total * total.dtype.type(constant) if constant != 1 else total
    return total.reshape([shape[k] if k in kept else 1 for k in range(rank)])


def _squeeze(x: Array, axes: Sequence[int]) -> Array:
    return x[tuple(slice(None) if k in axes else 0 for k in range(x.ndim))]


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


def _truncated(a: Any, b: Any, dtype: DType) -> Any:
    if dtype.is_float or dtype.kind == "c":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    return np.where(
        (np.remainder(a, b) != 0) & ((np.asarray(a) < 0) != (np.asarray(b) < 0)), quotient + 1, quotient
    ).astype(dtype.numpy)


def _logical(bitwise: Any, logical: Any) -> Any:
    return lambda a, b, dtype: logical(a, b) if dtype == BOOL else bitwise(a, b)


def _shift(left: bool) -> Any:
    def shift(a: Any, b: Any, dtype: DType) -> Any:
        wide = np.asarray(b).astype(np.int64)
        moved = (np.left_shift if left else np.right_shift)(
            a, np.clip(wide, 0, dtype.bits - 1).astype(np.asarray(b).dtype)
        )
        beyond = np.where(np.asarray(a) < 0, -1, 0) if dtype.kind == "i" and not left else np.zeros_like(a)
        return np.where((wide >= dtype.bits) | (wide < 0), beyond, moved).astype(dtype.numpy)

    return shift


_BINARY: dict[str, Callable[[Any, Any, DType], Any]] = {
    "add": lambda a, b, _: np.add(a, b), "sub": lambda a, b, _: np.subtract(a, b),
    "mul": lambda a, b, _: np.multiply(a, b), "div": _truncated, "rem": lambda a, b, _: np.fmod(a, b),
    "floordiv": lambda a, b, _: np.floor_divide(a, b), "mod": lambda a, b, _: np.remainder(a, b),
    "min": lambda a, b, _: np.minimum(a, b), "max": lambda a, b, _: np.maximum(a, b),
    "eq": lambda a, b, _: np.equal(a, b), "ne": lambda a, b, _: np.not_equal(a, b),
    "lt": lambda a, b, _: np.less(a, b), "le": lambda a, b, _: np.less_equal(a, b),
    "and": _logical(np.bitwise_and, np.logical_and), "or": _logical(np.bitwise_or, np.logical_or),
    "xor": _logical(np.bitwise_xor, np.logical_xor), "shl": _shift(True), "shr": _shift(False),
}  # fmt: skip

_UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round_even": np.rint, "isnan": np.isnan, "isinf": np.isinf,
    "popcount": np.bitwise_count, "pow": lambda a, b: _power(a, b), "atan2": np.arctan2, "nearest": np.rint, "decay": np.exp,
    "log1p": np.log1p,
    "fma": lambda a, b, c: np.float64(a) * b + c,  # exact for f32, but that the sum is rounded to f64 first
}  # fmt: skip


def _power(a: Any, b: Any) -> Any:
    """Powers; of integers with a negative exponent 0, or a power of 1 or -1."""
    a, b = np.asarray(a), np.asarray(b)
    if b.dtype.kind != "i":
        return np.power(a, b)
    whole = np.power(a, np.maximum(b, 0))
    return np.where(b < 0, np.where(np.abs(a) == 1, np.power(a, b & 1), 0), whole)


def _call(fn: str, args: list[Any], dtype: DType) -> Any:
    if fn == "not":
        return np.logical_not(args[0]) if dtype == BOOL else np.bitwise_not(args[0])
    if fn == "erf":
        flat = np.asarray(args[0])
        values = np.fromiter(map(math.erf, flat.reshape(-1).tolist()), np.float64, flat.size)
        return values.reshape(flat.shape).astype(dtype.numpy)
    if dtype.is_int and fn in ("floor", "ceil", "trunc", "round_even"):
        return args[0]
    result = _UNARY[fn](*args)
    dtype = call_dtype(fn, dtype)
    return np.asarray(result).astype(dtype.numpy)
