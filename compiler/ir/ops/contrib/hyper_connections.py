"""Hyper-connections of com.microsoft: several residual streams of one network, and n-gram hash gates.

Sources: the schemas of onnxruntime 1.31 and its CPU provider: all sums and products in f32, rounded once at the end
unless stated otherwise.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import math
from functools import reduce
from operator import or_

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import BOOL, F32
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.scalars import scalar
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.attention import quotient, reshape
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_dims, equal_shapes
from occ.compiler.ir.te.expr import Expr, equal, literal, not_equal, where, wrap


def _number(b: GraphBuilder, value: float) -> Value:
    return b.constant(np.float32(value))


def _streams(b: GraphBuilder, name: str, x: Value, branches: int) -> Value:
    """Streams `[..., C, H]` in f32; given a number of branches, they come as `[..., C * H]`.

    Raises:
        Invalid: the shape is wrong.
    """
    dims = x.tensor.dims
    if len(dims) < (1 if branches else 2) or branches < 0:
        raise Invalid(f"`{name}` of {x.tensor} with num_branches={branches}", code="OCC0107")
    wide = b.Cast(x, to=F32)
    return reshape(b, wide, (*dims[:-1], branches, quotient(name, dims[-1], branches))) if branches else wide


def _gates(b: GraphBuilder, name: str, gate: Value, streams: Value) -> Value:
    """Gates in f32 with both stream axes; the feature axis may be 1.

    Raises:
        Invalid: the leading axes do not match.
    """
    dims, wanted = gate.tensor.dims, streams.tensor.dims
    rank = len(wanted)
    if len(dims) not in (rank - 1, rank):
        raise Invalid(f"`{name}`: gates of {gate.tensor} for streams of {streams.tensor}")
    equal_shapes(dims[: rank - 2], wanted[: rank - 2], f"`{name}`: gates and streams")
    if len(dims) == rank - 1:  # [..., C], or [..., C * H]
        dims = (*dims, 1) if dims[-1] == wanted[-2] else wanted
    return reshape(b, b.Cast(gate, to=F32), dims)


def _normal(b: GraphBuilder, x: Value, scale: Value | None, epsilon: float) -> Value:
    """f32 divided by the root mean square along the last axis, times a scale."""
    mean = b.ReduceMean(b.Mul(x, x), b.constant(np.array([-1], np.int64)))
    y = b.Mul(x, b.Reciprocal(b.Sqrt(b.Add(mean, _number(b, epsilon)))))
    return y if scale is None else b.Mul(y, b.Cast(scale, to=F32))


@op(f"{DOMAIN}.ScaledSiLU", signature=FormalSignature.of("X scale?", alpha=1.0))
class ScaledSiLU:
    """`z * sigmoid(z)` with `z = scale * X`; all three are rounded to the type of `X`."""

    def composite(b, x, scale=None, *, a):
        dtype = x.tensor.dtype
        factor = _number(b, a.alpha) if scale is None else reshape(b, b.Cast(scale, to=F32), ())
        z = b.Cast(b.Mul(b.Cast(x, to=F32), factor), to=dtype)
        wide = b.Cast(z, to=F32)
        gate = b.Cast(b.Cast(b.Sigmoid(wide), to=dtype), to=F32)
        return b.Cast(b.Mul(wide, gate), to=dtype)


@op(f"{DOMAIN}.BranchwiseRMSNorm", signature=FormalSignature.of("X scale?", epsilon=1e-5, num_branches=0))
class BranchwiseRMSNorm:
    """RMSNormalization of each stream separately; the scale is `[H]`, `[C, H]` or `[C * H]`."""

    def composite(b, x, scale=None, *, a):
        streams = _streams(b, "BranchwiseRMSNorm", x, a.num_branches)
        if scale is not None and scale.tensor.dims != streams.tensor.dims[-1:]:
            scale = reshape(b, scale, streams.tensor.dims[-2:])
        y = _normal(b, streams, scale, a.epsilon)
        return reshape(b, b.Cast(y, to=x.tensor.dtype), x.tensor.dims)


@op(
    f"{DOMAIN}.HyperConnectionPreMix",
    signature=FormalSignature.of("streams pre_mix", "output", num_branches=0, reduction_scale=1.0),
)
class HyperConnectionPreMix:
    """The sum of all streams, each times its gate."""

    def composite(b, x, gate, *, a):
        streams = _streams(b, "HyperConnectionPreMix", x, a.num_branches)
        gated = b.Mul(streams, _gates(b, "HyperConnectionPreMix", gate, streams))
        total = b.ReduceSum(gated, b.constant(np.array([-2], np.int64)), keepdims=0)
        return b.Cast(b.Mul(total, _number(b, a.reduction_scale)), to=x.tensor.dtype)


@op(
    f"{DOMAIN}.HyperConnectionPostMix",
    signature=FormalSignature.of("streams block_output post_mix stream_mix?", "output", num_branches=0),
)
class HyperConnectionPostMix:
    """`stream_mix' @ streams + post_mix * block_output`: a block's output is added to each stream."""

    def composite(b, x, given, gate, mix=None, *, a):
        streams = _streams(b, "HyperConnectionPostMix", x, a.num_branches)
        *lead, branches, size = streams.tensor.dims
        equal_shapes(given.tensor.dims, (*lead, size), "`HyperConnectionPostMix`: the block's output and the streams")
        rows = reshape(b, b.Cast(given, to=F32), (*lead, 1, size))
        added = b.Mul(rows, _gates(b, "HyperConnectionPostMix", gate, streams))
        if mix is not None:
            equal_shapes(mix.tensor.dims, (*lead, branches, branches), "`HyperConnectionPostMix`: the mix of streams")
            rank = len(lead) + 2
            turned = b.Transpose(b.Cast(mix, to=F32), perm=(*range(rank - 2), rank - 1, rank - 2))
            streams = b.MatMul(turned, streams)
        return reshape(b, b.Cast(b.Add(streams, added), to=x.tensor.dtype), x.tensor.dims)


