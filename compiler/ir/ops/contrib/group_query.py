"""GroupQueryAttention of com.microsoft: attention over a cache, in terms of the operators of ai.onnx.

Sources: the schema of onnxruntime 1.31 (docs/ContribOperators.md) and what its CPU provider computes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.meaning import static_elements
from occ.compiler.ir.ops.attention import (
    from_heads,
    grouped_matmul,
    head_scale,
    quotient,
    reshape,
    scaled,
    scores_of,
    to_heads,
)
from occ.compiler.ir.ops.contrib.attention import joined, split
from occ.compiler.ir.ops.contrib.operators import DOMAIN
from occ.compiler.ir.ops.spec import FormalSignature, op
from occ.compiler.ir.te.expr import cast, literal, maximum, where, wrap
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value


@op("past_lengths", own_attributes="")
class PastLengths:
    """How many keys of the cache of each row count: `max(seqlens_k + 1 - L, 0)`, none in the first run."""

    static = ("sizes",)
    operands = ("seqlens", "sizes")

    def body(t, seqlens, sizes, *, a):
        length, past = sizes.value
        first = past == 0

        def element(n):
            return literal(0, I64) if first else maximum(cast(I64, seqlens[n]) + 1 - wrap(length), 0)

        return t.map(seqlens.shape[:1], element, name="past_lengths")


@op("cache_append", own_attributes="")
class CacheAppend:
    """`[N, H, T, D]`: of each row the first `lengths[n]` keys of the cache, then the new ones, then zeros."""

    static = ("total",)
    operands = ("past", "new", "lengths", "total")

    def body(t, past, new, lengths, total, *, a):
        n, heads, added, size = new.shape

        def element(i, h, k, d):
            old, at = lengths[i], k - lengths[i]
            fresh = where((at >= 0) & (at < wrap(added)), new[i, h, at, d], literal(0, new.dtype))
            return fresh if past is None else where(k < old, past[i, h, k, d], fresh)

        return t.map((n, heads, total.value[0], size), element, name="cache")


@op(
    f"{DOMAIN}.GroupQueryAttention",
    signature=FormalSignature.of(
        "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids?"
        " attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight?",
        "output present_key? present_value? output_qk?", num_heads=None, kv_num_heads=None, scale=None, softcap=0.0,
        do_rotary=0, rotary_interleaved=0, local_window_size=-1, causal=1, smooth_softmax=-1, sliding_window_cache=0,
        qk_output=0, kv_cache_bit_width=0, k_quant_type="NONE", v_quant_type="NONE", qk_norm_epsilon=1e-6,
    ),
    static=("total_sequence_length",),
)  # fmt: skip
class GroupQueryAttention:
    """Causal attention with fewer key than query heads, a cache whose rows have lengths of their own, and rotation."""

    def infer(
        q, k=None, v=None, past_k=None, past_v=None, seqlens=None, total=None, cos=None, sin=None, ids=None, bias=None,
        sink=None, *unsupported, a,
    ):  # fmt: skip
        if any(x is not None for x in unsupported) or a.n_results > 3:
            raise Invalid("`GroupQueryAttention` with scales, norms or qk output is not supported", code="OCC0301")
        known = None if total is None or not total.value else total.value[0]
        if known is None or isinstance(known, float):
            raise Unresolved("GroupQueryAttention", "total_sequence_length")
        heads = a.num_heads if k is not None else a.num_heads + 2 * a.kv_num_heads
        size = quotient("GroupQueryAttention", q.shape[2], heads)
        keys = known if past_k is None else _keys(known, past_k.shape[2], q.shape)
        present = TensorType(q.dtype, (q.shape[0], a.kv_num_heads, keys, size))
        return TensorType(q.dtype, (*q.shape[:2], a.num_heads * size)), present, present

    def composite(
        b, q, k=None, v=None, past_k=None, past_v=None, seqlens=None, total=None, cos=None, sin=None, ids=None,
        bias=None, sink=None, *_, a,
    ):  # fmt: skip
        heads, groups = a.num_heads, a.kv_num_heads
        if k is None:
            size = quotient("GroupQueryAttention", q.tensor.dims[2], heads + 2 * groups)
            q, k, v = split(b, q, [int(size) * h for h in (heads, groups, groups)], 2)
        q = to_heads(b, "GroupQueryAttention", q, heads)
        k, v = (to_heads(b, "GroupQueryAttention", x, groups) for x in (k, v))
        n, _, length, _ = q.tensor.dims
        past = 0 if past_k is None else past_k.tensor.dims[2]
        total = total_of(total)
        keys = total if past_k is None else _keys(total, past, (n, length))
        follows = past_k is not None and _follows(total, past, (n, length))
        start = b.dims(values=(past,), shape=(1,))
        lengths = (
            None if follows else b.past_lengths(reshape(b, seqlens, (n,)), b.dims(values=(length, past), shape=(2,)))
        )
        if a.do_rotary:
            if cos is None or sin is None:
                raise Invalid("`GroupQueryAttention` with do_rotary has no angles", help="give cos_cache and sin_cache")
            first = start if lengths is None else lengths
            at = ids if ids is not None else b.positions(first, b.dims(values=(n, length), shape=(2,)))
            turned = {"interleaved": a.rotary_interleaved, "rotary_embedding_dim": cos.tensor.dims[1] * 2}
            q, k = (b.RotaryEmbedding(x, cos, sin, at, **turned) for x in (q, k))
        if lengths is None:
            k, v = joined(b, past_k, k), joined(b, past_v, v)
        else:
            shape = b.dims(values=(keys,), shape=(1,))
            k, v = b.cache_append(past_k, k, lengths, shape), b.cache_append(past_v, v, lengths, shape)
        scores = scores_of(
            b, q, k, a.scale or head_scale(q, None, name="GroupQueryAttention"), name="GroupQueryAttention"
        )
        if a.softcap:
            scores = scaled(b, b.Tanh(scaled(b, scores, 1 / a.softcap)), a.softcap)
        end = None if lengths is None else b.Add(lengths, b.dims(values=(length,), shape=(1,)))
        left = a.local_window_size - 1 if a.local_window_size > 0 else -1
        offset = start if end is None else None
        scores = b.attention_mask(scores, bias, end, offset, causal=int(a.causal), left=left, right=-1)
        if sink is None and a.smooth_softmax > 0:
            sink = b.constant(np.zeros(heads, scores.tensor.dtype.numpy))
        y = grouped_matmul(b, _sunk(b, scores, sink), v, name="GroupQueryAttention")
        return (from_heads(b, y), k, v)[: a.n_results]


def _follows(total: Dim, past: Dim, query: Sequence[Dim]) -> bool:
    """Whether the new keys follow all that the cache holds: one sequence, as long as the cache and they together."""
    return query[0] == 1 and total == past + query[1]


def _keys(total: Dim, past: Dim, query: Sequence[Dim]) -> Dim:
    """Keys of the present: the cache may have room for more than there are."""
    return total if _follows(total, past, query) else dim.maximum(total, past)


def _sunk(b: GraphBuilder, scores: Value, sink: Value | None) -> Value:
    """Softmax along the keys; with a sink `[heads]`, of one key more with that score, whose weight is left out."""
    if sink is None:
        return b.attention_softmax(scores)
    *lead, keys = scores.tensor.dims
    column = reshape(b, b.Cast(sink, to=scores.tensor.dtype), (lead[1], 1, 1))
    column = b.Expand(column, b.dims(values=(*lead, 1), shape=(len(lead) + 1,)))
    weights = b.attention_softmax(b.Concat(scores, column, axis=-1))
    first, last = (b.constant(np.array([k], np.int64)) for k in (0, -1))
    return b.Slice(weights, first, b.dims(values=(keys,), shape=(1,)), last)


def total_of(total: Value | None) -> Dim:
    """The value of `total_sequence_length`, which inference has found."""
    found = None if total is None else static_elements(total)
    if not found or not isinstance(found[0], (int, Sym)):
        raise Unresolved("GroupQueryAttention", "total_sequence_length")
    return found[0]


ALL = (PastLengths, CacheAppend, GroupQueryAttention)
