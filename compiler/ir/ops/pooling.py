"""Pooling: MaxPool, AveragePool, LpPool."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import inf
from operator import add, mul
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I64, DType
from occ.compiler.ir.operator.random_shapes import picture
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.window import Window, window_of
from occ.compiler.ir.shape import show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, literal, maximum, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def _pool_kernel(x: Tensor, a: SimpleNamespace, name: str) -> Window:
    win = window_of(name, x.shape[2:], a.kernel_shape, a, clips=True)
    reaches = [(k - 1) * d + 1 for k, d in zip(win.kernel, win.dilations, strict=True)]
    if a.pads and any(p - r >= 0 for p, r in zip(a.pads, (*reaches, *reaches), strict=True)):
        said = f"`pads` of `{name}` are {show_shape(a.pads)}: a window would be on padding alone"
        raise Invalid(said, code="OCC0107", note=f"each is less than what the kernel spans: {show_shape(reaches)}")
    return win


def _reachable_end(x: Tensor, win: Window) -> tuple[Dim, ...]:
    """End pads that cover the last window, which ceil_mode may let reach past the stated padding."""
    ends: list[Dim] = []
    for k, size in enumerate(x.shape[2:]):
        needed = (win.out[k] - 1) * win.strides[k] + (win.kernel[k] - 1) * win.dilations[k] + 1
        ends.append(dim.maximum(needed - size - win.before[k], 0))
    return tuple(ends)


@op("MaxPool", moves=True, sample=picture, writes="first")
class MaxPool:
    """ONNX MaxPool; `Indices` are flat positions in the input, row-major (or column-major) over all axes."""

    def body(t, x, *, a):
        win = _pool_kernel(x, a, "MaxPool")
        n = len(win.out)
        lowest = literal(x.dtype.lowest, x.dtype)
        padded = t.pad(x, (0, 0, *win.before), (0, 0, *_reachable_end(x, win)), lowest)
        shape = (*x.shape[:2], *win.out)

        def tap(*i):
            return padded[(*i[:2], *win.position(i[2 : 2 + n], i[2 + n :]))]

        pooled = t.reduce("max", shape, win.kernel, tap, name="max_pool")
        if a.n_results == 1:
            return pooled
        return pooled, _max_positions(t, x, padded, win, shape, column_major=bool(a.storage_order))


def _max_positions(
    t: Builder, x: Tensor, padded: Tensor, win: Window, shape: Sequence[Dim], *, column_major: bool
) -> Tensor:
    n = len(win.out)
    taps = 1
    for k in win.kernel:
        taps *= k

    def split(r: Expr) -> tuple[Expr, ...]:
        parts: list[Expr] = []
        for k in reversed(win.kernel):
            parts.append(r % k)
            r = r // k
        return tuple(reversed(parts))

    which = t.reduce(
        "argmax", shape, [taps], lambda *i: padded[(*i[:2], *win.position(i[2 : 2 + n], split(i[-1])))], name="which"
    )

    def flat(*i: Expr) -> Expr:
        pos = win.position(i[2:], split(which[i]))
        rows = [_inside(p - b, b, d) for p, b, d in zip(pos, win.before, win.dilations, strict=True)]
        total = i[0] * wrap(x.shape[1]) + i[1]
        if column_major:
            inner: Expr = literal(0, I64)
            scale: Dim = 1
            for row, size in zip(rows, x.shape[2:], strict=True):
                inner, scale = inner + row * wrap(scale), scale * size
            return total * wrap(scale) + inner
        for row, size in zip(rows, x.shape[2:], strict=True):
            total = total * wrap(size) + row
        return total

    return t.map(shape, flat, name="indices")


def _inside(row: Expr, before: Dim, step: int) -> Expr:
    """The first tap inside the input if `row` is before it, as when pads exceed the kernel."""
    return row if before == 0 else where(row < 0, row % step, row)


def _padded(t: Builder, x: Tensor, win: Window, value: float = 0) -> Tensor:
    """The input surrounded by `value`, as far as windows reach."""
    return t.pad(x, (0, 0, *win.before), (0, 0, *_reachable_end(x, win)), literal(value, x.dtype))


@op("AveragePool", sample=picture, writes="first")
class AveragePool:
    """ONNX AveragePool; without `count_include_pad` the divisor is the number of taps inside the input."""

    def body(t, x, *, a):
        win = _pool_kernel(x, a, "AveragePool")
        n = len(win.out)
        padded = _padded(t, x, win)
        shape = (*x.shape[:2], *win.out)
        acc = t.sum(shape, win.kernel, lambda *i: f.in_acc(padded[(*i[:2], *win.position(i[2 : 2 + n], i[2 + n :]))]))

        def mean(*i: Expr) -> Expr:
            return cast(x.dtype, acc[i] / _taps_inside(x, win, i[2:], acc.dtype, include_pad=a.count_include_pad))

        return t.map(shape, mean, name="average_pool")


def _taps_inside(x: Tensor, win: Window, pos: Sequence[Expr], dtype: DType, *, include_pad: int) -> Expr:
    """The number of taps of a window that count, as a float.

    It is a product of floats: as a product of integers it became a polynomial of all positions, which took half of the
    time of a pool.
    """
    known, counts = 1, list[Expr]()
    for k, o in enumerate(pos):
        low: Dim = 0 if include_pad else win.before[k]
        high = win.before[k] + x.shape[2 + k] + (win.after[k] if include_pad else 0)
        last = (win.out[k] - 1) * win.strides[k] + (win.kernel[k] - 1) * win.dilations[k]
        if low == 0 and dim.is_positive(high - last):
            known *= win.kernel[k]
        elif win.dilations[k] == 1:
            start = o * win.strides[k]
            counts.append(minimum(start + win.kernel[k], high) - maximum(start, low))
        else:
            taps = (o * win.strides[k] + tap * win.dilations[k] for tap in range(win.kernel[k]))
            counts.append(reduce(add, (cast(I64, (at >= low) & (at < high)) for at in taps)))
    factors = [cast(dtype, n) for n in counts]
    return reduce(mul, factors if factors and known == 1 else [literal(known, dtype), *factors])


@op("LpPool", sample=picture, writes="first")
class LpPool:
    """ONNX LpPool, the p-norm of a window; the padding adds nothing, for a negative `p` either."""

    def body(t, x, *, a):
        win = _pool_kernel(x, a, "LpPool")
        n = len(win.out)
        padded = _padded(t, x, win, 0 if a.p > 0 else inf)
        shape = (*x.shape[:2], *win.out)

        def tap(*i):
            value = f.absolute(f.in_acc(padded[(*i[:2], *win.position(i[2 : 2 + n], i[2 + n :]))]))
            return f.power(value, literal(a.p, value.dtype))

        acc = t.sum(shape, win.kernel, tap)
        return t.map(shape, lambda *i: cast(x.dtype, f.power(acc[i], literal(1 / a.p, acc.dtype))), name="lp_pool")


ALL = (MaxPool, AveragePool, LpPool)
