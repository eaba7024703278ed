"""Attention of com.microsoft, in terms of the operators of ai.onnx."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import BOOL, F32, I64
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
from occ.compiler.ir.ops.contrib.operators import DOMAIN
from occ.compiler.ir.ops.spec import FormalSignature, op
from occ.compiler.ir.shape import show_shape
from occ.compiler.ir.te.expr import cast, literal, maximum, where, wrap
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value

MASKED = -10000.0  # what onnxruntime adds to the score of a masked key, where the node does not say


@op("key_mask", own_attributes="value=float")
class KeyMask:
    """What is added to the scores of masked keys, `[N or 1, 1, Q or 1, K]`.

    The mask is 1 for keys that count, `[N, K]` or `[N, Q, K]`; or the number of keys that count, `[N]`; or where they end
    and where they start, `[2N]`.
    """

    static = ("keys", "batch")
    operands = ("mask", "keys", "batch")

    def body(t, mask, keys, batch, *, a):
        (total,), (n,) = keys.value, batch.value
        zero, low = literal(0, F32), literal(a.value, F32)

        def element(i, _, q, k):
            match mask.rank:
                case 1 if mask.shape[0] == n:
                    keep = k < cast(I64, mask[i])
                case 1:
                    keep = (k < cast(I64, mask[i])) & (k >= cast(I64, mask[wrap(n) + i]))
                case 2:
                    keep = cast(BOOL, mask[i, k])
                case _:
                    keep = cast(BOOL, mask[i, q, k])
            return where(keep, zero, low)

        if mask.rank > 3 or (mask.rank == 1 and mask.shape[0] not in (n, 2 * n)):
            raise Invalid(f"a key mask of shape {show_shape(mask.shape)} is not supported", code="OCC0301")
        queries = mask.shape[1] if mask.rank == 3 else 1
        return t.map((n, 1, queries, total), element, name="key_mask")


def _biased(
    b: GraphBuilder, mask: Value | None, bias: Value | None, n: Dim, keys: Dim, a: SimpleNamespace
) -> Value | None:
    """The sum of what masks and biases add to the scores."""
    if mask is None:
        return bias
    low = MASKED if a.mask_filter_value is None else a.mask_filter_value
    made = b.key_mask(mask, b.dims(values=(keys,), shape=(1,)), b.dims(values=(n,), shape=(1,)), value=float(low))
    return made if bias is None else b.Add(b.Cast(bias, to=F32), made)


def attend(
    b: GraphBuilder, q: Value, k: Value, v: Value, a: SimpleNamespace, *, mask: Value | None, bias: Value | None,
    past: Dim | None,
) -> Value:  # fmt: skip
    """Attention of heads `[N, H, L, D]`; causal if the node is unidirectional, after `past` keys."""
    n, keys = q.tensor.dims[0], k.tensor.dims[2]
    scores = scores_of(b, q, k, a.scale or head_scale(q, None, name="Attention"), name="Attention")
    added = _biased(b, mask, bias, n, keys, a)
    if added is not None or a.unidirectional:
        offset = None if past is None else b.dims(values=(past,), shape=(1,))
        scores = b.attention_mask(scores, added, None, offset, causal=int(bool(a.unidirectional)), left=-1, right=-1)
    return grouped_matmul(b, b.attention_softmax(scores), v, name="Attention")


def _joined(b: GraphBuilder, past: Value | None, new: Value) -> Value:
    return new if past is None else b.Concat(past, new, axis=2)


def _split(b: GraphBuilder, x: Value, sizes: Sequence[int], axis: int) -> tuple[Value, ...]:
    return b.Split(x, b.constant(np.array(sizes, np.int64)), axis=axis, n_results=len(sizes))


_ATTENTION = {
    "num_heads": None,
    "unidirectional": 0,
    "scale": None,
    "mask_filter_value": None,
    "do_rotary": 0,
    "past_present_share_buffer": 0,
}


def _packed(b: GraphBuilder, qkv: Value, sizes: Sequence[int], mask: Value | None, past: Value | None,
            bias: Value | None, a: SimpleNamespace) -> tuple[Value, ...]:  # fmt: skip
    """(output, present) of queries, keys and values side by side, `[N, L, q + k + v]`."""
    if a.do_rotary or a.past_present_share_buffer:
        raise Invalid("`Attention` with do_rotary or a shared buffer is not supported", code="OCC0301")
    q, k, v = (to_heads(b, "Attention", x, a.num_heads) for x in _split(b, qkv, sizes, 2))
    length = None
    if past is not None:
        old_k, old_v = (b.Squeeze(x, b.constant(np.array([0]))) for x in _split(b, past, (1, 1), 0))
        length = old_k.tensor.dims[2]
        k, v = _joined(b, old_k, k), _joined(b, old_v, v)
    y = from_heads(b, attend(b, q, k, v, a, mask=mask, bias=bias, past=length))
    if a.n_results == 1:
        return (y,)
    lead = b.constant(np.array([0]))
    return y, b.Concat(b.Unsqueeze(k, lead), b.Unsqueeze(v, lead), axis=0)


@op(
    f"{DOMAIN}.Attention",
    signature=FormalSignature.of(
        "input weights bias? mask_index? past? attention_bias? past_sequence_length?", "output present?",
        qkv_hidden_sizes=None, rotary_embedding_dim=0, **_ATTENTION,
    ),
)  # fmt: skip
class Attention:
    """Self attention with one weight for queries, keys and values."""

    def composite(b, x, w, bias=None, mask=None, past=None, scores=None, length=None, *, a):
        width = w.tensor.dims[1]
        sizes = tuple(a.qkv_hidden_sizes or (quotient("Attention", width, 3),) * 3)
        qkv = b.MatMul(x, w)
        return _packed(b, qkv if bias is None else b.Add(qkv, bias), sizes, mask, past, scores, a)


@op(
    f"{DOMAIN}.QAttention",
    signature=FormalSignature.of(
        "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
        "output present?", **_ATTENTION,
    ),
)  # fmt: skip
class QAttention:
    """Attention whose first product is of quantised operands."""

    def composite(b, x, w, bias, x_scale, w_scale, mask=None, x_zero=None, w_zero=None, past=None, *, a):
        acc = b.Cast(b.MatMulInteger(x, w, x_zero, w_zero), to=bias.tensor.dtype)
        qkv = b.Add(b.Mul(acc, b.Mul(x_scale, w_scale)), bias)
        return _packed(b, qkv, (quotient("QAttention", w.tensor.dims[1], 3),) * 3, mask, past, None, a)


@op(
    f"{DOMAIN}.MultiHeadAttention",
    signature=FormalSignature.of(
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length?"
        " cache_indirection?",
        "output present_key? present_value? qk?", num_heads=None, unidirectional=0, scale=None, mask_filter_value=None,
    ),
)  # fmt: skip
class MultiHeadAttention:
    """Attention of projected operands, which may be packed: `[N, L, H, 3, D]`, or keys and values `[N, L, H, 2, D]`."""

    def composite(
        b, q, k=None, v=None, bias=None, padding=None, scores=None, past_k=None, past_v=None, length=None,
        indirection=None, *, a,
    ):  # fmt: skip
        if length is not None or indirection is not None or a.n_results > 3:
            raise Invalid("`MultiHeadAttention` with a shared buffer is not supported", code="OCC0301")
        if q.tensor.rank == 5:
            q, k, v = _unpacked(b, q, 3)
        elif k is not None and k.tensor.rank == 5:
            k, v = _unpacked(b, k, 2)
        if k is None or v is None:
            raise Invalid("`MultiHeadAttention` lacks keys or values")
        if bias is not None:
            sizes = [q.tensor.dims[2], *(x.tensor.dims[1] * x.tensor.dims[3] if x.tensor.rank == 4 else x.tensor.dims[2] for x in (k, v))]  # fmt: skip
            parts = _split(b, bias, [int(s) for s in sizes], 0)
            q, k, v = (x if x.tensor.rank == 4 else b.Add(x, part) for x, part in zip((q, k, v), parts, strict=True))
        q, k, v = (to_heads(b, "MultiHeadAttention", x, a.num_heads) for x in (q, k, v))
        past = None if past_k is None else past_k.tensor.dims[2]
        k, v = _joined(b, past_k, k), _joined(b, past_v, v)
        y = from_heads(b, attend(b, q, k, v, a, mask=padding, bias=scores, past=past))
        return (y, k, v)[: a.n_results]


def _unpacked(b: GraphBuilder, x: Value, n: int) -> list[Value]:
    """`[N, L, H, n, D]` as n of `[N, L, H * D]`."""
    batch, length, heads, _, size = x.tensor.dims
    return [reshape(b, part, (batch, length, heads * size)) for part in _split(b, x, (1,) * n, 3)]


@op("positions", own_attributes="")
class Positions:
    """`[N, L]` from the position of the first: `start[n] + l`; the start is one number or one of each row."""

    static = ("sizes",)
    operands = ("start", "sizes")

    def body(t, start, sizes, *, a):
        one = start.type.size == 1
        return t.map(
            sizes.value, lambda n, i: cast(I64, start[(0,) * start.rank] if one else start[n]) + i, name="positions"
        )


@op(
    f"{DOMAIN}.RotaryEmbedding",
    signature=FormalSignature.of(
        "input position_ids cos_cache sin_cache", "output", interleaved=0, num_heads=0, rotary_embedding_dim=0, scale=1.0,
        is_packed_batching=0,
    ),
)  # fmt: skip
class RotaryEmbedding:
    """RotaryEmbedding of ai.onnx with the operands in another order; one position is that of the first element."""

    def composite(b, x, positions, cos, sin, *, a):
        flat = x.tensor.rank == 3
        n, length = x.tensor.dims[0], x.tensor.dims[1 if flat else 2]
        if positions.tensor.rank == 1:
            positions = b.positions(positions, b.dims(values=(n, length), shape=(2,)))
        heads = a.num_heads
        if flat and not heads:
            heads = quotient("RotaryEmbedding", x.tensor.dims[2], cos.tensor.dims[1] * 2)
        return b.RotaryEmbedding(
            x, cos, sin, positions, interleaved=a.interleaved, num_heads=heads or None,
            rotary_embedding_dim=a.rotary_embedding_dim,
        )  # fmt: skip


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
            q, k, v = _split(b, q, [int(size) * h for h in (heads, groups, groups)], 2)
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
            first = start if lengths is None else lengths
            at = ids if ids is not None else b.positions(first, b.dims(values=(n, length), shape=(2,)))
            q, k = (b.RotaryEmbedding(x, cos, sin, at, interleaved=a.rotary_interleaved) for x in (q, k))
        if lengths is None:
            k, v = _joined(b, past_k, k), _joined(b, past_v, v)
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


ALL = (
    KeyMask, Attention, QAttention, MultiHeadAttention, Positions, RotaryEmbedding, PastLengths, CacheAppend,
    GroupQueryAttention,
)  # fmt: skip
