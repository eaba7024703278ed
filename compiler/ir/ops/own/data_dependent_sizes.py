"""Internal ops of data-dependent shapes: computing sizes, and ops whose results have them.

`%p = slice_places(%x, %starts, %ends)  sizes(%p) {defines=[dim<_u0>, dim<_u1>]}  %y = part(%x, dims(_u0, _u1))` is a
Slice with computed ends: the step `sizes` reads its operand, and after it the extents are ordinary sizes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.dtype import F64, I64
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.ops.shape_of import pick
from occ.compiler.ir.shape import assume_equal, equal_dims, show_shape
from occ.compiler.ir.te.expr import Expr, call, cast, equal, literal, maximum, minimum, not_equal, where, wrap
from occ.compiler.ir.types import TensorType

LARGEST = 2**31 - 1  # maximum size: kernels use 32 bits
DECIDED = "sizes"


@op(DECIDED, host=DECIDED, own_attributes="defines=values upper_bounds=sizes? operator=text?")
class Sizes:
    """Sizes that are the elements of a vector; `defines` has unknown ones as symbols, which this binds.

    `upper_bounds` has one for each; `LARGEST` if there is none. `operator` is the name of the one whose results have
    these sizes, for messages.
    """

    operands = ("x",)

    def infer(x, *, a):
        return TensorType(I64, (len(a.defines),))


@op("slice_places", own_attributes="axes=ints strides=ints")
class SlicePlaces:
    """Start and length of a Slice on each axis, in order: i64[2 * axes].

    As ONNX clamps them; the first position is 0 if nothing is taken.
    """

    operands = ("data", "starts", "ends")

    def body(t, data, starts, ends, *, a):
        extents = [data.shape[axis] for axis in a.axes]

        def element(j):
            k, n = j // 2, pick(extents, j // 2)
            step = pick(a.strides, k)
            start, end = (_from_front(cast(I64, x[(k,)]), n) for x in (starts, ends))
            lowest = where(step > 0, literal(0, I64), literal(-1, I64))
            first, last = (minimum(maximum(x, lowest), n + lowest) for x in (start, end))
            span = where(step > 0, last - first, first - last)
            stride = where(step > 0, step, -step)
            count = where(span > 0, (span - 1) // stride + 1, literal(0, I64))
            return where(equal(j % 2, 0), maximum(first, 0), count)

        return t.map([2 * len(a.axes)], element, name="places")


def _from_front(x: Expr, n: Expr) -> Expr:
    return where(x < 0, x + n, x)


@op("part", static=("places",), moves=True, writes="any", own_attributes="axes=ints strides=ints")
class Part:
    """A Slice with computed starts and lengths (`slice_places`)."""

    operands = ("data", "places")

    def body(t, data, places, *, a):
        found = static_dims("Slice", "starts", places)
        shape, first, stride = list(data.shape), [0] * data.rank, [1] * data.rank
        for k, (axis, step) in enumerate(zip(a.axes, a.strides, strict=True)):
            first[axis], shape[axis] = found[2 * k : 2 * k + 2]
            stride[axis] = step
            first[axis] = _within(first[axis], shape[axis], step, data.shape[axis])
        return t.map(
            shape,
            lambda *i: data[tuple(k * s + wrap(f) for k, s, f in zip(i, stride, first, strict=True))],
            name="slice",
        )


def _within(first: Dim, count: Dim, step: int, extent: Dim) -> Dim:
    """The first position, with the assumption that positions are on an axis, as `slice_places` guarantees.

    Backwards it is before an axis without elements, of which nothing is read.
    """
    if step > 0:
        end = first + step * (count - 1)
        assume_equal(dim.minimum(end + 1, extent), end + 1)
        return first
    assume_equal(dim.minimum(first, dim.maximum(extent - 1, 0)), first)
    last = dim.minimum(first, extent - 1)
    end = last + step * (count - 1)
    assume_equal(dim.maximum(end, 0), end)
    return last


@op("range_count", own_attributes="")
class RangeCount:
    """The number of elements of a Range: i64[1]."""

    operands = ("start", "limit", "delta")

    def body(t, start, limit, delta, *, a):
        first, end, step = (x[(0,) * x.rank] for x in (start, limit, delta))
        t.check([], lambda: not_equal(step, 0), "delta is 0")

        def count(_):
            if start.dtype.is_float:
                steps = cast(F64, end - first) / cast(F64, step)
                return where(steps > 0, cast(I64, minimum(call("ceil", steps), float(1 << 62))), literal(0, I64))
            b, e, s = (cast(I64, x) for x in (first, end, step))
            span, stride = where(s > 0, e - b, b - e), maximum(where(s > 0, s, -s), 1)
            return where(span > 0, (span - 1) // stride + 1, literal(0, I64))

        return t.map([1], count, name="count")


@op("ramp", static=("shape",), own_attributes="")
class Ramp:
    """A Range with the number of elements that `range_count` computed."""

    operands = ("start", "delta", "shape")

    def body(t, start, delta, shape, *, a):
        first, step = (x[(0,) * x.rank] for x in (start, delta))
        return t.map(static_dims("Range", "limit", shape), lambda i: first + cast(start.dtype, i) * step, name="range")


@op("expanded_shape", own_attributes="")
class ExpandedShape:
    """The result shape of Expand: i64[rank]."""

    operands = ("x", "shape")

    def body(t, x, shape, *, a):
        given, rank = shape.shape[0], max(x.rank, shape.shape[0])
        own = (*(1,) * (rank - x.rank), *x.shape)

        def asked(j: Expr) -> Expr:
            return where(j >= rank - given, cast(I64, shape[(maximum(j - (rank - given), 0),)]), literal(1, I64))

        def fits(j: Expr) -> Expr:
            n, s = pick(own, j), asked(j)
            return equal(n, 1) | equal(s, 1) | equal(n, s)

        if given:
            t.check([rank], fits, f"{show_shape(x.shape)} does not broadcast to the requested shape")
        return t.map([rank], lambda j: where(equal(asked(j), 1), pick(own, j), asked(j)) if given else pick(own, j))


@op("common_shape", tags=("shape",), own_attributes="")
class CommonShape:
    """The shape to which tensors broadcast if some extents may turn out to be 1 at run time: i64[rank]."""

    operands = ("xs*",)

    def body(t, *xs, a):
        axes = [sorted(found, key=str) for found in on_axes([x.shape for x in xs])]
        whole = [_broadcast(found) for found in axes]
        said = f"{' and '.join(show_shape(x.shape) for x in xs)} do not broadcast"
        for found, d in zip(axes, whole, strict=True):
            for n in found[1:]:
                t.check([], lambda n=n, d=d: equal(wrap(n), 1) | equal(wrap(n), d), said)
        return t.map([len(whole)], lambda j: pick(whole, j))


def on_axes(shapes: Sequence[Sequence[Any]]) -> list[set[Any]]:
    """The extents on each axis of the broadcast operands, without those that are 1."""
    rank = max(map(len, shapes))
    return [{s[axis - rank] for s in shapes if rank - axis <= len(s)} - {1} for axis in range(rank)]


def _broadcast(found: Sequence[Dim]) -> Expr:
    """The extent of an axis on which tensors have these extents apart from 1: the first that is not 1."""
    made = wrap(found[-1] if found else 1)
    for n in reversed(found[:-1]):
        made = where(equal(wrap(n), 1), made, wrap(n))
    return made


@op("spread", static=("shape",), moves=True, own_attributes="")
class Spread:
    """Expand to a shape that `expanded_shape` computed: any extent of the operand may turn out to be 1."""

    operands = ("x", "shape")

    def body(t, x, shape, *, a):
        found = static_dims("Expand", "shape", shape)
        own = found[len(found) - x.rank :]
        for n, d in zip(x.shape, own, strict=True):
            if isinstance(n, int) and n != 1:
                equal_dims(n, d, "`Expand`")
            elif n not in (1, d):
                assume_equal((n - 1) * n, (n - 1) * d)  # 1 or the same, as `expanded_shape` guarantees
        return t.map(
            found,
            lambda *i: x[tuple(_at(k, n, d) for k, n, d in zip(i[len(i) - x.rank :], x.shape, own, strict=True))],
            name="expand",
        )


def _at(i: Expr, n: Dim, d: Dim) -> Expr:
    """A position on an axis of extent `n` that is broadcast to `d`."""
    if n == 1:
        return literal(0, I64)
    return i if n == d or isinstance(n, int) else where(equal(wrap(n), 1), literal(0, I64), i)


@op("reshaped_shape", own_attributes="allowzero=int")
class ReshapedShape:
    """The result shape of Reshape, with 0 and -1 resolved: i64[rank]."""

    operands = ("x", "shape")

    def body(t, x, shape, *, a):
        total, rank = wrap(product(x.shape)), shape.shape[0]

        def asked(j: Expr) -> Expr:
            s = cast(I64, shape[(j,)])
            return s if a.allowzero or not x.rank else where(equal(s, 0) & (j < x.rank), pick(x.shape, j), s)

        def known(last: int) -> Expr:
            if last < 0:
                return literal(1, I64)
            s = asked(literal(last, I64))
            return known(last - 1) * where(equal(s, -1), literal(1, I64), s)

        def open_(last: int) -> Expr:
            s = literal(0, I64) if last < 0 else asked(literal(last, I64))
            return s if last < 0 else open_(last - 1) + where(equal(s, -1), literal(1, I64), literal(0, I64))

        rest = total // maximum(known(rank - 1), 1)
        shown = show_shape(x.shape)
        t.check([rank], lambda j: asked(j) >= -1, f"{shown} cannot have a negative extent")
        if not a.allowzero and rank > x.rank:
            past = f"a 0 copies no extent of {shown}"
            t.check([rank], lambda j: (j < x.rank) | not_equal(shape[(j,)], 0), past)
        t.check([], lambda: open_(rank - 1) <= 1, "more than one -1 in the shape")
        unclear = "a shape with -1 and an extent of 0, which is ambiguous"
        t.check([], lambda: equal(open_(rank - 1), 0) | not_equal(known(rank - 1), 0), unclear)
        filled = where(equal(open_(rank - 1), 0), literal(1, I64), rest)
        t.check(
            [],
            lambda: equal(known(rank - 1) * filled, total),
            f"{shown} has a different number of elements than requested",
        )
        return t.map([rank], lambda j: where(equal(asked(j), -1), rest, asked(j)), name="shape")


def is_defined_by_step(d: Dim) -> bool:
    """Whether an element of `defines` is a symbol, which the step binds, rather than an expected value."""
    return isinstance(d, dim.Sym) and d.is_symbol


ALL: tuple[OpSpec, ...] = (
    Sizes, SlicePlaces, Part, RangeCount, Ramp, ExpandedShape, CommonShape, Spread, ReshapedShape,
)  # fmt: skip
