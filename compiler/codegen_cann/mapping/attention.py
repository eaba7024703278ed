"""Attention and rotary embeddings as GE nodes; Attention itself is matrix products with these two steps between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.reduce import reduced
from occ.compiler.codegen_cann.mapping.rotary_kernel import embedded
from occ.compiler.codegen_cann.mapping.shape import joined, sliced
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
    """Scores with a mask added, and where it is not -inf: nothing is added there, so that NaN and inf do no harm."""
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
    first, second = (_cut(e, heads, 0, dim, 2), _cut(e, heads, 1, dim, 2)) if a.interleaved else (
        _cut(e, heads, 0, dim // 2), _cut(e, heads, dim // 2, dim)
    )  # fmt: skip
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


ROWS: dict[str, Row] = {
    "RotaryEmbedding": _rotary, "attention_mask": _attention_mask, "attention_softmax": _attention_softmax,
}  # fmt: skip
