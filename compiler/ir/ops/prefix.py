"""Cumulative sums, ReverseSequence, TensorScatter, Det: elements that depend on those before them."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.movement import static_ints
from occ.compiler.ir.ops.prefix_sums import columns, running
from occ.compiler.ir.shape import equal_dims, normalize_axis, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def _cumulative(name: str, combine: str, neutral: int) -> OpSpec:
    """CumSum and CumProd; reverse ones run over the elements backwards."""

    def body(t: Builder, x: Tensor, axis: Tensor, *, a: SimpleNamespace) -> Tensor:
        k = normalize_axis(static_ints(name, "axis", axis)[0], x.rank, name)
        n, dtype = x.shape[k], x.dtype.acc
        one = literal(neutral, dtype)

        def turned(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return (*i[:k], wrap(n - 1) - i[k], *i[k + 1 :]) if a.reverse else i

        def start(*i: Expr) -> Expr:
            if not a.exclusive:
                return cast(dtype, x[turned(i)])
            before = turned((*i[:k], i[k] - 1, *i[k + 1 :]))
            return where(i[k] >= 1, cast(dtype, x[before]), one)

        if product(x.shape[k + 1 :]) != 1:
            value = columns(t, x.shape, k, lambda *i: start(*turned(i)), combine, one, reverse=bool(a.reverse))
            return value if dtype == x.dtype else t.map(x.shape, lambda *i: cast(x.dtype, value[i]), name="narrow")
        plain = not a.reverse and not a.exclusive and dtype == x.dtype
        value = running(t, x if plain else t.map(x.shape, start, name="start"), k, combine, one)
        if not a.reverse and dtype == x.dtype:
            return value
        return t.map(x.shape, lambda *i: cast(x.dtype, value[turned(i)]), name="in_place")

    return OpSpec(name, {"body": body, "static": ("axis",), "rank": same})


@op("ReverseSequence")
class ReverseSequence:
    """The first `sequence_lens[b]` steps of each batch in reverse order."""

    def body(t, x, lens, *, a):
        time, batch = a.time_axis, a.batch_axis
        if x.rank < 2 or sorted((time, batch)) != [0, 1]:
            raise Invalid(
                f"`ReverseSequence`: time axis {time} and batch axis {batch} of rank {x.rank}", code="OCC0107"
            )
        equal_dims(lens.shape[0], x.shape[batch], "`ReverseSequence`: the lengths and the batch")
        limit = wrap(x.shape[time])
        t.check(
            lens.shape,
            lambda k: (cast(I64, lens[k]) >= 0) & (cast(I64, lens[k]) <= limit),
            "`ReverseSequence` has a length that is outside of the time axis",
        )

        def element(*i):
            n, at = minimum(cast(I64, lens[i[batch]]), limit), i[time]  # the check may run after this
            source = where(at < n, n - 1 - at, at)
            return x[tuple(source if j == time else p for j, p in enumerate(i))]

        return t.map(x.shape, element, name="reversed")


def cache_places(
    t: Builder, past: Tensor, update: Tensor, starts: Tensor | None, axis: int, *, circular: bool, name: str
) -> Callable[[Expr], Expr]:
    """The start of each batch's `update` in a cache, as a function of the batch, with a bounds check."""
    size, length = wrap(past.shape[axis]), wrap(update.shape[axis])

    def start(n: Expr) -> Expr:
        return literal(0, I64) if starts is None else cast(I64, starts[n])

    if starts is not None:
        t.check(
            starts.shape,
            lambda n: (start(n) >= 0) & (start(n) < size if circular else start(n) + length <= size),
            f"`{name}` writes outside of the cache",
        )
    return start


