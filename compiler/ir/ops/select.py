"""Operators with data-dependent result sizes: NonZero, Unique, Compress, NonMaxSuppression; and Dropout."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import data_dim, equal_dims, equal_shapes, normalize_axis
from occ.compiler.ir.types import TensorType


@op("NonZero", host="NonZero")
class NonZero:
    """Indices of the non-zero elements, one column each."""

    def infer(x, *, a):
        return TensorType(I64, (data_dim(1) if x.type.shape is None else max(x.rank, 1), data_dim(0)))


@op("Unique", host="Unique")
class Unique:
    """The distinct elements, or slices along an axis; the first index of each, the inverse indices, and the counts."""

    def infer(x, *, a):
        rows = TensorType(I64, (data_dim(0),))
        if x.type.shape is None:
            return (
                TensorType(x.dtype, (data_dim(0),) if a.axis is None else None),
                rows,
                TensorType(I64, (data_dim(1),)),
                rows,
            )
        if a.axis is None:
            return TensorType(x.dtype, (data_dim(0),)), rows, TensorType(I64, (x.type.size,)), rows
        axis = normalize_axis(a.axis, x.rank, "Unique")
        shape = tuple(data_dim(0) if k == axis else d for k, d in enumerate(x.shape))
        return TensorType(x.dtype, shape), rows, TensorType(I64, (x.shape[axis],)), rows


@op("Compress", host="Compress", rank=same)
class Compress:
    """The elements, or slices along an axis, for which a condition holds."""

    def infer(x, condition, *, a):
        if condition.type.shape is not None and condition.rank != 1:
            raise Invalid(f"`condition` of `Compress` has rank {condition.rank}, not 1")
        if a.axis is None:
            return TensorType(x.dtype, (data_dim(0),))
        if x.type.shape is None:
            return TensorType(x.dtype, None)
        axis = normalize_axis(a.axis, x.rank, "Compress")
        return TensorType(x.dtype, tuple(data_dim(0) if k == axis else d for k, d in enumerate(x.shape)))


@op("NonMaxSuppression", host="NonMaxSuppression")
class NonMaxSuppression:
    """Boxes that do not overlap a better one, as rows of (batch, class, box)."""

    def infer(boxes, scores, limit=None, iou=None, score=None, *, a):
        if boxes.type.shape is not None and scores.type.shape is not None:
            batch, classes, n = (*scores.shape, *(0,) * 3)[:3]
            equal_shapes(scores.shape, (batch, classes, n), "`scores` of `NonMaxSuppression`")
            equal_shapes(boxes.shape, (batch, n, 4), "`boxes` of `NonMaxSuppression`")
        for name, x in (("max_output_boxes_per_class", limit), ("iou_threshold", iou), ("score_threshold", score)):
            if x is not None and x.type.shape is not None:
                equal_dims(product(x.shape), 1, f"`{name}` of `NonMaxSuppression` is one number")
        return TensorType(I64, (data_dim(0), 3))


@op("Dropout", host="Dropout", rank=same)
class Dropout:
    """In training mode, zeroes random elements and scales the others; otherwise a no-op, which is removed."""

    def infer(x, ratio=None, training=None, *, a):
        return x.type, TensorType(BOOL, x.type.shape)


ALL: tuple[OpSpec, ...] = (NonZero, Unique, Compress, NonMaxSuppression, Dropout)
