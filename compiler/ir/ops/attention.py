"""Attention, rotary embeddings, SwiGLU and causal convolutions, as composites of other operators."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, exact_quotient, product
from occ.compiler.ir.dim import minimum as least
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.reduce import over_axes
from occ.compiler.ir.shape import broadcasts_to, equal_dims, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value


def reshape(b: GraphBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    """`x` under another shape, which may have symbolic extents."""
    if tuple(shape) == x.tensor.dims:
        return x
    if all(isinstance(d, int) for d in shape):
        return b.Reshape(x, b.constant(np.array(shape, np.int64)), allowzero=1)
    return b.Reshape(x, b.dims(values=tuple(shape), shape=(len(shape),)), allowzero=1)


def quotient(name: str, a: Dim, b: Dim) -> Dim:
    """`a / b`, which must be whole.

    Raises:
        Invalid: it is not.
    """
    found = exact_quotient(a, b)
    if found is None:
        raise Invalid(f"`{name}`: {a} is not a multiple of {b}")
    return found


def to_heads(b: GraphBuilder, name: str, x: Value, heads: int | None) -> Value:
    """`[N, L, H*D]` as `[N, H, L, D]`; of rank 4 as it is.

    Raises:
        Invalid: the rank is neither 3 nor 4, or the number of heads is missing.
    """
    if x.tensor.rank == 4:
        return x
    if x.tensor.rank != 3 or not heads:
        raise Invalid(f"`{name}` takes rank 4, or rank 3 and a number of heads; this is {x.type} with {heads} heads")
    n, length, width = x.tensor.dims
    return b.Transpose(reshape(b, x, (n, length, heads, quotient(name, width, heads))), perm=(0, 2, 1, 3))


def from_heads(b: GraphBuilder, x: Value) -> Value:
    """`[N, H, L, D]` as `[N, L, H*D]`."""
    n, h, length, d = x.tensor.dims
    return reshape(b, b.Transpose(x, perm=(0, 2, 1, 3)), (n, length, h * d))


def scaled(b: GraphBuilder, x: Value, factor: float) -> Value:
    """`x * factor` in the type of `x`."""
    if factor == 1.0:
        return x
    return b.Mul(x, b.constant(np.asarray(factor, np.float64).astype(x.tensor.dtype.numpy)))


def grouped_matmul(b: GraphBuilder, x: Value, y: Value, *, name: str) -> Value:
    """`x @ y` where each head of `y` serves a group of heads of `x`: `[N, G*H, L, K]` and `[N, H, K, M]`."""
    n, hx, length, k = x.tensor.dims
    _, hy, _, m = y.tensor.dims
    if hx == hy:
        return b.MatMul(x, y)
    group = quotient(name, hx, hy)
    left = reshape(b, x, (n, hy, group * length, k))
    return reshape(b, b.MatMul(left, y), (n, hx, length, m))


@op("attention_mask", own_attributes="causal=int left=int right=int")
class AttentionMask:
    """Scores with everything that forbids a key: mask, causality, window, valid length. `offset` is the key before query 0.

    Forbidden scores become -inf by selection, so that a NaN or inf among them does no harm.
    """

    static = ("offset",)
    operands = ("scores", "mask", "nonpad", "offset")

    def body(t, scores, mask=None, nonpad=None, offset=None, *, a):
        if mask is not None:
            broadcasts_to(mask.shape[:-1], scores.shape[:-1], "a mask of attention, and the scores")
        if nonpad is not None:
            equal_dims(nonpad.shape[0], scores.shape[0], "lengths of attention, and the batches of the scores")
        low = literal(scores.dtype.lowest, scores.dtype)
        start = offset.value[0] if offset is not None and offset.value is not None else None

        def element(*i):
            n, _, q, k = i
            value, allowed = scores[i], literal(True, BOOL)
            if mask is not None:
                value, allowed = _masked(value, allowed, mask, i, low)
            length = None if nonpad is None else cast(I64, nonpad[n])
            if length is not None:
                allowed = allowed & (k < length)
            base = (
                wrap(start) if start is not None else length - wrap(scores.shape[2]) if length is not None else wrap(0)
            )
            if a.causal:
                allowed = allowed & (k <= q + base)
            if a.left >= 0:
                allowed = allowed & (q + base - k <= a.left)
            if a.right >= 0:
                allowed = allowed & (k - (q + base) <= a.right)
            return where(allowed, value, low)

        return t.map(scores.shape, element, name="masked")


def _masked(value: Expr, allowed: Expr, mask: Tensor, i: Sequence[Expr], low: Expr) -> tuple[Expr, Expr]:
    """A score with the mask; keys past the end of a short mask are forbidden."""
    inside = literal(True, BOOL) if mask.shape[-1] == 1 else i[-1] < wrap(mask.shape[-1])
    entry = mask.at(tuple(i))
    if mask.dtype == BOOL:
        return value, allowed & where(inside, entry, literal(False, BOOL))
    bias = where(inside, cast(value.dtype, entry), low)
    return where(equal(bias, low), low, value + bias), allowed


@op("attention_softmax", own_attributes="")
class AttentionSoftmax:
    """Softmax along the last axis; a row that is all -inf, which attends to nothing, becomes zeros."""

    operands = ("scores",)

    def body(t, x, *, a):
        return safe_softmax(t, x)


def safe_softmax(t: Builder, x: Tensor) -> Tensor:
    """See AttentionSoftmax; computed in the accumulation type."""
    dtype, last = x.dtype.acc, [x.rank - 1]
    low = literal(dtype.lowest, dtype)

    def row(i: Sequence[Expr]) -> tuple[Expr, ...]:
        return (*i[:-1], wrap(0))

    peak = over_axes(t, "max", x, last, lambda e: cast(dtype, e))
    top = t.map(peak.shape, lambda *i: where(equal(peak[i], low), literal(0, dtype), peak[i]), name="top")
    e = t.map(x.shape, lambda *i: f.exp(cast(dtype, x[i]) - top[row(i)]), name="e")
    total = over_axes(t, "sum", e, last, lambda v: v)

    def element(*i: Expr) -> Expr:
        whole = total[row(i)]
        return cast(x.dtype, e[i] / where(equal(whole, 0), literal(1, dtype), whole))

    return t.map(x.shape, element, name="softmax")


def scores_of(b: GraphBuilder, q: Value, k: Value, scale: float, *, name: str) -> Value:
    """`q @ k' * scale`; types narrower than f32 scale both sides by its root, which keeps them in range."""
    kt = (0, 1, 3, 2)
    if q.tensor.dtype.bits >= 32:
        return grouped_matmul(b, scaled(b, q, scale), b.Transpose(k, perm=kt), name=name)
    root = sqrt(scale)
    return grouped_matmul(b, scaled(b, q, root), b.Transpose(scaled(b, k, root), perm=kt), name=name)


def head_scale(q: Value, scale: float | None, *, name: str) -> float:
    """The scale of the scores: as given, or one over the root of the head size."""
    if scale is not None:
        return scale
    size = q.tensor.dims[-1]
    if not isinstance(size, int):
        raise Invalid(f"`{name}` needs a constant head size, not {size}")
    return 1 / sqrt(size)


@op("Attention")
class Attention:
    """ONNX Attention 25: grouped heads, cache, masks, window, soft cap, and the scores at four points."""

    def composite(b, q, k, v, mask=None, past_key=None, past_value=None, nonpad=None, *, a):
        flat = q.tensor.rank == 3
        counts = (a.q_num_heads, a.kv_num_heads, a.kv_num_heads) if flat else (1, 1, 1)
        sizes = [exact_quotient(x.tensor.dims[-1], n or 1) for x, n in zip((q, k, v), counts, strict=True)]
        open_ = [not isinstance(x.tensor.dims[-1], int) for x in (q, k, v)]
        if (open_[0] and a.scale is None) or any(o and n is None for o, n in zip(open_, sizes, strict=True)):
            raise Unresolved("Attention", "head size")  # which a run shows
        q = to_heads(b, "Attention", q, a.q_num_heads)
        k, v = (to_heads(b, "Attention", x, a.kv_num_heads) for x in (k, v))
        equal_dims(k.tensor.dims[1], v.tensor.dims[1], "`Attention`: heads of keys and of values")
        if past_key is not None:
            k, v = b.Concat(past_key, k, axis=2), b.Concat(past_value, v, axis=2)
        scores = raw = scores_of(b, q, k, head_scale(q, a.scale, name="Attention"), name="Attention")
        if a.softcap:
            scores = scaled(b, b.Tanh(scaled(b, scores, 1 / a.softcap)), a.softcap)
        capped = scores
        left, right = (getattr(a, side, -1) for side in ("left_window_size", "right_window_size"))
        if mask is not None or nonpad is not None or a.is_causal or left >= 0 or right >= 0:
            past = past_key.tensor.dims[2] if past_key is not None else None
            offset = None if past is None else b.dims(values=(past,), shape=(1,))
            scores = b.attention_mask(scores, mask, nonpad, offset, causal=int(a.is_causal), left=left, right=right)
        biased = scores
        if a.softmax_precision is not None:
            scores = b.Cast(scores, to=a.softmax_precision)
        weights = b.attention_softmax(scores)
        if weights.tensor.dtype != q.tensor.dtype:
            weights = b.Cast(weights, to=q.tensor.dtype)
        y = grouped_matmul(b, weights, v, name="Attention")
        shown = (raw, capped, biased, weights)[a.qk_matmul_output_mode]
        return (from_heads(b, y) if flat else y), k, v, shown


@op("ai.onnx.preview.FlexAttention", region=True, tags=("declared",))
class FlexAttention:
    """Scores, softmax and output, with sub-graphs between them; import takes it apart into those."""


@op("flex_scores", own_attributes="scale=float? softmax_precision=dtype?")
class FlexScores:
    """The scores of FlexAttention in the precision of its softmax."""

    operands = ("Q", "K")

    def composite(b, q, k, *, a):
        if q.tensor.rank != 4 or k.tensor.rank != 4:
            raise Invalid(f"`FlexAttention` takes operands of rank 4, not {q.tensor.rank} and {k.tensor.rank}")
        scale = head_scale(q, getattr(a, "scale", None), name="FlexAttention")
        precision = getattr(a, "softmax_precision", None) or q.tensor.dtype.acc
        return b.Cast(scores_of(b, q, k, scale, name="FlexAttention"), to=precision)


@op("flex_output", own_attributes="")
class FlexOutput:
    """The output of FlexAttention from its probabilities."""

    operands = ("probabilities", "V")

    def composite(b, p, v, *, a):
        y = grouped_matmul(b, p, b.Cast(v, to=p.tensor.dtype), name="FlexAttention")
        return b.Cast(y, to=v.tensor.dtype)


@op("RotaryEmbedding")
class RotaryEmbedding:
    """Pairs of the head turned by an angle that depends on the position (ONNX RotaryEmbedding 23)."""

    static = ("position_ids",)

    def body(t, x, cos_cache, sin_cache, position_ids=None, *, a):
        return rotated(t, x, cos_cache, sin_cache, position_ids, a)


def rotated(t: Builder, x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None, a: Any) -> Tensor:
    """RotaryEmbedding of `[N, H, L, D]` or `[N, L, H*D]`.

    Raises:
        Invalid: the number of heads is missing, or the caches do not fit.
    """
    flat = x.rank == 3
    if position_ids is not None and position_ids.rank != 2 and product(position_ids.shape) != 1:
        raise Invalid(f"positions of `RotaryEmbedding` are `[batch, length]`, not {show_shape(position_ids.shape)}")
    if flat and not a.num_heads:
        raise Invalid("`RotaryEmbedding` of rank 3 needs `num_heads`")
    head = quotient("RotaryEmbedding", x.shape[2], a.num_heads) if flat else x.shape[3]
    dim = a.rotary_embedding_dim or head
    equal_dims(least(dim, head), dim, "`RotaryEmbedding`: the elements that turn, and those of a head")
    half = quotient("RotaryEmbedding", dim, 2)
    for cache in (cos, sin):
        equal_dims(cache.shape[-1], half, "`RotaryEmbedding`: half of the elements that turn, and angles of a position")
    places = [cos.shape[:-1], sin.shape[:-1]] if position_ids is None else [position_ids.shape]
    for n, m in (
        pair for given in places for pair in zip(reversed(given), (x.shape[1 if flat else 2], x.shape[0]), strict=False)
    ):
        if n != 1:
            equal_dims(n, m, "`RotaryEmbedding`: positions, and those of the data")
    if position_ids is not None:
        t.check(
            position_ids.shape,
            lambda *i: (cast(I64, position_ids[i]) >= 0) & (cast(I64, position_ids[i]) < wrap(cos.shape[0])),
            "`RotaryEmbedding` has a position outside of the cache",
        )

    def element(*i: Expr) -> Expr:
        n, length = i[0], i[1] if flat else i[2]
        d = i[2] % wrap(head) if flat else i[3]

        def angle(cache: Tensor, k: Expr) -> Expr:
            if position_ids is None:
                return cache.at((n, length, k))
            return cache[cast(I64, position_ids.at((n, length))), k]

        def at(k: Expr) -> Expr:
            return x[n, length, i[2] // wrap(head) * wrap(head) + k] if flat else x[n, i[1], length, k]

        if a.interleaved:
            pair, second = d // 2, equal(d % 2, 1)
            one, two = at(pair * 2), at(pair * 2 + 1)
        else:
            second = d >= wrap(half)
            pair = where(second, d - wrap(half), d)
            one, two = at(pair), at(pair + wrap(half))
        c, s = angle(cos, pair), angle(sin, pair)
        turned = where(second, s * one + c * two, c * one - s * two)
        return turned if dim == head else where(d < wrap(dim), turned, x[i])

    return t.map(x.shape, element, name="rotated")


@op("SwiGLU")
class SwiGLU:
    def composite(b, x, y, *, a):
        if x.type != y.type:
            raise Invalid(f"`SwiGLU` takes two operands of one type, not {x.type} and {y.type}")
        return b.Mul(b.Swish(x, alpha=a.alpha), y)


@op("CausalConvWithState")
class CausalConvWithState:
    """Depthwise convolution over the time axis that sees the past only; the last positions are the next state."""

    def composite(b, x, weight, bias=None, past=None, *, a):
        return causal_convolution(b, x, weight, bias, past, a.activation or "none", 1)


def causal_convolution(
    b: GraphBuilder, x: Value, weight: Value, bias: Value | None, past: Value | None, activation: str, dilation: int
) -> tuple[Value, Value]:
    """An activation of the convolution `[N, C, L]` of each channel with the positions before it, and the next state.

    Raises:
        Invalid: channels or taps are symbolic, or the activation is unknown.
    """
    n, channels, _ = x.tensor.dims
    taps = weight.tensor.dims[2]
    if not isinstance(channels, int) or not isinstance(taps, int):
        raise Invalid("`CausalConvWithState` needs a constant number of channels and taps")
    kept = (taps - 1) * dilation
    if past is None:
        past = zeros(b, TensorType(x.tensor.dtype, (n, channels, kept)))
    padded = b.Concat(past, x, axis=2)
    y = b.Conv(padded, weight, bias, group=channels, dilations=(dilation,))
    if activation in ("silu", "swish"):
        y = b.Swish(y)
    elif activation != "none":
        raise Invalid(f"`activation` of `CausalConvWithState` is {activation!r}", code="OCC0107")
    length = padded.tensor.dims[2]
    start = b.dims(values=(length - kept,), shape=(1,))
    end = b.dims(values=(length,), shape=(1,))
    return y, b.Slice(padded, start, end, b.constant(np.array([2])))


def zeros(b: GraphBuilder, type_: TensorType) -> Value:
    """Zeros of a type."""
    shape = b.dims(values=type_.dims, shape=(type_.rank,))
    return b.ConstantOfShape(shape, value=np.zeros(1, type_.dtype.numpy))


ALL = (
    FlexAttention,
    FlexScores,
    FlexOutput,
    AttentionMask,
    AttentionSoftmax,
    Attention,
    RotaryEmbedding,
    SwiGLU,
    CausalConvWithState,
)
