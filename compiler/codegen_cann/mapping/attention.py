"""Attention and rotary embeddings as GE nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.reduce import reduced
from occ.compiler.codegen_cann.mapping.rotary_kernel import embedded
from occ.compiler.codegen_cann.mapping.shape import gathered, joined, sliced
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def _both(e: Emitter, x: Ref | None, y: Ref) -> Ref:
    """`x and y`."""
    if x is None:
        return y
    shape = tuple(int(d) for d in np.broadcast_shapes(x.shape, y.shape))
    return e.op("LogicalAnd", x, y, out=Desc("BOOL", shape))


def _at_most(e: Emitter, x: Ref, y: Ref) -> Ref:
    """`x <= y`."""
    shape = tuple(int(d) for d in np.broadcast_shapes(x.shape, y.shape))
    return e.op("LessEqual", x, y, out=Desc("BOOL", shape))


def _attention_mask(
    e: Emitter, op: Op, scores: Ref, mask: Ref | None = None, nonpad: Ref | None = None, offset: Ref | None = None
) -> Ref:
    a, queries, keys = op.a, scores.shape[2], scores.shape[3]
    if mask is not None and mask.shape and mask.shape[-1] not in (1, keys):
        raise Unsupported("its mask is shorter than the keys")
    low, allowed = e.scalar(-np.inf, scores), None
    if mask is not None and mask.dtype == "BOOL":
        allowed = mask
    elif mask is not None:
        scores, allowed = _biased(e, scores, mask)
    distance = np.arange(keys, dtype=np.int32) - np.arange(queries, dtype=np.int32)[:, None]  # key - query
    base: Ref | None = None
    start = e.known(op, 3)
    if nonpad is not None:
        length = e.reshape(e.cast(nonpad, "INT32"), (nonpad.shape[0], 1, 1, 1))
        allowed = _both(
            e,
            allowed,
            e.op(
                "Less",
                e.constant(np.arange(keys, dtype=np.int32)),
                length,
                out=Desc("BOOL", (nonpad.shape[0], 1, 1, keys)),
            ),
        )
        if start is None:
            base = e.op("Sub", length, e.scalar(queries, "INT32"))
    if base is None:
        distance = distance - (0 if start is None else int(start.reshape(-1)[0]))
    for limit, sign in ((0 if a.causal else None, 1), (_limit(a, "left"), -1), (_limit(a, "right"), 1)):
        if limit is not None:
            allowed = _both(e, allowed, _within(e, distance * sign, limit, base, sign))
    if allowed is None:
        return e.op("Identity", scores)
    return e.op("SelectV2", allowed, scores, low, out=scores.desc)


def _limit(a: Any, side: str) -> int | None:
    value = getattr(a, side, -1)
    return value if value is not None and value >= 0 else None


def _within(e: Emitter, distance: np.ndarray, limit: int, base: Ref | None, sign: int) -> Ref:
    """Where `distance - sign * base <= limit`."""
    if base is None:
        return e.constant(distance <= limit)
    moved = e.op("Mul", base, e.scalar(sign, "INT32"))
    return _at_most(e, e.constant((distance - limit).astype(np.int32)), moved)


def _biased(e: Emitter, scores: Ref, mask: Ref) -> tuple[Ref, Ref]:
    """Scores plus a mask, added only where it is not -inf, so that NaN and inf are harmless."""
    kept = e.op("Greater", mask, e.scalar(-np.inf, mask), out=Desc("BOOL", mask.shape))
    finite = e.op("SelectV2", kept, mask, e.scalar(0, mask), out=mask.desc)
    return e.op("Add", scores, e.cast(finite, scores.dtype), out=scores.desc), kept


def _attention_softmax(e: Emitter, op: Op, scores: Ref) -> Ref:
    last = len(scores.shape) - 1
    x = e.cast(scores, "FLOAT") if scores.dtype in ("FLOAT16", "BF16") else scores
    peak = reduced(e, "ReduceMax", x, [last], keep=True)
    none = e.op("Equal", peak, e.scalar(-np.inf, x), out=Desc("BOOL", peak.shape))
    top = e.op("SelectV2", none, e.scalar(0, x), peak, out=peak.desc)
    power = e.op("Exp", e.op("Sub", x, top))
    made = e.op("DivNoNan", power, reduced(e, "ReduceSum", power, [last], keep=True), out=x.desc)
    return e.cast(made, scores.dtype)


def _cut(e: Emitter, x: Ref, begin: int, end: int, step: int = 1) -> Ref:
    return sliced(e, x, [begin], [end], [len(x.shape) - 1], [step])


def _rotary(e: Emitter, op: Op, x: Ref, cos: Ref, sin: Ref, positions: Ref | None = None) -> Ref:
    a, flat = op.a, len(x.shape) == 3
    if positions is not None:
        axis = e.constant(np.array(0, np.int32))
        shape = (*positions.shape, cos.shape[-1])
        cos, sin = (e.op("GatherV2", c, positions, axis, out=Desc(c.dtype, shape)) for c in (cos, sin))
    heads = e.reshape(x, (*x.shape[:2], a.num_heads, x.shape[2] // a.num_heads)) if flat else x
    size = heads.shape[-1]
    dim = a.rotary_embedding_dim or size
    middle = 2 if flat else 1
    cos, sin = (e.reshape(c, (*c.shape[:middle], 1, *c.shape[middle:])) for c in (cos, sin))
    if dim == size and not a.interleaved and cos.dtype == heads.dtype:
        double_cos, double_sin = (joined(e, [c, c], len(heads.shape) - 1) for c in (cos, sin))
        if (made := embedded(e, heads, double_cos, double_sin, middle)) is not None:
            return e.reshape(made, x.shape)
    first, second = (
        (_cut(e, heads, 0, dim, 2), _cut(e, heads, 1, dim, 2))
        if a.interleaved
        else (_cut(e, heads, 0, dim // 2), _cut(e, heads, dim // 2, dim))
    )
    one = e.op("Sub", e.op("Mul", cos, first, out=first.desc), e.op("Mul", sin, second, out=first.desc))
    two = e.op("Add", e.op("Mul", sin, first, out=first.desc), e.op("Mul", cos, second, out=first.desc))
    last = len(heads.shape) - 1
    if a.interleaved:
        pairs = joined(e, [e.reshape(v, (*v.shape, 1)) for v in (one, two)], last + 1)
        turned = e.reshape(pairs, (*heads.shape[:-1], dim))
    else:
        turned = joined(e, [one, two], last)
    whole = turned if dim == size else joined(e, [turned, _cut(e, heads, dim, size)], last)
    return e.reshape(whole, x.shape)


def _section_angles(e: Emitter, op: Op, cache: Ref, positions: Ref) -> Ref:
    """Each section of the angles at its own kind of positions, then all in order."""
    first, second, third = op.a.sections
    k = np.arange(first + second + third)
    if op.a.turns:
        kinds = np.where((k % 3 == 1) & (k < 3 * second), 1, np.where((k % 3 == 2) & (k < 3 * third), 2, 0))
    else:
        kinds = np.where((k >= first) & (k < first + second), 1, np.where(k >= first + second, 2, 0))
    _, n, length = positions.shape
    axis, parts, order = e.constant(np.array(0, np.int32)), [], []
    for kind in np.unique(kinds):
        columns = np.flatnonzero(kinds == kind)
        at = e.reshape(sliced(e, positions, [int(kind)], [int(kind) + 1], [0], [1]), (n, length))
        out = Desc(cache.dtype, (n, length, len(columns)))
        parts.append(e.op("GatherV2", gathered(e, cache, columns, 1), at, axis, out=out))
        order += columns.tolist()
    return gathered(e, joined(e, parts, 2), np.argsort(order), 2)


def _key_mask(e: Emitter, op: Op, mask: Ref, *_: Ref | None) -> Ref:
    """The additive mask of scores, from a mask of ones and zeros or from row ends and starts."""
    out = e.type(op.result)
    rows, queries, keys = out.shape[0], out.shape[2], out.shape[3]
    if len(mask.shape) > 1:
        mask = e.reshape(mask, (rows if mask.shape[0] == rows else 1, 1, queries, keys))
        kept = mask if mask.dtype == "BOOL" else e.op("Greater", mask, e.scalar(0, mask), out=Desc("BOOL", mask.shape))
    else:
        bounds = e.cast(mask, "INT32")
        at = e.constant(np.arange(keys, dtype=np.int32))
        ends = e.reshape(sliced(e, bounds, [0], [rows], [0], [1]), (rows, 1, 1, 1))
        kept = e.op("Less", at, ends, out=Desc("BOOL", out.shape))
        if bounds.shape == (2 * rows,):
            starts = e.reshape(sliced(e, bounds, [rows], [2 * rows], [0], [1]), (rows, 1, 1, 1))
            kept = _both(e, kept, e.op("GreaterEqual", at, starts, out=Desc("BOOL", out.shape)))
    return e.op("SelectV2", kept, e.scalar(0, "FLOAT"), e.scalar(op.a.value, "FLOAT"), out=out)


def _for_heads(e: Emitter, x: Ref, heads: int) -> Ref:
    """`x[N, fewer, ...]` with each head repeated for the heads that share it."""
    n, fewer, *rest = x.shape
    if fewer == heads:
        return x
    apart = (n, fewer, heads // fewer, *rest)
    wide = e.op("BroadcastTo", e.reshape(x, (n, fewer, 1, *rest)), e.ints(apart), out=Desc(x.dtype, apart))
    return e.reshape(wide, (n, heads, *rest))


def _linear_attention_step(
    e: Emitter, op: Op, state: Ref, q: Ref, k: Ref, v: Ref, decay: Ref | None = None, beta: Ref | None = None
) -> tuple[Ref, Ref]:
    """One step on the vector unit, since the matrix unit would round the state at each step."""
    n, heads, dk, dv = state.shape
    every = max(q.shape[1], heads)
    key = e.reshape(_for_heads(e, e.cast(k, "FLOAT"), heads), (n, heads, dk, 1))
    written = e.reshape(e.cast(v, "FLOAT"), (n, heads, 1, dv))
    if decay is not None:
        state = e.op("Mul", state, e.op("Exp", e.reshape(e.cast(decay, "FLOAT"), (*decay.shape, 1))))
    if beta is not None:
        found = reduced(e, "ReduceSum", e.op("Mul", state, key), [2], keep=True)
        rate = e.reshape(_for_heads(e, e.cast(beta, "FLOAT"), heads), (n, heads, 1, 1))
        written = e.op("Mul", e.op("Sub", written, found), rate)
    new = e.op("Add", state, e.op("Mul", key, written, out=state.desc))
    asked = e.reshape(_for_heads(e, e.cast(q, "FLOAT"), every), (n, every, dk, 1))
    read = reduced(e, "ReduceSum", e.op("Mul", _for_heads(e, new, every), asked), [2], keep=False)
    return new, e.cast(e.op("Muls", read, value=float(op.a.scale)), q.dtype)


ROWS: dict[str, Row] = {
    "key_mask": _key_mask, "linear_attention_step": _linear_attention_step, "section_angles": _section_angles,
    "RotaryEmbedding": _rotary, "attention_mask": _attention_mask, "attention_softmax": _attention_softmax,
}  # fmt: skip