@op("TensorScatter", rank=same)
class TensorScatter:
    """A cache with `update` written from position `write_indices[b]` on along `axis`; wraps around if circular."""

    def body(t, past, update, write_indices=None, *, a):
        axis = normalize_axis(a.axis, past.rank, "TensorScatter")
        if axis == 0:
            raise Invalid("`axis` of `TensorScatter` is the batch axis", code="OCC0107")
        if update.rank != past.rank:
            raise Invalid(f"`TensorScatter`: an update of {show_shape(update.shape)} for {show_shape(past.shape)}")
        for k, (n, m) in enumerate(zip(past.shape, update.shape, strict=True)):
            if k != axis:
                equal_dims(n, m, "`TensorScatter`: the shapes of the cache and the update")
        if write_indices is not None:
            equal_dims(write_indices.shape[0], past.shape[0], "`TensorScatter`: the write indices and the batch")
        size, length = wrap(past.shape[axis]), wrap(update.shape[axis])
        start = cache_places(t, past, update, write_indices, axis, circular=a.mode == "circular", name="TensorScatter")

        def element(*i):
            offset = i[axis] - start(i[0])
            offset = where(offset < 0, offset + size, offset) if a.mode == "circular" else offset
            written = (offset >= 0) & (offset < length)
            return where(written, update[(*i[:axis], offset, *i[axis + 1 :])], past[i])

        return t.map(past.shape, element, name="written")


LARGEST_MATRIX = 128  # rows to eliminate: each column is a stage of a kernel


@op("Det")
class Det:
    """Determinants of square matrices by elimination with pivoting, one column per stage."""

    def body(t, x, *, a):
        n = x.shape[-1]
        if x.rank < 2 or x.shape[-2] != n or not isinstance(n, int):
            raise Invalid(f"`Det` takes square matrices of constant size, not {x.type}")
        if n > LARGEST_MATRIX:
            raise Invalid(
                f"`Det` takes matrices of up to {LARGEST_MATRIX} rows, not {n}: each column is a stage of the kernel"
            )
        dtype, batch = x.dtype.acc, x.shape[:-2]
        m = t.map(x.shape, lambda *i: cast(dtype, x[i]), name="matrix")
        det = t.map(batch, lambda *i: literal(1, dtype), name="det")
        for c in range(n):
            m, det = _eliminated(t, m, det, c)
        return det if dtype == x.dtype else t.map(batch, lambda *i: cast(x.dtype, det[i]), name="narrow")


def largest_pivot_first(t: Builder, m: Tensor, c: int) -> tuple[Tensor, Tensor]:
    """Rows of `m` swapped so that row `c` has the largest pivot, and the distance."""
    n, batch = int(m.shape[-2]), m.shape[:-2]
    found = t.reduce("argmax", batch, [n - c], lambda *i: f.absolute(m[(*i[:-1], i[-1] + c, wrap(c))]), name="pivot")

    def swapped(*i: Expr) -> Expr:
        *b, row, column = i
        pivot = found[tuple(b)] + c
        source = where(equal(row, c), pivot, where(equal(row, pivot), wrap(c), row))
        return m[(*b, source, column)]

    return t.map(m.shape, swapped, name="swapped"), found


def _eliminated(t: Builder, m: Tensor, det: Tensor, c: int) -> tuple[Tensor, Tensor]:
    """Column `c` of the remaining rows eliminated with the largest pivot, and the determinant times that pivot."""
    batch = m.shape[:-2]
    s, found = largest_pivot_first(t, m, c)

    def grown(*b: Expr) -> Expr:
        value = det[b] * s[(*b, wrap(c), wrap(c))]
        return where(equal(found[b], 0), value, -value)

    def cleared(*i: Expr) -> Expr:
        *b, row, column = i
        pivot = s[(*b, wrap(c), wrap(c))]
        factor = where(equal(pivot, 0), literal(0, pivot.dtype), s[(*b, row, wrap(c))] / pivot)
        return where(row > c, s[i] - factor * s[(*b, wrap(c), column)], s[i])

    return t.map(m.shape, cleared, name="cleared"), t.map(batch, grown, name="det")


ALL = (_cumulative("CumSum", "add", 0), _cumulative("CumProd", "mul", 1), ReverseSequence, TensorScatter, Det)
