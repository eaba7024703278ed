"""Operators that read and write elements at indices, Gather, Scatter and OneHot, as GE nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.elementwise import computing_type
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.shape import joined, sliced, through
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def from_end(e: Emitter, indices: Ref, size: int) -> Ref:
    """Indices with negative ones counted from the end."""
    if indices.node.type == "Const":
        data = indices.node.value
        if data.size and (data.min() < -size or data.max() >= size):
            raise Unsupported("an index is outside of the tensor")
        return e.constant(np.where(data < 0, data + size, data).astype(data.dtype)) if np.any(data < 0) else indices
    return _wrapped_around(e, indices, np.array(size))


_WRAPPING = (("Less", 0), ("Add", 0), ("SelectV2", 1))  # operators, and an operand that has the type of the indices


def _wrapped_around(e: Emitter, indices: Ref, size: np.ndarray, dtype: str = "") -> Ref:
    """Indices with a size added to negative ones, by default in AI Core's widest integer type."""
    wide = indices.dtype == "INT64" and all(e.unit_for(kind, "INT64", k) == "AI Core" for kind, k in _WRAPPING)
    at = e.cast(indices, dtype or ("INT64" if wide else "INT32"))
    length = e.constant(size.astype(occ_type(at.dtype).numpy))
    negative = e.op("Less", at, e.scalar(0, at), out=Desc("BOOL", at.shape))
    return e.op("SelectV2", negative, e.op("Add", at, length), at, out=at.desc)


def _gather(e: Emitter, op: Op, x: Ref, indices: Ref) -> Ref:
    axis = op.a.axis % len(x.shape)
    found = from_end(e, indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    at = e.constant(np.array(axis, np.int32))
    return through(e, "GatherV2", x, lambda v: e.op("GatherV2", v, found, at, out=Desc(v.dtype, shape)))


def _gather_elements(e: Emitter, op: Op, x: Ref, indices: Ref) -> Ref:
    axis = op.a.axis % len(x.shape)
    found = from_end(e, indices, x.shape[axis])
    return through(
        e, "GatherElements", x, lambda v: e.op("GatherElements", v, found, out=Desc(v.dtype, indices.shape), dim=axis)
    )


def _point_indices(e: Emitter, indices: Ref, shape: Sequence[int]) -> Ref:
    """Points of GatherND and ScatterND, negative coordinates counted from the end."""
    size = np.array(shape[: indices.shape[-1]], np.int64)
    if indices.node.type == "Const":
        data = indices.node.value
        return e.constant(np.where(data < 0, data + size, data)) if np.any(data < 0) else indices
    return _wrapped_around(e, indices, size)


def _gather_nd(e: Emitter, op: Op, x: Ref, indices: Ref) -> Ref:
    batch = op.a.batch_dims
    if batch:  # the batch axes become coordinates of their own
        lead = indices.shape[:batch]
        grid = np.stack(np.meshgrid(*map(np.arange, lead), indexing="ij"), -1).astype(np.int64)
        wide = grid.reshape(*lead, *(1,) * (len(indices.shape) - batch - 1), batch)
        own = e.constant(np.ascontiguousarray(np.broadcast_to(wide, (*indices.shape[:-1], batch))))
        indices = joined(e, [own, indices], len(indices.shape) - 1)
    found = _point_indices(e, indices, x.shape)
    out = e.type(op.result).shape
    return through(e, "GatherNd", x, lambda v: e.op("GatherNd", v, found, out=Desc(v.dtype, out)))


def _scatter_elements(e: Emitter, op: Op, x: Ref, indices: Ref, updates: Ref) -> Ref:
    reduction, axis = op.a.reduction, op.a.axis % len(x.shape)
    found = from_end(e, indices, x.shape[axis])
    if reduction in ("max", "min"):
        if not x.shape:
            raise Unsupported("it scatters into a scalar")
        own = np.indices(indices.shape)
        columns = [found if k == axis else e.constant(own[k].astype(np.int64)) for k in range(len(x.shape))]
        parts = [e.reshape(e.cast(c, "INT64"), (*indices.shape, 1)) for c in columns]
        return scattered(e, x, joined(e, parts, len(indices.shape)), updates, reduction)
    inner = computing_type(e, "ScatterElements", x.dtype)
    out = Desc(inner, x.shape)
    given = e.cast(x, inner), found, e.cast(updates, inner)
    return e.cast(e.op("ScatterElements", *given, out=out, axis=axis, reduction=reduction), x.dtype)


# By reduction. They write in place, on a copy of the tensor.
_SCATTER_ND = {"none": "ScatterNdUpdate", "add": "ScatterNdAdd", "max": "ScatterNdMax", "min": "ScatterNdMin"}


def scattered(e: Emitter, x: Ref, points: Ref, updates: Ref, reduction: str = "none") -> Ref:
    """`x` with elements or slices at given points overwritten, or reduced.

    AI Core has ScatterNdUpdate for floats and BOOL; for other types TensorScatterUpdate moves any, on the AI CPU.

    Raises:
        Unsupported: the chip has no kernel.
    """
    kind = _SCATTER_ND[reduction]
    if reduction == "none" and e.unit_for(kind, x.dtype) != "AI Core":
        inner = computing_type(e, "TensorScatterUpdate", x.dtype)
        made = e.op("TensorScatterUpdate", e.cast(x, inner), points, e.cast(updates, inner), out=Desc(inner, x.shape))
        return e.cast(made, x.dtype)
    inner = computing_type(e, kind, x.dtype)
    copy = e.op("TensorMove", e.cast(x, inner), out=Desc(inner, x.shape))
    return e.cast(e.op(kind, copy, points, e.cast(updates, inner), out=copy.desc), x.dtype)


def _scatter_nd(e: Emitter, op: Op, x: Ref, indices: Ref, updates: Ref) -> Ref:
    if op.a.reduction not in _SCATTER_ND:
        raise Unsupported(f"no chip has a kernel of a scatter with the reduction `{op.a.reduction}`")
    return scattered(e, x, _point_indices(e, indices, x.shape), updates, op.a.reduction)


def _one_hot(e: Emitter, op: Op, indices: Ref, _: Ref | None, values: Ref) -> Ref:
    out = e.type(op.result)
    axis = op.a.axis % len(out.shape)
    depth = out.shape[axis]
    inner = "INT32"
    plain = _wrapped_around(e, indices, np.array(depth), inner)
    wide = indices if indices.dtype == "INT64" else e.cast(indices, inner)
    low = e.op("Less", wide, e.scalar(-depth, wide), out=Desc("BOOL", indices.shape))
    high = e.op("GreaterEqual", wide, e.scalar(depth, wide), out=Desc("BOOL", indices.shape))
    wrong = e.op("LogicalOr", low, high, out=Desc("BOOL", indices.shape))
    found = e.op("SelectV2", wrong, e.scalar(-1, inner), plain, out=Desc(inner, indices.shape))
    kind = computing_type(e, "OneHot", values.dtype, 2)
    off, on = (e.reshape(sliced(e, e.cast(values, kind), [k], [k + 1], [0], [1]), ()) for k in (0, 1))
    at = -1 if axis == len(out.shape) - 1 else axis
    made = e.op("OneHot", found, e.constant(np.array(depth, np.int32)), on, off, out=Desc(kind, out.shape), axis=at)
    return e.cast(made, values.dtype)


ROWS: dict[str, Row] = {
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd, "OneHot": _one_hot,
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
}  # fmt: skip
