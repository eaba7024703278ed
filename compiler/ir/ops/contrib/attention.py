"""Attention operators of com.microsoft, as composites of ONNX operators."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import F32, I64
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.attention import (
    NUMBERS,
    from_heads,
    grouped_matmul,
    head_scale,
    quotient,
    reshape,
    scores_of,
    to_heads,
)
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_dims, show_shape
from occ.compiler.ir.te.expr import cast, literal, where, wrap

MASKED = -10000.0  # added to the score of a masked key by onnxruntime, if the node does not specify it


@op("key_mask", own_attributes="value=float")
class KeyMask:
    """The additive mask of scores, `[N or 1, 1, Q or 1, K]`.

    The mask is positive for valid keys, `[N, K]` or `[N, Q, K]`; or the number of valid keys, `[N]`, also as the first
    N of `[3N + 2]`; or where they end and start, `[2N]`.
    """

    static = ("keys", "batch")
    operands = ("mask", "keys", "batch")

    def body(t, mask, keys, batch, *, a):
        (total,), (n,) = keys.value, batch.value
        zero, low = literal(0, F32), literal(a.value, F32)

        if mask.rank in (2, 3):
            equal_dims(mask.shape[0], n, "the key mask and the batch")
            equal_dims(mask.shape[-1], total, "the key mask and the keys")

        if mask.rank == 1:
            t.check(mask.shape, lambda i: mask[i] >= 0, "a number or a position of keys is negative")

        def element(i, _, q, k):
            match mask.rank:
                case 1 if mask.shape[0] in (n, 3 * n + 2):
                    keep = k < cast(I64, mask[i])
                case 1:
                    keep = (k < cast(I64, mask[i])) & (k >= cast(I64, mask[wrap(n) + i]))
                case 2:
                    keep = mask[i, k] > 0
                case _:
                    keep = mask[i, q, k] > 0
            return where(keep, zero, low)

        if mask.rank > 3 or (mask.rank == 1 and mask.shape[0] not in (n, 2 * n, 3 * n + 2)):
            raise Invalid(f"a key mask of shape {show_shape(mask.shape)} is not supported", code="OCC0301")
        queries = mask.shape[1] if mask.rank == 3 else 1
        return t.map((n, 1, queries, total), element, name="key_mask")


def _biased(
    b: GraphBuilder, mask: Value | None, bias: Value | None, n: Dim, keys: Dim, a: SimpleNamespace
) -> Value | None:
    """The sum of all masks and biases added to the scores."""
    if mask is None:
        return bias
    low = MASKED if a.mask_filter_value is None else a.mask_filter_value
    made = b.key_mask(mask, b.dims(values=(keys,), shape=(1,)), b.dims(values=(n,), shape=(1,)), value=float(low))
    return made if bias is None else b.Add(b.Cast(bias, to=F32), made)


def attend(
    b: GraphBuilder, q: Value, k: Value, v: Value, a: SimpleNamespace, *, mask: Value | None, bias: Value | None,
    past: Dim | None, lengths: Value | None = None,
) -> Value:  # fmt: skip
    """Attention of heads `[N, H, L, D]`; causal if the node is unidirectional, after `past` keys.

    With `lengths`, `[N]`, only that many keys of each batch are valid, the last ones being those of the queries.
    """
    n, keys = q.tensor.dims[0], k.tensor.dims[2]
    if bias is not None and bias.tensor.rank:
        equal_dims(bias.tensor.dims[-1], keys, "the bias and the keys of attention")
    scores = scores_of(b, q, k, a.scale or head_scale(q, None, name="Attention"), name="Attention")
    added = _biased(b, mask, bias, n, keys, a)
    if added is not None or a.unidirectional or lengths is not None:
        offset = None if past is None else b.dims(values=(past,), shape=(1,))
        scores = b.attention_mask(scores, added, lengths, offset, causal=int(bool(a.unidirectional)), left=-1, right=-1)
    return grouped_matmul(b, b.attention_softmax(scores), v, name="Attention")


def joined(b: GraphBuilder, past: Value | None, new: Value) -> Value:
    """Keys or values of the past and new ones, `[N, H, L, D]`."""
    return new if past is None else b.Concat(past, new, axis=2)


def split(b: GraphBuilder, x: Value, sizes: Sequence[int], axis: int) -> tuple[Value, ...]:
    """Parts with constant sizes along an axis."""
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
    """(output, present) for queries, keys and values concatenated, `[N, L, q + k + v]`."""
    if a.do_rotary or a.past_present_share_buffer:
        raise Invalid("`Attention` with do_rotary or a shared buffer is not supported", code="OCC0301")
    q, k, v = (to_heads(b, "Attention", x, a.num_heads) for x in split(b, qkv, sizes, 2))
    length = None
    if past is not None:
        old_k, old_v = (b.Squeeze(x, b.constant(np.array([0]))) for x in split(b, past, (1, 1), 0))
        length = old_k.tensor.dims[2]
        k, v = joined(b, old_k, k), joined(b, old_v, v)
    y = from_heads(b, attend(b, q, k, v, a, mask=mask, bias=bias, past=length))
    if a.n_results == 1:
        return (y,)
    lead = b.constant(np.array([0]))
    return y, b.Concat(b.Unsqueeze(k, lead), b.Unsqueeze(v, lead), axis=0)


@op(
    f"{DOMAIN}.Attention",
    signature=FormalSignature.of(
        "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
        "output present?",
        qkv_hidden_sizes=None,
        rotary_embedding_dim=0,
        **_ATTENTION,
    ),
)
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
        "output present?",
        **_ATTENTION,
    ),
)
class QAttention:
    """Attention whose first product has quantised operands."""

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
    """Multi-head attention of projected operands, which may be packed.

    Packed are `[N, L, H, 3, D]`, or keys and values `[N, L, H, 2, D]`.
    """

    def composite(
        b, q, k=None, v=None, bias=None, padding=None, scores=None, past_k=None, past_v=None, length=None,
        indirection=None, *, a,
    ):  # fmt: skip
        if indirection is not None or a.n_results > 3:
            raise Invalid("`MultiHeadAttention` with beams is not supported", code="OCC0301")
        if q.tensor.rank == 5:
            q, k, v = _unpacked(b, q, 3)
        elif k is not None and k.tensor.rank == 5:
            k, v = _unpacked(b, k, 2)
        if k is None or v is None:
            raise Invalid("`MultiHeadAttention` lacks keys or values")
        for x in (k, v):
            equal_dims(
                x.tensor.dims[0], q.tensor.dims[0], "`MultiHeadAttention`: batches of queries, and of keys or values"
            )
        if bias is not None:
            q, k, v = _with_bias(b, (q, k, v), bias)
        q, k, v = (to_heads(b, "MultiHeadAttention", x, a.num_heads) for x in (q, k, v))
        equal_dims(k.tensor.dims[2], v.tensor.dims[2], "`MultiHeadAttention`: steps of keys and of values")
        past = lengths = None
        if length is None or past_k is None or past_v is None:
            past = None if past_k is None else past_k.tensor.dims[2]
            k, v = joined(b, past_k, k), joined(b, past_v, v)
        elif padding is None:
            if a.unidirectional:
                steps = "`MultiHeadAttention` over a shared buffer needs causality and as many queries as new keys, not"
                equal_dims(q.tensor.dims[2], k.tensor.dims[2], steps)
            before = b.Expand(b.Cast(length, to=I64), b.dims(values=(k.tensor.dims[0],), shape=(1,)))
            lengths = b.Add(before, b.dims(values=(k.tensor.dims[2],), shape=(1,)))
            k, v = (b.TensorScatter(old, x, before, axis=2) for old, x in ((past_k, k), (past_v, v)))
        else:
            raise Invalid("`MultiHeadAttention` with a shared buffer takes no mask", code="OCC0301")
        y = from_heads(b, attend(b, q, k, v, a, mask=padding, bias=scores, past=past, lengths=lengths))
        return (y, k, v)[: a.n_results]


def _with_bias(b: GraphBuilder, given: Sequence[Value], bias: Value) -> list[Value]:
    """Queries, keys and values with their parts of a bias; keys and values of a cache have theirs."""
    shapes = [x.tensor.dims for x in given]
    sizes = [d[1] * d[3] if len(d) == 4 else d[2] for d in shapes]
    known = [s for s in sizes if isinstance(s, int)]
    if len(known) < len(sizes):
        wide = show_shape(sizes)
        raise Invalid(f"`MultiHeadAttention` with a bias needs widths that are numbers, not {wide}", help=NUMBERS)
    parts = split(b, bias, known, 0)
    return [x if x.tensor.rank == 4 else b.Add(x, part) for x, part in zip(given, parts, strict=True)]


def _unpacked(b: GraphBuilder, x: Value, n: int) -> list[Value]:
    """`[N, L, H, n, D]` as n of `[N, L, H * D]`."""
    batch, length, heads, _, size = x.tensor.dims
    return [reshape(b, part, (batch, length, heads * size)) for part in split(b, x, (1,) * n, 3)]


ALL = (KeyMask, Attention, QAttention, MultiHeadAttention)
