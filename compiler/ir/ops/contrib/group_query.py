"""GroupQueryAttention of com.microsoft, as a composite of ONNX operators.

Sources: the schema of onnxruntime 1.31 (docs/ContribOperators.md) and what its CPU provider computes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, Sym, product
from occ.compiler.ir.dtype import F32, I8, I32, I64, U8, DType
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
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
from occ.compiler.ir.ops.contrib.block_quantized import field
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.ops.movement import unflatten
from occ.compiler.ir.ops.quantize import dequantized
from occ.compiler.ir.shape import assume_equal, equal_dims, show_shape, surely_different
from occ.compiler.ir.te.expr import Expr, call, cast, clamp, literal, maximum, where, wrap
from occ.compiler.ir.te.function import Tensor
from occ.compiler.ir.types import TensorType


@op("past_lengths", own_attributes="")
class PastLengths:
    """The number of valid cached keys of each row: `max(seqlens_k + 1 - L, 0)`, 0 in the first run."""

    static = ("sizes",)
    operands = ("seqlens", "sizes")

    def body(t, seqlens, sizes, *, a):
        length, past = sizes.value
        first = past == 0

        def element(n):
            return literal(0, I64) if first else maximum(cast(I64, seqlens[n]) + 1 - wrap(length), 0)

        if not first:  # for instance in a sliding-window cache
            t.check(
                seqlens.shape[:1],
                lambda n: element(n) <= wrap(past),
                "`GroupQueryAttention` has more keys before these than its cache holds",
            )
        return t.map(seqlens.shape[:1], element, name="past_lengths")


@op("cache_append", own_attributes="")
class CacheAppend:
    """A KV cache `[N, H, T, D]` with new keys after the first `lengths[n]` of each row.

    The rest is zeros. If the cache has room for all, its length stays, and the old contents follow.
    """

    static = ("total",)
    operands = ("past", "new", "lengths", "total")

    def body(t, past, new, lengths, total, *, a):
        n, heads, added, size = new.shape
        (keys,) = total.value

        def element(i, h, k, d):
            old, at = lengths[i], k - lengths[i]
            fresh = (at >= 0) & (at < wrap(added))
            if past is not None and past.shape[2] == keys:
                return where(fresh, new[i, h, at, d], past[i, h, k, d])
            late = where(fresh, new[i, h, at, d], literal(0, new.dtype))
            return late if past is None else where(k < old, past[i, h, k, d], late)

        return t.map((n, heads, keys, size), element, name="cache")


@op("first_keys", own_attributes="count=size")
class FirstKeys:
    """The first `count` keys or values of a cache `[N, H, T, D]` with spare room."""

    def body(t, x, *, a):
        n, heads, _, size = x.shape
        return t.map((n, heads, a.count, size), lambda *i: x[i], name="first")


# Element type of a cache of codes, and elements per head, by bits.
CODES: Mapping[int, Callable[[Dim], tuple[DType, Dim]]] = {
    8: lambda size: (I8, size),
    4: lambda size: (U8, quotient("GroupQueryAttention", size, 2)),
}


def _scales(scale: Tensor, heads: Dim, size: Dim) -> Callable[..., Expr]:
    """The scale of element `d` of head `h`: one for all, or one each.

    The latter may be flattened.

    Raises:
        Invalid: their number is wrong.
    """
    if scale.type.size == 1:
        return lambda h, d: scale[(0,) * scale.rank]
    if product(scale.shape) != heads * size:
        wanted = f"one number or {show_shape((1, heads, 1, size))}"
        raise Invalid(f"`GroupQueryAttention`: a scale of shape {show_shape(scale.shape)}, not {wanted}")
    return lambda h, d: scale[unflatten(h * wrap(size) + d, scale.shape)]


@op("cache_codes", own_attributes="bits=int")
class CacheCodes:
    """Keys or values `[N, H, L, D]` quantised for a cache: `round(x / scale)`.

    Codes are i8, or two of 4 bits in u8, plus 8, low bits first.
    """

    operands = ("x", "scale")

    def body(t, x, scale, *, a):
        kind, width = CODES[a.bits](x.shape[3])
        step = _scales(scale, x.shape[1], x.shape[3])

        def code(*i):
            value = call("round_even", cast(F32, x[i]) / cast(F32, step(i[1], i[3])))
            top = 1 << (a.bits - 1)
            return cast(I32, clamp(value, float(-top), float(top - 1)))

        def element(n, h, k, d):
            if a.bits == 8:
                return cast(kind, code(n, h, k, d))
            return cast(kind, (code(n, h, k, d * 2) + 8) + (code(n, h, k, d * 2 + 1) + 8) * 16)

        return t.map((*x.shape[:3], width), element, name="codes")


@op("cache_values", own_attributes="bits=int to=dtype")
class CacheValues:
    """Dequantises a KV cache, `[N, H, T, D]`."""

    operands = ("codes", "scale")

    def body(t, codes, scale, *, a):
        each = 8 // a.bits
        step = _scales(scale, codes.shape[1], codes.shape[3] * each)

        def element(n, h, k, d):
            code = cast(I32, field(codes[n, h, k, d // each], d, a.bits))
            return dequantized(code - 8 if each > 1 else code, step(h, d), None, a.to)

        return t.map((*codes.shape[:3], codes.shape[3] * each), element, name="values")


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
    """Causal attention with fewer key than query heads, a cache with per-row lengths, and rotation.

    A single number in `seqlens_k` is the length of all rows; onnxruntime requires one each. The cache may hold codes of
    8 or 4 bits, on which attention is then computed. The fourth result is the input of the softmax (`qk_output` 1) or
    its output (2), 0 where a key is masked.
    """

    def infer(
        q, k=None, v=None, past_k=None, past_v=None, seqlens=None, total=None, cos=None, sin=None, ids=None, bias=None,
        sink=None, k_scale=None, v_scale=None, *norms, a,
    ):  # fmt: skip
        _check(a, k_scale, v_scale, norms)
        if a.do_rotary and (cos is None or sin is None):
            raise Invalid("`GroupQueryAttention` with do_rotary has no angles", help="pass cos_cache and sin_cache")
        known = None if total is None or not total.value else total.value[0]
        if known is None or isinstance(known, float):
            raise Unresolved("GroupQueryAttention", "total_sequence_length")
        if isinstance(known, int) and known < 1:
            raise Invalid(f"`total_sequence_length` of `GroupQueryAttention` is {known}")
        heads = a.num_heads if k is not None else a.num_heads + 2 * a.kv_num_heads
        size = quotient("GroupQueryAttention", q.shape[2], heads)
        kind, width = (q.dtype, size) if k_scale is None else CODES[_bits(a)](size)
        keys = known if past_k is None else _keys(known, past_k.shape[2], q.shape[1])
        present = TensorType(kind, (q.shape[0], a.kv_num_heads, keys, width))
        for what, x in (("key", k), ("value", v)):
            if x is not None:
                _fits(what, x, (*q.shape[:2], a.kv_num_heads * size))
        for what, x in (("past_key", past_k), ("past_value", past_v)):
            if x is not None:
                _fits(what, x, (q.shape[0], a.kv_num_heads, None if past_k is None else past_k.shape[2], width))
        if seqlens is not None and product(seqlens.shape) != 1:
            equal_dims(product(seqlens.shape), q.shape[0], "`GroupQueryAttention`: `seqlens_k` and the batch")
        weights = TensorType(q.dtype, (q.shape[0], a.num_heads, q.shape[1], known))
        return TensorType(q.dtype, (*q.shape[:2], a.num_heads * size)), present, present, weights

    def composite(
        b, q, k=None, v=None, past_k=None, past_v=None, seqlens=None, total=None, cos=None, sin=None, ids=None,
        bias=None, sink=None, k_scale=None, v_scale=None, q_norm=None, k_norm=None, *, a,
    ):  # fmt: skip
        q, k, v = _projected(b, q, k, v, (q_norm, k_norm), a)
        n, _, length, _ = q.tensor.dims
        past = 0 if past_k is None else past_k.tensor.dims[2]
        total = total_of(total)
        keys = total if past_k is None else _keys(total, past, length)
        alike = n == 1 or (seqlens is not None and seqlens.tensor.size == 1)
        follows = past_k is not None and alike and total == past + length
        start = b.dims(values=(past,), shape=(1,))
        lengths = (
            None if follows else b.past_lengths(reshape(b, seqlens, (n,)), b.dims(values=(length, past), shape=(2,)))
        )
        if a.do_rotary:
            first = start if lengths is None else lengths
            at = ids if ids is not None else b.positions(first, b.dims(values=(n, length), shape=(2,)))
            q, k = (_turned(b, x, cos, sin, at, a) for x in (q, k))
        if k_scale is not None:
            k, v = (b.cache_codes(x, s, bits=_bits(a)) for x, s in ((k, k_scale), (v, v_scale)))
        if lengths is None:
            k, v = joined(b, past_k, k), joined(b, past_v, v)
        else:
            shape = b.dims(values=(keys,), shape=(1,))
            k, v = b.cache_append(past_k, k, lengths, shape), b.cache_append(past_v, v, lengths, shape)
        presents = (k, v)
        if past_k is not None and past == keys != total:
            k, v = (b.first_keys(x, count=total) for x in (k, v))
        if k_scale is not None:
            k, v = (b.cache_values(x, s, bits=_bits(a), to=q.tensor.dtype) for x, s in ((k, k_scale), (v, v_scale)))
        end = None if lengths is None else b.Add(lengths, b.dims(values=(length,), shape=(1,)))
        scores = _scores(b, q, k, bias, end, start if end is None else None, a)
        if sink is None and a.smooth_softmax > 0:
            sink = b.constant(np.zeros(a.num_heads, scores.tensor.dtype.numpy))
        weights = _sunk(b, scores, sink)
        y = from_heads(b, grouped_matmul(b, weights, v, name="GroupQueryAttention"))
        if a.n_results > 3:
            return y, *presents, _shown(b, scores, weights, total, q.tensor.dtype, a)
        return (y, *presents)[: a.n_results]


def _check(a: SimpleNamespace, k_scale: Tensor | None, v_scale: Tensor | None, norms: Sequence[Tensor | None]) -> None:
    """Check that attributes and operands are consistent.

    Raises:
        Invalid: they are not.
    """
    for what, kind, scale in (("k", a.k_quant_type, k_scale), ("v", a.v_quant_type, v_scale)):
        if kind not in ("NONE", "PER_TENSOR", "PER_CHANNEL") or (kind == "NONE") != (scale is None):
            raise Invalid(
                f"`GroupQueryAttention` with {what}_quant_type={kind!r} and "
                f"{'no ' if scale is None else ''}{what}_scale",
                code="OCC0107",
                help="pass a scale with PER_TENSOR or PER_CHANNEL, and none with NONE",
            )
    if (k_scale is None) != (v_scale is None) or (k_scale is not None and _bits(a) not in CODES):
        raise Invalid(
            f"`GroupQueryAttention` with a cache of {_bits(a)} bits, and scales of only keys or only values",
            code="OCC0107",
            help="keys and values of a cache both have codes of 8 bits or both of 4",
        )
    if not a.num_heads or not a.kv_num_heads or a.num_heads % a.kv_num_heads:
        what = f"`GroupQueryAttention` with num_heads={a.num_heads} and kv_num_heads={a.kv_num_heads}"
        raise Invalid(
            what, code="OCC0107", help="the number of query heads must be a multiple of the number of key heads"
        )
    if sum(x is not None for x in norms) == 1:
        raise Invalid("`GroupQueryAttention` with a norm of only queries or only keys", code="OCC0107")
    if a.n_results > 3 and a.qk_output not in (1, 2):
        raise Invalid(f"`GroupQueryAttention` has output_qk with qk_output={a.qk_output}", code="OCC0107")


def _fits(what: str, x: Tensor, wanted: Sequence[Dim | None]) -> None:
    """Check an operand's shape; None is any extent.

    Raises:
        Invalid: the rank or an extent certainly differs.
    """
    pairs = [(x.shape[i], d) for i, d in enumerate(wanted[: x.rank]) if d is not None]
    if x.rank != len(wanted) or any(surely_different(*pair) for pair in pairs):
        shape = ", ".join("*" if d is None else str(d) for d in wanted)
        raise Invalid(
            f"`GroupQueryAttention`: `{what}` is of shape {show_shape(x.shape)}, where the queries, kv_num_heads and "
            f"the bits of the cache require [{shape}]",
            help="set that shape for the input, or remove the `--dim` or `--shape` that sets another",
        )
    for pair in pairs:
        assume_equal(*pair)


def _bits(a: SimpleNamespace) -> int:
    return a.kv_cache_bit_width or 8


def _projected(
    b: GraphBuilder, q: Value, k: Value | None, v: Value | None, norms: Sequence[Value | None], a: SimpleNamespace
) -> Sequence[Value]:
    """Queries, keys and values by heads, from one operand or three; queries and keys normalised if weights exist."""
    heads, groups = a.num_heads, a.kv_num_heads
    parts: Sequence[Value] = [x for x in (q, k, v) if x is not None]
    if len(parts) == 1:
        size = quotient("GroupQueryAttention", q.tensor.dims[2], heads + 2 * groups)
        parts = split(b, q, [int(size) * h for h in (heads, groups, groups)], 2)
    found = [to_heads(b, "GroupQueryAttention", x, h) for x, h in zip(parts, (heads, groups, groups), strict=True)]
    normal = [
        x if w is None else b.RMSNormalization(x, w, axis=-1, epsilon=a.qk_norm_epsilon)
        for x, w in zip(found, norms, strict=False)
    ]
    return *normal, found[2]


def _turned(b: GraphBuilder, x: Value, cos: Value | None, sin: Value | None, at: Value, a: SimpleNamespace) -> Value:
    """Rotation of the part of a head for which there are angles."""
    assert cos is not None, "inference has looked at the angles"
    size = cos.tensor.dims[1] * 2
    return b.RotaryEmbedding(x, cos, sin, at, interleaved=a.rotary_interleaved, rotary_embedding_dim=size)


def _scores(
    b: GraphBuilder, q: Value, k: Value, bias: Value | None, end: Value | None, offset: Value | None, a: SimpleNamespace
) -> Value:
    """The masked scores, the lowest number where a key is masked."""
    scale = a.scale or head_scale(q, None, name="GroupQueryAttention")
    scores = scores_of(b, q, k, scale, name="GroupQueryAttention")
    if a.softcap:
        scores = scaled(b, b.Tanh(scaled(b, scores, 1 / a.softcap)), a.softcap)
    left = a.local_window_size - 1 if a.local_window_size > 0 else -1
    return b.attention_mask(scores, bias, end, offset, causal=int(a.causal), left=left, right=-1)


def _shown(b: GraphBuilder, scores: Value, weights: Value, total: Dim, to: DType, a: SimpleNamespace) -> Value:
    """`output_qk`, for the valid keys."""
    found = weights
    if a.qk_output == 1:
        low, zero = (b.constant(np.array(x, scores.tensor.dtype.numpy)) for x in (scores.tensor.dtype.lowest, 0))
        found = b.Where(b.Equal(scores, low), zero, scores)
    if found.tensor.dims[-1] != total:
        first, last = (b.constant(np.array([k], np.int64)) for k in (0, -1))
        found = b.Slice(found, first, b.dims(values=(total,), shape=(1,)), last)
    return found if found.tensor.dtype == to else b.Cast(found, to=to)


def _keys(total: Dim, past: Dim, length: Dim) -> Dim:
    """The present's valid keys: the cache may be longer."""
    return total if total == past + length else dim.maximum(total, past)


def _sunk(b: GraphBuilder, scores: Value, sink: Value | None) -> Value:
    """Softmax along the keys; a sink `[heads]` is the score of one more key, whose weight is dropped."""
    if sink is None:
        return b.attention_softmax(scores)
    *lead, keys = scores.tensor.dims
    column = reshape(b, b.Cast(sink, to=scores.tensor.dtype), (lead[1], 1, 1))
    column = b.Expand(column, b.dims(values=(*lead, 1), shape=(len(lead) + 1,)))
    weights = b.attention_softmax(b.Concat(scores, column, axis=-1))
    first, last = (b.constant(np.array([k], np.int64)) for k in (0, -1))
    return b.Slice(weights, first, b.dims(values=(keys,), shape=(1,)), last)


def total_of(total: Value | None) -> Dim:
    """The value of `total_sequence_length`, which inference has determined."""
    found = None if total is None else static_elements(total)
    if not found or not isinstance(found[0], (int, Sym)):
        raise Unresolved("GroupQueryAttention", "total_sequence_length")
    return found[0]


ALL = (PastLengths, CacheAppend, FirstKeys, CacheCodes, CacheValues, GroupQueryAttention)