@op(
    f"{DOMAIN}.EngramGate",
    signature=FormalSignature.of(
        "key query value key_norm_scale query_norm_scale conv_norm_scale?", "output gated_value_normed?", epsilon=1e-5
    ),
)
class EngramGate:
    """A value `[N, L, H]` times a gate per stream.

    The gate is the similarity of its key and its query `[N, L, C, H]`.
    """

    def composite(b, key, query, value, key_scale, query_scale, scale=None, *, a):
        if a.n_results > 1 and scale is None:
            raise Invalid("`EngramGate` has a normalised result, but no `conv_norm_scale`", code="OCC0107")
        n, length, streams, size = key.tensor.dims
        equal_shapes(query.tensor.dims, key.tensor.dims, "`EngramGate`: query and key")
        for s in (key_scale, query_scale, scale):
            if s is not None:
                equal_shapes(s.tensor.dims, (streams, size), "`EngramGate`: a scale")
        if not isinstance(size, int):
            raise Invalid(f"`EngramGate` takes keys of a constant size, not {key.tensor}")
        last, dtype = b.constant(np.array([-1], np.int64)), key.tensor.dtype
        keys, queries = (
            _normal(b, b.Cast(x, to=F32), s, a.epsilon) for x, s in ((key, key_scale), (query, query_scale))
        )
        dots = b.Div(b.ReduceSum(b.Mul(keys, queries), last), _number(b, math.sqrt(size)))
        root = b.Sqrt(b.Max(b.Abs(dots), _number(b, 1e-6)))
        gate = b.Sigmoid(b.Mul(b.Sign(dots), root))
        gated = b.Mul(gate, reshape(b, b.Cast(value, to=F32), (n, length, 1, size)))
        y = b.Cast(gated, to=dtype)
        if a.n_results == 1:
            return y
        return y, b.Cast(_normal(b, gated, scale, a.epsilon), to=dtype)


