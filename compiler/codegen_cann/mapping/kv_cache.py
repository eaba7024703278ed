"""KV cache updates as GE nodes: writing new rows, quantised caches, position indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.elementwise import bitcast
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.shape import joined, sliced
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_SCATTERED = frozenset({"FLOAT16", "FLOAT", "BF16", "INT32", "INT8", "UINT8"})


def _tensor_scatter(e: Emitter, op: Op, past: Ref, update: Ref, starts: Ref | None = None) -> Ref:
    """`Scatter` writes whole rows from a given position, as caches need it.

    Anything it does not support is written element by element.
    """
    rank = len(past.shape)
    axis = op.a.axis % rank
    at = e.cast(starts, "INT32") if starts is not None else e.constant(np.zeros(past.shape[0], np.int32))
    if op.a.mode == "linear" and axis == rank - 2 and past.dtype in _SCATTERED and _has_scatter(e, past):
        return _written(e, past, update, at)
    count = update.shape[axis]
    places = tuple(count if k == axis else 1 for k in range(rank))
    first = e.reshape(at, (past.shape[0], *(1,) * (rank - 1)))
    rows = e.op("Add", first, e.constant(np.arange(count, dtype=np.int32).reshape(places)))
    if op.a.mode == "circular":
        rows = e.op("FloorMod", rows, e.scalar(past.shape[axis], rows))
    times = [n if k not in (0, axis) else 1 for k, n in enumerate(update.shape)]
    where = e.op("Tile", rows, e.ints(times), out=Desc("INT32", update.shape))
    return e.op("ScatterElements", past, where, update, out=past.desc, axis=axis, reduction="none")


def _has_scatter(e: Emitter, past: Ref) -> bool:
    return bool(e.unit_for("Scatter", "INT8" if past.dtype == "UINT8" else past.dtype))


def _written(e: Emitter, past: Ref, rows: Ref, at: Ref) -> Ref:
    """A copy of a cache with rows of its second-last axis written from position `at[n]` on, INT32."""
    if past.dtype == "UINT8":  # types without a kernel; their bytes are moved unchanged
        return bitcast(e, _written(e, bitcast(e, past, "INT8"), bitcast(e, rows, "INT8"), at), "UINT8")
    target = e.op("TensorMove", past, out=past.desc)
    return e.op("Scatter", target, at, rows, out=past.desc, reduce="update", axis=-2)


def _past_lengths(e: Emitter, op: Op, seqlens: Ref, *_: Ref | None) -> Ref:
    """The number of keys in the cache for each row.

    That they fit is not checked on the device.
    """
    sizes = e.known(op, 1)
    assert sizes is not None, "sizes are required"
    length, past = (int(d) for d in sizes)
    if past == 0:
        return e.constant(np.zeros(seqlens.shape, np.int64))
    before = e.op("Add", e.cast(seqlens, "INT32"), e.scalar(1 - length, "INT32"))
    return e.cast(e.op("Maximum", before, e.scalar(0, "INT32")), "INT64")


def _cache_append(e: Emitter, op: Op, past: Ref | None, new: Ref, lengths: Ref, *_: Ref | None) -> Ref:
    """The first keys of each row in a cache, then new ones, then zeros: cleared, then overwritten."""
    out = e.type(op.result)
    if new.dtype not in _SCATTERED:
        raise Unsupported(f"GE writes no rows of {new.dtype}")
    if past is None:
        base = _zeros(e, out)
    else:
        missing = out.shape[2] - past.shape[2]
        whole = [past] if not missing else [past, _zeros(e, Desc(out.dtype, (*out.shape[:2], missing, out.shape[3])))]
        base = joined(e, whole, 2)
        keys = e.constant(np.arange(out.shape[2], dtype=np.int32).reshape(1, 1, -1, 1))
        ends = e.reshape(e.cast(lengths, "INT32"), (out.shape[0], 1, 1, 1))
        kept = e.op("Less", keys, ends, out=Desc("BOOL", (out.shape[0], 1, out.shape[2], 1)))
        base = e.op("SelectV2", kept, base, e.scalar(0, base), out=out)
    return _written(e, base, new, e.cast(lengths, "INT32"))


def _first_keys(e: Emitter, op: Op, cache: Ref, *_: Ref | None) -> Ref:
    return sliced(e, cache, [0], [e.type(op.result).shape[2]], [2], [1])


def _zeros(e: Emitter, desc: Desc) -> Ref:
    """Zeros; the graph has one such node."""
    return e.op("BroadcastTo", e.scalar(0, desc.dtype), e.ints(desc.shape), out=desc)


def _positions(e: Emitter, op: Op, start: Ref, *_: Ref | None) -> Ref:
    sizes = e.known(op, 1)
    assert sizes is not None, "sizes are required"
    rows, length = (int(d) for d in sizes)
    steps = np.arange(length, dtype=np.int64)
    if start.node.type == "Const":
        firsts = np.broadcast_to(start.node.value.reshape(-1, 1), (rows, 1))
        return e.constant((firsts + steps).astype(np.int64))
    firsts = e.reshape(e.cast(start, "INT32"), (start.shape[0] if start.shape else 1, 1))
    out = Desc("INT32", (rows, length))
    if firsts.shape[0] != rows:
        firsts = e.op("BroadcastTo", firsts, e.ints((rows, 1)), out=Desc("INT32", (rows, 1)))
    return e.cast(e.op("Add", firsts, e.constant(steps.astype(np.int32)), out=out), "INT64")


def _scale(e: Emitter, scale: Ref, heads: int, size: int) -> Ref:
    """The scale of a cache, broadcastable to `[N, H, L, D]`."""
    shape = () if np.prod(scale.shape) == 1 else (1, heads, 1, size)
    return e.reshape(e.cast(scale, "FLOAT"), shape)


def _cache_codes(e: Emitter, op: Op, x: Ref, scale: Ref) -> Ref:
    bits, (_, heads, _, size) = op.a.bits, x.shape
    top = 1 << (bits - 1)
    value = e.op("Round", e.op("RealDiv", e.cast(x, "FLOAT"), _scale(e, scale, heads, size)))
    value = e.op("ClipByValue", value, e.scalar(-top, value), e.scalar(top - 1, value))
    if bits == 8:
        return e.cast(value, "INT8")
    codes = e.cast(e.op("Adds", value, value=8.0), "INT32")
    low, high = (sliced(e, codes, [k], [size], [3], [2]) for k in (0, 1))
    return e.cast(e.op("Add", low, e.op("Mul", high, e.scalar(16, high))), "UINT8")


def _cache_values(e: Emitter, op: Op, codes: Ref, scale: Ref) -> Ref:
    out = e.type(op.result)
    value = e.cast(codes, "FLOAT")
    if op.a.bits == 4:  # exact: codes of two are below 256
        high = e.op("Floor", e.op("Muls", value, value=1 / 16))
        low = e.op("Sub", value, e.op("Muls", high, value=16.0))
        pairs = joined(e, [e.reshape(v, (*v.shape, 1)) for v in (low, high)], 4)
        value = e.op("Adds", e.reshape(pairs, out.shape), value=-8.0)
    return e.cast(e.op("Mul", value, _scale(e, scale, out.shape[1], out.shape[3])), out.dtype)


ROWS: dict[str, Row] = {
    "TensorScatter": _tensor_scatter, "cache_append": _cache_append, "cache_codes": _cache_codes,
    "cache_values": _cache_values, "first_keys": _first_keys, "past_lengths": _past_lengths, "positions": _positions,
}  # fmt: skip
