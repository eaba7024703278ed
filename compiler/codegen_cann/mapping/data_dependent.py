"""Operators with data-dependent result sizes as GE nodes, such as NonZero and Unique.

NonMaxSuppressionV7 returns the maximum number of rows; those that are boxes are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.elementwise import computing_type
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.indexing import scattered
from occ.compiler.codegen_cann.mapping.shape import gathered, sliced
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_INDICES = 1000  # divisor for box numbers, which the kernels of NonMaxSuppressionV7 keep in half precision
_EXACT = 2048  # largest integers exact in half precision


def _non_zero(e: Emitter, op: Op, x: Ref) -> Ref:
    n = e.type(op.result).shape[1]
    return _places(e, x if x.shape else e.reshape(x, (1,)), n, transpose=True)


def _places(e: Emitter, x: Ref, n: int, *, transpose: bool) -> Ref:
    """Positions of the `n` non-zero elements: INT64, one per row or per column."""
    given = e.cast(x, computing_type(e, "NonZero", x.dtype))
    shape = (len(x.shape), n) if transpose else (n, len(x.shape))
    return e.op("NonZero", given, out=Desc("INT64", shape), transpose=transpose)


def _chosen(e: Emitter, x: Ref, flags: Ref, n: int, axis: int) -> Ref:
    """The slices along an axis, `n` of them, with their flag set."""
    where = e.reshape(_places(e, flags, n, transpose=False), (n,))
    inner = computing_type(e, "GatherV2", x.dtype)
    out = Desc(inner, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
    return e.cast(e.op("GatherV2", e.cast(x, inner), where, e.constant(np.array(axis, np.int32)), out=out), x.dtype)


def _compress(e: Emitter, op: Op, x: Ref, condition: Ref) -> Ref:
    axis = op.attrs.get("axis")
    flat = x if axis is not None else e.reshape(x, (prod(x.shape),))
    k = 0 if axis is None else axis % len(x.shape)
    if condition.node.type == "Const":
        return gathered(e, flat, np.flatnonzero(condition.node.value[: flat.shape[k]]).astype(np.int64), k)
    if condition.shape[0] > flat.shape[k]:
        condition = sliced(e, condition, [0], [flat.shape[k]], [0], [1])
    return _chosen(e, flat, condition, e.type(op.result).shape[k], k)


def _boxes(e: Emitter, op: Op, boxes: Ref, scores: Ref, *_: Any) -> Ref:
    limit = e.known(op, 2)
    if not e.chip.boxes:
        raise Unsupported("the chip has no kernel of NonMaxSuppressionV7")
    batch, classes, count = scores.shape
    each = min(0 if limit is None else int(limit.reshape(-1)[0]), count)
    if each <= 0:
        raise Unsupported("it selects no box")
    if each > e.chip.boxes:
        raise Unsupported(f"it may select {each} boxes of a class, the kernel of the chip {e.chip.boxes}")
    if max(batch, classes) > _EXACT:
        raise Unsupported(f"it has more than {_EXACT} classes, which the kernel of the chip counts in half precision")
    kind = boxes.dtype if boxes.dtype == "FLOAT16" else "FLOAT"
    rows = e.op(
        "NonMaxSuppressionV7", e.cast(boxes, kind), e.cast(scores, kind), e.constant(np.array([each], np.int32)),
        _threshold(e, op, 3, 0.0), _threshold(e, op, 4, float(np.finfo(np.float32).min)),
        e.constant(_numbers(scores.shape)),
        out=Desc("INT32", (batch * classes * each, 3)), center_point_box=op.a.center_point_box,
        max_boxes_size=batch * classes * each,
    )  # fmt: skip
    first = e.reshape(gathered(e, rows, np.zeros(1, np.int64), 1), (rows.shape[0],))
    is_box = e.op("GreaterEqual", first, e.scalar(0, first), out=Desc("BOOL", first.shape))
    return e.cast(_chosen(e, rows, is_box, e.type(op.result).shape[0], 0), "INT64")


def _threshold(e: Emitter, op: Op, k: int, default: float) -> Ref:
    """A threshold as FLOAT [1]."""
    value = op.operands[k] if k < len(op.operands) else None
    return e.constant(np.array([default], np.float32)) if value is None else e.reshape(e.ref(value), (1,))


def _numbers(shape: Sequence[int]) -> np.ndarray:
    """Batch, class, and box split into thousands and ones, for each score: f16 [batch, class, box, 4]."""
    batch, classes, box = np.indices(shape)
    return np.stack([batch, classes, box // _INDICES, box % _INDICES], -1).astype(np.float16)


def _unique(e: Emitter, op: Op, x: Ref) -> tuple[Ref, ...]:
    if op.attrs.get("axis") is not None and len(x.shape) != 1:
        raise Unsupported("it compares slices along an axis")
    count, n = prod(x.shape), e.type(op.results[0]).shape[0]
    inner = computing_type(e, "UniqueWithCountsAndSorting", x.dtype)
    long = Desc("INT64", (n,))
    values, inverse, counts = e.op(
        "UniqueWithCountsAndSorting", e.cast(e.reshape(x, (count,)), inner),
        out=(Desc(inner, (n,)), Desc("INT64", (count,)), long),
        return_inverse=True, return_counts=True, sorted=True,
    )  # fmt: skip
    first = _first_places(e, inverse, n, count)
    if not op.a.sorted:
        size = e.constant(np.array(n, np.int32))
        first, order = e.op("TopK", first, size, out=(long, Desc("INT32", (n,))), largest=False)
        values, counts = (_taken(e, v, order) for v in (values, counts))
        places = e.op("Range", e.scalar(0, "INT64"), e.constant(np.array(n, np.int64)), e.scalar(1, "INT64"), out=long)
        point = e.reshape(e.cast(order, "INT64"), (n, 1))
        back = scattered(e, places, point, places)
        inverse = _taken(e, back, inverse)
    return e.cast(values, x.dtype), first, inverse, counts


def _first_places(e: Emitter, inverse: Ref, n: int, count: int) -> Ref:
    """The first occurrence of each of `n` values: the minimum of its positions."""
    most = e.op("Fill", e.ints([n]), e.scalar(count, "INT64"), out=Desc("INT64", (n,)))
    places = e.constant(np.arange(count, dtype=np.int64))
    return e.op("ScatterNdMin", most, e.reshape(inverse, (count, 1)), places, out=most.desc)


def _taken(e: Emitter, x: Ref, at: Ref) -> Ref:
    axis = e.constant(np.array(0, np.int32))
    return e.op("GatherV2", x, at, axis, out=Desc(x.dtype, at.shape))


ROWS: dict[str, Row] = {
    "Compress": _compress,
    "NonMaxSuppression": _boxes,
    "NonZero": _non_zero,
    "Unique": _unique,
}
