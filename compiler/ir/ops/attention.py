"""Attention, rotary embeddings, SwiGLU and causal convolutions, as composites of other operators."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, exact_quotient
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.reduce import over_axes
from occ.compiler.ir.shape import broadcasts_to, equal_dims
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.types import TensorType

NUMBERS = "set symbolic extents to numbers with `--dim NAME=NUMBER` or `--shape`"  # how to make a width known


def reshape(b: GraphBuilder, x: Value, shape: Sequence[Dim]) -> Value:
    """`x` with another shape, which may have symbolic extents."""
    if tuple(shape) == x.tensor.dims:
        return x
    if all(isinstance(d, int) for d in shape):
        return b.Reshape(x, b.constant(np.array(shape, np.int64)), allowzero=1)
    return b.Reshape(x, b.dims(values=tuple(shape), shape=(len(shape),)), allowzero=1)


def quotient(name: str, a: Dim, b: Dim) -> Dim:
    """`a / b`, which must be an integer.

    Raises:
        Invalid: it is not.
    """
    found = exact_quotient(a, b)
    if found is None:
        if not isinstance(a, int) or not isinstance(b, int):
            raise Invalid(f"`{name}`: {a} is not known to be a multiple of {b}", help=NUMBERS)
        raise Invalid(f"`{name}`: {a} is not a multiple of {b}")
    return found


def to_heads(b: GraphBuilder, name: str, x: Value, heads: int | None) -> Value:
    """`[N, L, H*D]` as `[N, H, L, D]`; rank 4 unchanged.

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

    Masked scores are set to -inf by a select, so that NaN or inf among them is harmless.
    """

    static = ("offset",)
    operands = ("scores", "mask", "nonpad", "offset")

    def body(t, scores, mask=None, nonpad=None, offset=None, *, a):
        if mask is not None:
            broadcasts_to(mask.shape[:-1], scores.shape[:-1], "the mask and the scores of attention")
        if nonpad is not None:
            equal_dims(nonpad.shape[0], scores.shape[0], "the lengths and the batch of attention")
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
    """`q @ k' * scale`; for types narrower than f32, both sides are scaled by its root, to stay in range."""
    kt = (0, 1, 3, 2)
    if q.tensor.dtype.bits >= 32:
        return grouped_matmul(b, scaled(b, q, scale), b.Transpose(k, perm=kt), name=name)
    root = sqrt(scale)
    return grouped_matmul(b, scaled(b, q, root), b.Transpose(scaled(b, k, root), perm=kt), name=name)


def head_scale(q: Value, scale: float | None, *, name: str) -> float:
    """The scale of the scores: as given, or the inverse root of the head size."""
    if scale is not None:
        return scale
    size = q.tensor.dims[-1]
    if not isinstance(size, int):
        raise Invalid(f"`{name}` needs a constant head size, not {size}")
    return 1 / sqrt(size)


@op("Attention")
class Attention:
    """ONNX Attention 25: grouped heads, cache, masks, window, soft cap, and optionally the scores before or after each step."""

    def composite(b, q, k, v, mask=None, past_key=None, past_value=None, nonpad=None, *, a):
        flat = q.tensor.rank == 3
        counts = (a.q_num_heads, a.kv_num_heads, a.kv_num_heads) if flat else (1, 1, 1)
        sizes = [exact_quotient(x.tensor.dims[-1], n or 1) for x, n in zip((q, k, v), counts, strict=True)]
        open_ = [not isinstance(x.tensor.dims[-1], int) for x in (q, k, v)]
        if (open_[0] and a.scale is None) or any(o and n is None for o, n in zip(open_, sizes, strict=True)):
            raise Unresolved("Attention", "head size")  # known at run time
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
    """Scores, softmax and output, with sub-graphs in between; the importer splits it into those."""


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


@op("SwiGLU")
class SwiGLU:
    def composite(b, x, y, *, a):
        if x.type != y.type:
            raise Invalid(f"`SwiGLU` takes two operands of one type, not {x.type} and {y.type}")
        return b.Mul(b.Swish(x, alpha=a.alpha), y)


def zeros(b: GraphBuilder, type_: TensorType) -> Value:
    """Zeros of a type."""
    shape = b.dims(values=type_.dims, shape=(type_.rank,))
    return b.ConstantOfShape(shape, value=np.zeros(1, type_.dtype.numpy))


ALL = (FlexAttention, FlexScores, FlexOutput, AttentionMask, AttentionSoftmax, Attention, SwiGLU)