@op(
    f"{DOMAIN}.NGramHashMapping",
    signature=FormalSignature.of(
        "input_ids multipliers vocab_sizes past_ids? head_offsets? eos_token_id? segment_ids?", "hash_ids present_ids?",
        max_ngram_size=None, n_head_per_ngram=None, pad_id=None, reset_on_eos=0,
    ),
)  # fmt: skip
class NGramHashMapping:
    """Hashes of the last 2, 3, ... tokens at each position: `[N, L, (size - 1) * heads]`.

    Each hash is the product of `size` tokens with their multipliers, combined by xor, modulo a size per head. Tokens
    before the first one, before an end of text or in another segment count as end of text, or as padding if none is
    given.
    """

    def body(t, ids, multipliers, sizes, past=None, offsets=None, eos=None, segments=None, *, a):
        if not a.max_ngram_size or a.max_ngram_size < 2 or not a.n_head_per_ngram or a.pad_id is None or ids.rank != 2:
            raise Invalid(f"`NGramHashMapping` of {ids.type} with max_ngram_size={a.max_ngram_size}", code="OCC0107")
        before, heads, (n, length) = a.max_ngram_size - 1, a.n_head_per_ngram, ids.shape
        for what, v in (("vocab_sizes", sizes), ("head_offsets", offsets)):
            if v is not None:
                equal_shapes(v.shape, (before * heads,), f"`NGramHashMapping`: {what}")
        for what, v, shape in (("past_ids", past, (n, before)), ("segment_ids", segments, ids.shape)):
            if v is not None:
                equal_shapes(v.shape, shape, f"`NGramHashMapping`: {what}")
        given = multipliers.shape[0]
        if not isinstance(given, int) or given <= before:
            equal_dims(given, before + 1, "`NGramHashMapping`: multipliers")
        t.check(sizes.shape, lambda h: sizes[h] > 0, "`NGramHashMapping` has a head whose size is not positive")
        lost = literal(a.pad_id, ids.dtype) if eos is None else scalar("NGramHashMapping", "eos_token_id", eos)

        def token(i: Expr, at: Expr) -> Expr:
            old = lost if past is None else past[i, at + before]
            return where(at >= 0, ids[i, at], old)

        def is_apart(i: Expr, j: Expr, k: int) -> Expr:
            """Whether the token `k` before position `j` belongs to another text."""
            ends = [equal(token(i, j - m), lost) for m in range(1, k + 1)] if a.reset_on_eos and eos is not None else []
            if segments is not None:
                changes = [not_equal(segments[i, j - m], segments[i, j - m - 1]) for m in range(k)]
                ends += [where(j > m, changed, literal(False, BOOL)) for m, changed in enumerate(changes)]
            return reduce(or_, ends, literal(False, BOOL))

        def product(i: Expr, j: Expr, k: int) -> Expr:
            return where(is_apart(i, j, k), lost, token(i, j - k)) * multipliers[wrap(k)]

        parts = [t.map((n, length), lambda i, j, k=k: product(i, j, k), name="product") for k in range(before + 1)]

        def mixed(i: Expr, j: Expr, g: Expr) -> Expr:
            mix, found = parts[0][i, j], literal(0, ids.dtype)
            for k, part in enumerate(parts[1:]):
                mix = mix ^ part[i, j]
                found = where(equal(g, k), mix, found)
            return found

        mixes = t.map((n, length, before), mixed, name="mixes")

        def element(i: Expr, j: Expr, h: Expr) -> Expr:
            hashed = mixes[i, j, h // heads] % sizes[h]
            return hashed if offsets is None else hashed + offsets[h]

        made = t.map((n, length, before * heads), element, name="hash_ids")
        if a.n_results == 1:
            return made
        return made, t.map((n, before), lambda i, j: token(i, j + wrap(length - before)), name="present_ids")


ALL = (NGramHashMapping, ScaledSiLU, BranchwiseRMSNorm, HyperConnectionPreMix, HyperConnectionPostMix, EngramGate)
