"""The cache of a language model: rows of new tokens written into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_SCATTERED = frozenset({"FLOAT16", "FLOAT", "BF16", "INT32", "INT8", "UINT8"})


def _tensor_scatter(e: Emitter, op: Op, past: Ref, update: Ref, starts: Ref | None = None) -> Ref:
    """`Scatter` writes whole rows from a position on, as caches need it; what it does not take goes element by element."""
    rank = len(past.shape)
    axis = op.a.axis % rank
    at = e.cast(starts, "INT32") if starts is not None else e.constant(np.zeros(past.shape[0], np.int32))
    if op.a.mode == "linear" and axis == rank - 2 and past.dtype in _SCATTERED:
        target = e.op("TensorMove", past, out=past.desc)
        return e.op("Scatter", target, at, update, out=past.desc, reduce="update", axis=-2)
    count = update.shape[axis]
    places = tuple(count if k == axis else 1 for k in range(rank))
    first = e.reshape(at, (past.shape[0], *(1,) * (rank - 1)))
    rows = e.op("Add", first, e.constant(np.arange(count, dtype=np.int32).reshape(places)))
    if op.a.mode == "circular":
        rows = e.op("FloorMod", rows, e.scalar(past.shape[axis], rows))
    times = [n if k not in (0, axis) else 1 for k, n in enumerate(update.shape)]
    where = e.op("Tile", rows, e.ints(times), out=Desc("INT32", update.shape))
    return e.op("ScatterElements", past, where, update, out=past.desc, axis=axis, reduction="none")


ROWS: dict[str, Row] = {"TensorScatter": _tensor_scatter}
