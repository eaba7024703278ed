"""Reductions over axes, arg-reductions, softmax-like rows, and global pooling."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from occ.compiler.diagnostics import Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, Sym, product
from occ.compiler.ir.dtype import BOOL
from occ.compiler.ir.operator.random_shapes import of_rank, picture
from occ.compiler.ir.operator.ranks import length, without
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import at_least, normalize_axes, normalize_axis
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def static_axes(operator: str, x: Tensor, axes: Tensor | None, *, noop_if_empty: bool = False) -> tuple[int, ...]:
    """The axes operand as a tuple counted from the front; all axes if it is absent or empty.

    Raises:
        Unresolved: the axes are computed at run time.
    """
    if axes is not None:
        if axes.value is None or any(not isinstance(v, int) for v in axes.value):
            raise Unresolved(operator, "axes")
        if axes.value:
            return tuple(sorted(normalize_axes([int(v) for v in axes.value if isinstance(v, int)], x.rank, operator)))
    return () if noop_if_empty else tuple(range(x.rank))


def over_axes(
    t: Builder, kind: str, x: Tensor, axes: Sequence[int], fn: Callable[[Expr], Expr], *, keepdims: bool = True
) -> Tensor:
    """Reduce `fn(element)` over `axes`, in any order; without axes, the element itself."""
    axes = sorted(axes)
    if not axes:
        return _map(t, x, fn, kind)
    kept = [k for k in range(x.rank) if k not in axes]
    shape = [1 if k in axes else n for k, n in enumerate(x.shape)] if keepdims else [x.shape[k] for k in kept]

    def element(*i: Expr) -> Expr:
        outer, inner = list(i[: len(shape)]), iter(i[len(shape) :])
        position = iter(outer if not keepdims else [outer[k] for k in kept])
        return fn(x[tuple(next(inner) if k in axes else next(position) for k in range(x.rank))])

    return t.reduce(kind, shape, [x.shape[k] for k in axes], element, name=kind)


def count_of(x: Tensor, axes: Sequence[int], dtype: Any) -> Expr:
    """The number of elements that a reduction over `axes` combines, as a number of `dtype`."""
    n: Dim = product(x.shape[k] for k in axes)
    return cast(dtype, wrap(n)) if isinstance(n, Sym) else literal(n, dtype)


def _map(t: Builder, x: Tensor, fn: Callable[[Expr], Expr], name: str) -> Tensor:
    return t.map(x.shape, lambda *i: fn(x[i]), name=name)


Step = Callable[[Expr], Expr]
# operator -> (kind, element function, result function); sums of narrow floats accumulate in f32
REDUCTIONS: dict[str, tuple[str, Step, Step]] = {
    "ReduceSum": ("sum", f.in_acc, lambda s: s),
    "ReduceMax": ("max", lambda x: x, lambda s: s),
    "ReduceMin": ("min", lambda x: x, lambda s: s),
    "ReduceProd": ("prod", f.in_acc, lambda s: s),
    "ReduceL1": ("sum", lambda x: f.absolute(f.in_acc(x)), lambda s: s),
    "ReduceSumSquare": ("sum", lambda x: f.in_acc(x) * f.in_acc(x), lambda s: s),
    "ReduceL2": ("sum", lambda x: f.in_acc(x) * f.in_acc(x), f.by_floats(f.root)),
    "ReduceLogSum": ("sum", f.in_acc, f.by_floats(f.log)),
}


def _rank(data: Tensor, axes: Tensor | None = None, *, a: SimpleNamespace) -> int | None:
    if a.keepdims or (length(axes) == 0 and a.noop_with_empty_axes):
        return data.rank
    return 0 if length(axes) == 0 else without(data, axes)


def _reduction(name: str) -> OpSpec:
    kind, before, after = REDUCTIONS[name]

    def body(t: Builder, data: Tensor, axes: Tensor | None = None, *, a: SimpleNamespace) -> Tensor:
        over = static_axes(name, data, axes, noop_if_empty=bool(a.noop_with_empty_axes))
        if data.dtype == BOOL:
            acc = over_axes(t, "any" if kind == "max" else "all", data, over, before, keepdims=bool(a.keepdims))
        else:
            acc = over_axes(t, kind, data, over, before, keepdims=bool(a.keepdims))
        done = _map(t, acc, lambda s: cast(data.dtype, after(s)), "done")
        return done

    return OpSpec(name, {"body": body, "static": ("axes",), "rank": _rank, "writes": "any"})


@op("ReduceMean", static=("axes",), rank=_rank, writes="any")
class ReduceMean:
    def body(t, data, axes=None, *, a):
        over = static_axes("ReduceMean", data, axes, noop_if_empty=bool(a.noop_with_empty_axes))
        acc = over_axes(t, "sum", data, over, f.in_acc, keepdims=bool(a.keepdims))
        n = count_of(data, over, acc.dtype)
        return _map(t, acc, lambda s: cast(data.dtype, s / n), "mean")


@op("ReduceLogSumExp", static=("axes",), rank=_rank, writes="any")
class ReduceLogSumExp:
    def body(t, data, axes=None, *, a):
        over = static_axes("ReduceLogSumExp", data, axes, noop_if_empty=bool(a.noop_with_empty_axes))
        dtype = f.compute_type(data.dtype)
        x = _map(t, data, lambda e: cast(dtype, e), "x")
        peak = over_axes(t, "max", x, over, lambda e: e)
        # An infinite peak would produce inf - inf; it is itself the result.
        safe = _map(t, peak, lambda m: where(equal(f.absolute(m), float("inf")), literal(0, dtype), m), "safe")
        shifted = t.map(x.shape, lambda *i: f.exp(x[i] - safe.at(_drop(i, over))), name="e")
        total = over_axes(t, "sum", shifted, over, lambda e: e)
        result = t.map(total.shape, lambda *i: cast(data.dtype, f.log(total[i]) + safe[i]), name="lse")
        return result if a.keepdims else squeeze(t, result, over)


def _drop(index: Sequence[Expr], axes: Sequence[int]) -> tuple[Expr, ...]:
    """The index into the reduced tensor with kept dims: 0 on the reduced axes."""
    return tuple(wrap(0) if k in axes else i for k, i in enumerate(index))


def squeeze(t: Builder, x: Tensor, axes: Sequence[int]) -> Tensor:
    """`x` without the given axes, each of extent 1."""
    shape = [n for k, n in enumerate(x.shape) if k not in axes]

    def element(*i: Expr) -> Expr:
        it = iter(i)
        return x[tuple(wrap(0) if k in axes else next(it) for k in range(x.rank))]

    return t.map(shape, element, name="squeeze")


def _arg_reduction(name: str) -> OpSpec:
    kind = name.lower()

    def body(t: Builder, data: Tensor, *, a: SimpleNamespace) -> Tensor:
        axis = normalize_axis(a.axis, data.rank, name)
        results = product(d for k, d in enumerate(data.shape) if k != axis)
        n = at_least(data.shape[axis], dim.minimum(results, 1), f"`{name}` of an axis without elements")
        shape = [(1 if k == axis else d) for k, d in enumerate(data.shape) if k != axis or a.keepdims]

        def element(*i: Expr) -> Expr:
            outer, r = list(i[:-1]), i[-1]
            position = (n - 1 - r) if a.select_last_index else r
            index = [*outer[:axis], position, *outer[axis + (1 if a.keepdims else 0) :]]
            return data[tuple(index)]

        found = t.reduce(kind, shape, [n], element, name=kind)
        return _map(t, found, lambda k: n - 1 - k, "last") if a.select_last_index else found

    return OpSpec(name, {"body": body})


def softmax_parts(t: Builder, x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """`x - max`, its exponentials, and their sums along `axis` (kept), in the accumulation type."""
    dtype = x.dtype.acc
    peak = over_axes(t, "max", x, [axis], lambda e: cast(dtype, e))
    shifted = t.map(x.shape, lambda *i: cast(dtype, x[i]) - peak[_drop(i, [axis])], name="shifted")
    e = t.map(x.shape, lambda *i: f.decay(shifted[i]), name="e")
    return shifted, e, over_axes(t, "sum", e, [axis], lambda v: v)


@op("Softmax", sample=of_rank(2), reads="last")
class Softmax:
    def body(t, x, *, a):
        axis = normalize_axis(a.axis, x.rank, "Softmax")
        _, e, total = softmax_parts(t, x, axis)
        share = t.map(total.shape, lambda *i: literal(1, total.dtype) / total[i], name="share")
        return t.map(x.shape, lambda *i: cast(x.dtype, e[i] * share[_drop(i, [axis])]), name="softmax")


@op("LogSoftmax", reads="last")
class LogSoftmax:
    def body(t, x, *, a):
        axis = normalize_axis(a.axis, x.rank, "LogSoftmax")
        shifted, _, total = softmax_parts(t, x, axis)
        return t.map(x.shape, lambda *i: cast(x.dtype, shifted[i] - f.log(total[_drop(i, [axis])])), name="log_softmax")


@op("Hardmax")
class Hardmax:
    def body(t, x, *, a):
        axis = normalize_axis(a.axis, x.rank, "Hardmax")
        shape = [1 if k == axis else n for k, n in enumerate(x.shape)]
        first = t.reduce("argmax", shape, [x.shape[axis]], lambda *i: x[(*i[:axis], i[-1], *i[axis + 1 : -1])])
        one = literal(1, x.dtype)
        return t.map(
            x.shape, lambda *i: where(equal(i[axis], first[_drop(i, [axis])]), one, literal(0, x.dtype)), name="hardmax"
        )


def _global_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.rank))


@op("GlobalAveragePool", sample=picture, writes="any")
class GlobalAveragePool:
    def body(t, x, *, a):
        acc = over_axes(t, "sum", x, _global_axes(x), f.in_acc)
        n = count_of(x, _global_axes(x), acc.dtype)
        return _map(t, acc, lambda s: cast(x.dtype, s / n), "mean")


@op("GlobalMaxPool", sample=picture, writes="any")
class GlobalMaxPool:
    def body(t, x, *, a):
        return over_axes(t, "max", x, _global_axes(x), lambda e: e)


@op("GlobalLpPool", sample=picture, writes="any")
class GlobalLpPool:
    def body(t, x, *, a):
        acc = over_axes(
            t, "sum", x, _global_axes(x), lambda e: f.power(f.absolute(f.in_acc(e)), literal(a.p, e.dtype.acc))
        )
        return _map(t, acc, lambda s: cast(x.dtype, f.power(s, literal(1 / a.p, s.dtype))), "root")


ALL = (
    *(_reduction(name) for name in REDUCTIONS),
    _arg_reduction("ArgMax"),
    _arg_reduction("ArgMin"),
    ReduceMean,
    ReduceLogSumExp,
    Softmax,
    LogSoftmax,
    Hardmax,
    GlobalAveragePool,
    GlobalMaxPool,
    GlobalLpPool,
)
