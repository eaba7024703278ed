"""Gather, scatter and other operators that read or write at computed positions."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, is_positive, lower, product
from occ.compiler.ir.dtype import BOOL, I64, DType
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.scalars import scalar
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.shape import equal_dims, equal_shapes, normalize_axis, show_shape
from occ.compiler.ir.te.expr import Expr, cast, clamp, equal, literal, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def positions(t: Builder, indices: Tensor, extents: Sequence[Dim], name: str) -> Callable[..., Expr]:
    """Elements of an index tensor as positions; negative ones count from the end.

    Also states the check that every index is in `[-extent, extent)`, unless that is known. Kernels clamp data-dependent
    positions to the tensor, but an axis without elements has none: the runtime rejects it before they run.
    Args:
        t: the builder.
        indices: the index tensor.
        extents: of the axis; or of several, with one component each in the last axis of the index tensor.
        name: of the operator.
    """
    given = None if indices.value is None else [v for v in indices.value if isinstance(v, int)]
    constant = given is not None and indices.value is not None and len(given) == len(indices.value)
    known = constant and all(
        is_positive(n - v) and lower(n + v) >= 0
        for k, n in enumerate(extents)
        for v in (given or ())[k :: len(extents)]
    )
    for n in () if known else extents:
        _has_elements(n, indices, name)

    def limit(*k: Expr) -> Expr:
        extent = wrap(extents[-1])
        for axis in reversed(range(len(extents) - 1)):
            extent = where(equal(k[-1], axis), wrap(extents[axis]), extent)
        return extent

    def inside(*k: Expr) -> Expr:
        index, n = cast(I64, indices[k]), limit(*k)
        return (index + n >= 0) & (index < n)

    if not known:
        t.check(indices.shape, inside, f"`{name}` has an index outside of the tensor")

    def position(*k: Expr) -> Expr:
        index = cast(I64, indices[k])
        at = index if known and min(given or (0,)) >= 0 else where(index < 0, index + limit(*k), index)
        return at if known or not constant else clamp(at, 0, limit(*k) - 1)  # constants become part of the expression

    return position


def _has_elements(n: Dim, indices: Tensor, name: str) -> None:
    """Require that an axis has an element if positions on it are read.

    The operator handles an axis that is always empty.
    """
    if n != 0 and lower(n) <= 0:
        count = dim.minimum(product(indices.shape), 1)
        equal_dims(count, dim.minimum(count, n), f"`{name}` has indices of an axis without elements")


def _nothing(t: Builder, shape: Sequence[Dim], data: Tensor) -> Tensor:
    """The result if an axis is always empty: there are no indices, or their check fails."""
    return t.map(shape, lambda *_: literal(0, data.dtype), name="gather")


@op("Gather", static=("indices",), moves=True, tags=("gather",))
class Gather:
    def body(t, data, indices, *, a):
        axis, q = normalize_axis(a.axis, data.rank, "Gather"), indices.rank
        at = positions(t, indices, data.shape[axis : axis + 1], "Gather")
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        if data.shape[axis] == 0:
            return _nothing(t, shape, data)
        return t.map(shape, lambda *i: data[(*i[:axis], at(*i[axis : axis + q]), *i[axis + q :])], name="gather")


def _limits(t: Builder, data: Tensor, indices: Tensor, axis: int, name: str) -> list[Dim | None]:
    """Extents of `data` to which positions of the indices must be clamped, because they are not provably inside.

    Also states the check that they are inside: it runs after the positions are used.

    Raises:
        Invalid: the indices have more positions on another axis than the data.
    """
    limits: list[Dim | None] = [None] * data.rank
    for k, (n, most) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if k == axis or n == most or lower(most - n) >= 0:
            continue
        if is_positive(n - most):
            raise Invalid(f"`{name}`: indices {show_shape(indices.shape)} exceed data {show_shape(data.shape)}")
        limits[k] = most
        t.check((), lambda n=n, most=most: wrap(n) <= wrap(most), f"`{name}` has more indices than data on axis {k}")
    return limits


@op("GatherElements", static=("indices",))
class GatherElements:
    def body(t, data, indices, *, a):
        axis = normalize_axis(a.axis, data.rank, "GatherElements")
        if indices.rank != data.rank:
            raise Invalid(f"`GatherElements`: data has rank {data.rank}, indices have rank {indices.rank}")
        at = positions(t, indices, data.shape[axis : axis + 1], "GatherElements")
        if data.shape[axis] == 0:
            return _nothing(t, indices.shape, data)
        limits = _limits(t, data, indices, axis, "GatherElements")

        def element(*i: Expr) -> Expr:
            here = tuple(k if n is None else minimum(k, n - 1) for k, n in zip(i, limits, strict=True))
            return data[(*here[:axis], at(*i), *here[axis + 1 :])]

        return t.map(indices.shape, element, name="gather")


def _index_depth(name: str, indices: Tensor) -> int:
    depth = indices.shape[-1] if indices.rank else 0
    if not isinstance(depth, int):
        raise Unresolved(name, "indices")
    if depth == 0:
        raise Invalid(f"`{name}` of indices {show_shape(indices.shape)}, whose last extent is 0")
    return depth


@op("GatherND", static=("indices",))
class GatherND:
    def body(t, data, indices, *, a):
        batch, depth = a.batch_dims, _index_depth("GatherND", indices)
        lead = tuple(
            equal_dims(p, q, "`GatherND`: batch extents")
            for p, q in zip(data.shape[:batch], indices.shape, strict=False)
        )
        if batch + depth > data.rank:
            raise Invalid(f"`GatherND` indexes {depth} axes after {batch} batch axes of a tensor of rank {data.rank}")
        extents, n = data.shape[batch : batch + depth], indices.rank - 1
        at = positions(t, indices, extents, "GatherND")
        shape = (*lead, *indices.shape[batch:-1], *data.shape[batch + depth :])
        if 0 in extents:
            return _nothing(t, shape, data)

        def element(*i):
            where_from = [at(*i[:n], wrap(k)) for k in range(depth)]
            return data[(*i[:batch], *where_from, *i[n:])]

        return t.map(shape, element, name="gather")


_COMBINE = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_OF_TRUTH = _COMBINE | {"add": "max", "mul": "min"}  # sums of truth values do not wrap


def _combine(reduction: str, dtype: DType) -> str:
    return (_OF_TRUTH if dtype == BOOL else _COMBINE)[reduction]


@op("ScatterElements", static=("indices",))
class ScatterElements:
    def body(t, data, indices, updates, *, a):
        axis = normalize_axis(a.axis, data.rank, "ScatterElements")
        if not data.rank == indices.rank == updates.rank:
            raise Invalid(f"`ScatterElements`: ranks {data.rank}, {indices.rank} and {updates.rank} differ")
        what = f"`ScatterElements`: indices {show_shape(indices.shape)} and updates {show_shape(updates.shape)} differ"
        for k, (n, m) in enumerate(zip(indices.shape, updates.shape, strict=True)):
            equal_dims(n, m, what)
            if k != axis:
                equal_dims(n, dim.minimum(n, data.shape[k]), f"`ScatterElements`: indices exceed axis {k} of the data")
        at = positions(t, indices, data.shape[axis : axis + 1], "ScatterElements")
        if data.shape[axis] == 0:
            return _nothing(t, data.shape, data)
        return t.scatter(
            data.shape,
            lambda *i: data[i],
            indices.shape,
            lambda *u: (*u[:axis], at(*u), *u[axis + 1 :]),
            lambda *u: updates[u],
            combine=_combine(a.reduction, data.dtype),
        )


@op("ScatterND", static=("indices",))
class ScatterND:
    def body(t, data, indices, updates, *, a):
        depth = data.rank + indices.rank - 1 - updates.rank  # the last extent of the indices
        if indices.rank == 0 or depth < 0:
            what = f"{show_shape(data.shape)} with updates {show_shape(updates.shape)}"
            raise Invalid(f"`ScatterND` of {what}: an index of {show_shape(indices.shape)} would be of {depth} axes")
        equal_dims(
            indices.shape[-1],
            depth,
            f"`ScatterND`: indices of {show_shape(indices.shape)} into {show_shape(data.shape)}",
        )
        if depth > data.rank:
            raise Invalid(f"`ScatterND` indexes {depth} axes of a tensor of rank {data.rank}")
        at = positions(t, indices, data.shape[:depth], "ScatterND") if depth else lambda *_: wrap(0)
        n = indices.rank - 1
        over = (*indices.shape[:-1], *data.shape[depth:])
        what = f"`ScatterND`: updates {show_shape(updates.shape)} where indices and data require {show_shape(over)}"
        if updates.rank != len(over):
            raise Invalid(what)
        for asked, given in zip(over, updates.shape, strict=True):
            equal_dims(asked, given, what)
        if 0 in data.shape[:depth]:
            return _nothing(t, data.shape, data)
        return t.scatter(
            data.shape,
            lambda *i: data[i],
            over,
            lambda *u: (*(at(*u[:n], wrap(k)) for k in range(depth)), *u[n:]),
            lambda *u: updates[u],
            combine=_combine(a.reduction, data.dtype),
        )


@op("Trilu", static=("k",), rank=same)
class Trilu:
    def body(t, x, k=None, *, a):
        if x.rank < 2:
            raise Invalid(f"`Trilu` takes matrices, not {x.type}")
        shift = wrap(0) if k is None else cast(I64, scalar("Trilu", "k", k))
        zero = literal(0, x.dtype)

        def element(*i):
            row, column = i[-2], i[-1]
            keep = row + shift <= column if a.upper else column <= row + shift
            return where(keep, x[i], zero)

        return t.map(x.shape, element, name="trilu")


@op("OneHot", static=("depth",), rank=lambda indices, *_, a: indices.rank + 1)
class OneHot:
    def body(t, indices, depth, values, *, a):
        equal_dims(product(depth.shape), 1, "`OneHot`: `depth` must be a single number")
        if depth.rank > 1:
            raise Invalid(f"`depth` of `OneHot` has rank {depth.rank}, not 0 or 1")
        equal_shapes(values.shape, (2,), "`values` of `OneHot`")
        (n,) = static_dims("OneHot", "depth", depth)
        if isinstance(n, int) and n < 1:
            raise Invalid(f"`OneHot` has a depth of {n}")
        if lower(n) < 1:
            t.check([], lambda: wrap(n) >= 1, "the depth of `OneHot` is less than 1")
        axis = normalize_axis(a.axis, indices.rank + 1, "OneHot")
        shape = (*indices.shape[:axis], n, *indices.shape[axis:])

        def element(*i):
            index = cast(I64, indices[(*i[:axis], *i[axis + 1 :])])
            hot = equal(where(index < 0, index + wrap(n), index), i[axis])
            return where(hot, values[1], values[0])

        return t.map(shape, element, name="one_hot")


ALL = (Gather, GatherElements, GatherND, ScatterElements, ScatterND, Trilu, OneHot)
