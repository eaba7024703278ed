"""The constant weight of an integer product as signed bytes."""

from __future__ import annotations

import numpy as np

from occ.compiler.ir.dtype import I8, U8
from occ.compiler.ir.op import Op, Weight


def byte_weight(op: Op, *, columns: bool = False) -> tuple[np.ndarray, np.ndarray | None] | None:
    """A constant weight as i8 and its zero points as i32, per filter or column.

    The zero points are None if they are 0, or if the weight minus them still fits in i8.
    """
    w, zero = (*op.operands, None, None)[1:4:2]
    if not isinstance(w, Weight) or w.tensor.dtype not in (U8, I8) or not (zero is None or isinstance(zero, Weight)):
        return None
    shift = 128 if w.tensor.dtype == U8 else 0
    data = w.data.astype(np.int32) - shift
    points = (np.zeros((), np.int32) if zero is None else zero.data.astype(np.int32)) - shift
    if points.size == 1:
        points = points.reshape(())
    elif points.ndim != 1:
        return None  # batch axes
    centred = data - (points if columns or points.ndim == 0 else points.reshape(-1, *[1] * (data.ndim - 1)))
    if centred.size == 0 or (centred.min() >= -128 and centred.max() <= 127):
        return centred.astype(np.int8), None
    wide = np.broadcast_to(points, data.shape[-1] if columns else data.shape[0])
    return data.astype(np.int8), np.ascontiguousarray(wide, np.int32)
