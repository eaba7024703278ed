"""Operators that move elements without computing on them: reshapes, transposes, slices, joins, pads."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.dim import Dim, Sym, product
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.random_shapes import of_rank, picture, same_shapes
from occ.compiler.ir.operator.ranks import length, length_of, plus, same, without
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import (
    broadcast_shapes,
    equal_dims,
    equal_part,
    normalize_axes,
    normalize_axis,
    reshape_target,
    show_shape,
)
from occ.compiler.ir.te.expr import Expr, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def static_dims(operator: str, name: str, operand: Tensor) -> tuple[Dim, ...]:
    """The elements of a shape-like operand.

    Raises:
        Invalid: it is not a vector; Unresolved: they are computed at run time.
    """
    if operand.rank > 1:
        raise Invalid(f"`{name}` of `{operator}` has rank {operand.rank}, not 1")
    if operand.value is None or any(v is None for v in operand.value):
        raise Unresolved(operator, name)
    return tuple(int(v) if isinstance(v, float) else v for v in operand.value if v is not None)


def static_ints(operator: str, name: str, operand: Tensor) -> tuple[int, ...]:
    """The elements of an operand that must be constants.

    Raises:
        Unresolved: they are symbolic or computed at run time.
    """
    values = static_dims(operator, name, operand)
    if any(isinstance(v, Sym) for v in values):
        raise Unresolved(operator, name)
    return tuple(int(v) for v in values if isinstance(v, int))


def reshaped(t: Builder, x: Tensor, shape: Sequence[Dim], name: str) -> Tensor:
    """The elements of `x` in row-major order with another shape."""
    if tuple(shape) == x.shape:
        return t.map(shape, lambda *i: x[i], name=name)

    def element(*i: Expr) -> Expr:
        return x[unflatten(flatten(i, shape), x.shape)]

    return t.map(shape, element, name=name)


def flatten(index: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """The row-major position of an index."""
    total: Expr = literal(0, I64)
    for i, n in zip(index, shape, strict=True):
        total = total * wrap(n) + i
    return total


def unflatten(position: Expr, shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """The index at a row-major position."""
    index: list[Expr] = []
    for k, n in enumerate(shape):
        inner = product(shape[k + 1 :])
        outer = position if inner == 1 else position // wrap(inner)
        index.append(outer if k == 0 else literal(0, I64) if n == 1 else outer % wrap(n))
    return tuple(index)


@op("Reshape", static=("shape",), tags=("view",), moves=True, rank=length_of(1))
class Reshape:
    def body(t, data, shape, *, a):
        asked = static_dims("Reshape", "shape", shape)
        return reshaped(t, data, reshape_target(data.shape, asked, allowzero=bool(a.allowzero)), "reshape")


@op("Flatten", tags=("view",), moves=True)
class Flatten:
    def body(t, x, *, a):
        axis = a.axis + x.rank if a.axis < 0 else a.axis
        if not 0 <= axis <= x.rank:
            raise Invalid(f"axis {a.axis} of `Flatten` is outside of a tensor of rank {x.rank}", code="OCC0107")
        return reshaped(t, x, (product(x.shape[:axis]), product(x.shape[axis:])), "flatten")


@op("Squeeze", static=("axes",), tags=("view",), moves=True, rank=lambda x, axes=None, *, a: without(x, axes))
class Squeeze:
    def body(t, data, axes=None, *, a):
        if axes is None:
            if any(isinstance(d, Sym) for d in data.shape):
                raise Unresolved("Squeeze", "axes")
            drop = tuple(k for k, d in enumerate(data.shape) if d == 1)
        else:
            drop = normalize_axes(static_ints("Squeeze", "axes", axes), data.rank, "Squeeze")
            for k in drop:
                equal_dims(
                    data.shape[k], 1, f"`Squeeze` of axis {k} of {show_shape(data.shape)}, whose extent is not 1"
                )
        shape = [n for k, n in enumerate(data.shape) if k not in drop]
        return _with_axes(t, data, shape, drop, "squeeze")


def _with_axes(t: Builder, x: Tensor, shape: Sequence[Dim], ones: Sequence[int], name: str) -> Tensor:
    """`x` read at index 0 on its axes `ones`, with the other axes in order."""

    def element(*i: Expr) -> Expr:
        it = iter(i)
        return x[tuple(literal(0, I64) if k in ones else next(it) for k in range(x.rank))]

    return t.map(shape, element, name=name)


@op("Unsqueeze", static=("axes",), tags=("view",), moves=True, rank=lambda x, axes, *, a: plus(x.rank, length(axes)))
class Unsqueeze:
    def body(t, data, axes, *, a):
        listed = static_ints("Unsqueeze", "axes", axes)
        rank = data.rank + len(listed)
        new = normalize_axes(listed, rank, "Unsqueeze")
        it = iter(data.shape)
        shape = [1 if k in new else next(it) for k in range(rank)]
        return t.map(shape, lambda *i: data[tuple(e for k, e in enumerate(i) if k not in new)], name="unsqueeze")


@op("Identity", tags=("view",), moves=True)
class Identity:
    def infer(x, *, a):
        return x.type

    def body(t, x, *, a):
        return t.map(x.shape, lambda *i: x[i], name="identity")


@op("Transpose", moves=True, sample=of_rank(3))
class Transpose:
    def body(t, x, *, a):
        perm = tuple(range(x.rank))[::-1] if a.perm is None else normalize_axes(a.perm, x.rank, "Transpose")
        if len(perm) != x.rank:
            raise Invalid(f"`perm` of `Transpose` has {len(perm)} entries for rank {x.rank}", code="OCC0107")
        inverse = tuple(perm.index(k) for k in range(x.rank))
        return t.map([x.shape[k] for k in perm], lambda *i: x[tuple(i[k] for k in inverse)], name="transpose")


@op("Expand", static=("shape",), moves=True)
class Expand:
    def rank(x, shape, *, a):
        asked = length(shape)
        return None if asked is None else max(x.rank, asked)

    def body(t, x, shape, *, a):
        asked = static_dims("Expand", "shape", shape)
        return t.map(broadcast_shapes(x.shape, asked, op="Expand"), x_at(x), name="expand")


def x_at(x: Tensor) -> Any:
    """A broadcasting read of `x`, as a function of the position in the result."""
    return lambda *i: x.at(i)


@op("Tile", static=("repeats",), rank=same, writes="any")
class Tile:
    def body(t, x, repeats, *, a):
        times = static_dims("Tile", "repeats", repeats)
        if len(times) != x.rank:
            raise Invalid(f"`repeats` of `Tile` has {len(times)} entries for rank {x.rank}")
        shape = [n * r for n, r in zip(x.shape, times, strict=True)]
        return t.map(
            shape,
            lambda *i: x[tuple(k if r == 1 else k % wrap(n) for k, n, r in zip(i, x.shape, times, strict=True))],
            name="tile",
        )


@op("Concat", sample=same_shapes, writes="any", joins=True)
class Concat:
    def body(t, *xs, a):
        if xs[0].rank == 0:
            raise Invalid("`Concat` of scalars, which have no axis")
        axis = normalize_axis(a.axis, xs[0].rank, "Concat")
        shape = list(xs[0].shape)
        for x in xs[1:]:
            if x.rank != len(shape):
                raise Invalid(f"`Concat` of {show_shape(xs[0].shape)} and {show_shape(x.shape)}: the ranks differ")
            what = f"`Concat` along axis {axis} of {show_shape(xs[0].shape)} and {show_shape(x.shape)}"
            shape = [n if k == axis else equal_dims(n, x.shape[k], what) for k, n in enumerate(shape)]
        *offsets, shape[axis] = accumulate((x.shape[axis] for x in xs), initial=0)

        def element(*i):
            value = None
            for x, start in reversed(list(zip(xs, offsets, strict=True))):
                read = x[(*i[:axis], i[axis] - wrap(start), *i[axis + 1 :])]
                value = read if value is None else where(i[axis] < wrap(start + x.shape[axis]), read, value)
            return value

        return t.map(shape, element, name="concat")


def _blocks(name: str) -> OpSpec:
    """DepthToSpace and SpaceToDepth, on NCHW."""

    def block(x: Tensor, a: SimpleNamespace) -> int:
        if x.rank != 4:
            raise Invalid(f"`{name}` takes rank 4, not {x.rank}")
        if a.blocksize < 1:
            raise Invalid(f"`blocksize` of `{name}` is {a.blocksize}", code="OCC0107")
        return a.blocksize

    def depth_to_space(t: Builder, x: Tensor, *, a: SimpleNamespace) -> Tensor:
        b, (n, c, h, w) = block(x, a), x.shape
        depth = equal_part(c, b * b, "`DepthToSpace`: the number of channels must be a multiple of the block")

        def element(i: Expr, k: Expr, y: Expr, z: Expr) -> Expr:
            block = (y % b) * b + z % b
            channel = block * wrap(depth) + k if a.mode == "DCR" else k * (b * b) + block
            return x[i, channel, y // b, z // b]

        return t.map((n, depth, h * b, w * b), element, name="depth_to_space")

    def space_to_depth(t: Builder, x: Tensor, *, a: SimpleNamespace) -> Tensor:
        b, (n, c, h, w) = block(x, a), x.shape
        rows, columns = (
            equal_part(d, b, f"`SpaceToDepth`: {axis} are split in blocks") for d, axis in ((h, "rows"), (w, "columns"))
        )

        def element(i: Expr, k: Expr, y: Expr, z: Expr) -> Expr:
            crd = getattr(a, "mode", "DCR") == "CRD"
            block = k % (b * b) if crd else k // wrap(c)
            channel = k // (b * b) if crd else k % wrap(c)
            return x[i, channel, y * b + block // b, z * b + block % b]

        return t.map((n, c * (b * b), rows, columns), element, name="space_to_depth")

    return OpSpec(name, {"body": depth_to_space if name == "DepthToSpace" else space_to_depth, "sample": picture})


ALL = (
    Reshape,
    Flatten,
    Squeeze,
    Unsqueeze,
    Identity,
    Transpose,
    Expand,
    Tile,
    Concat,
    _blocks("DepthToSpace"),
    _blocks("SpaceToDepth"),
)
