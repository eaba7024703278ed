"""Layer normalizations of com.microsoft, with residuals and embeddings."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import I32
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_shapes


def _inverse_rms(b: GraphBuilder, x: Value, axis: int, epsilon: float) -> Value:
    """`1 / sqrt(mean(x * x) + epsilon)` over the axes from `axis` on, kept, in f32."""
    wide = b.Cast(x, to=x.tensor.dtype.acc)
    axes = b.constant(np.arange(axis % x.tensor.rank, x.tensor.rank, dtype=np.int64))
    mean = b.ReduceMean(b.Mul(wide, wide), axes)
    return b.Reciprocal(b.Sqrt(b.Add(mean, b.constant(np.asarray(epsilon, wide.tensor.dtype.numpy)))))


@op(
    "SimplifiedLayerNormalization",
    signature=FormalSignature.of("X scale", "Y inv_std_var?", axis=-1, epsilon=1e-5, stash_type=1),
)
class SimplifiedLayerNormalization:
    """RMSNormalization under onnxruntime's name for it in ai.onnx."""

    def composite(b, x, scale, *, a):
        y = b.RMSNormalization(x, scale, axis=a.axis, epsilon=a.epsilon)
        return (y, _inverse_rms(b, x, a.axis, a.epsilon)) if a.n_results > 1 else y


_SKIP_RESULTS = "output mean? inv_std_var? input_skip_bias_sum?"


def _skipped(b: GraphBuilder, x: Value, skip: Value, bias: Value | None) -> Value:
    total = b.Add(x, skip)
    total = total if bias is None else b.Add(total, bias)
    equal_shapes(total.tensor.dims, x.tensor.dims, "the sum of an input and what skips to it")
    return total


@op(
    f"{DOMAIN}.SkipLayerNormalization",
    signature=FormalSignature.of("input skip gamma beta? bias?", _SKIP_RESULTS, epsilon=1e-12),
)
class SkipLayerNormalization:
    """LayerNormalization of a sum, and the sum itself."""

    def composite(b, x, skip, gamma, beta=None, bias=None, *, a):
        total = _skipped(b, x, skip, bias)
        normal = b.LayerNormalization(total, gamma, beta, axis=-1, epsilon=a.epsilon, n_results=3)
        return (*normal, total)[: a.n_results]


@op(
    f"{DOMAIN}.SkipSimplifiedLayerNormalization",
    signature=FormalSignature.of("input skip gamma bias?", _SKIP_RESULTS, epsilon=1e-12),
)
class SkipSimplifiedLayerNormalization:
    """RMSNormalization of a sum, and the sum itself."""

    def composite(b, x, skip, gamma, bias=None, *, a):
        total = _skipped(b, x, skip, bias)
        y = b.RMSNormalization(total, gamma, axis=-1, epsilon=a.epsilon)
        if a.n_results == 1:
            return y
        inverse = _inverse_rms(b, total, -1, a.epsilon)
        mean = b.ReduceMean(b.Cast(total, to=total.tensor.dtype.acc), b.constant(np.array([-1], np.int64)))
        return (y, mean, inverse, total)[: a.n_results]


@op(
    f"{DOMAIN}.EmbedLayerNormalization",
    signature=FormalSignature.of(
        "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
        "output mask_index? embedding_sum?",
        epsilon=1e-12,
        mask_index_type=0,
    ),
)
class EmbedLayerNormalization:
    """LayerNormalization of the sum of word, position and segment embeddings, and the number of valid words per row."""

    def composite(b, ids, segments, words, positions, segment_words, gamma, beta, mask=None, position_ids=None, *, a):
        n, length = ids.tensor.dims
        for name, v in (("segment_ids", segments), ("mask", mask)):
            if v is not None:
                equal_shapes(v.tensor.dims, (n, length), f"`{name}` of `EmbedLayerNormalization`")
        if position_ids is None:
            count = b.dims(values=(length,), shape=())
            position_ids = b.Range(b.constant(np.int64(0)), count, b.constant(np.int64(1)))
        total = b.Add(b.Gather(words, ids), b.Gather(positions, position_ids))
        if segments is not None and segment_words is not None:
            total = b.Add(total, b.Gather(segment_words, segments))
        y = b.LayerNormalization(total, gamma, beta, axis=-1, epsilon=a.epsilon)
        if a.n_results == 1:
            return y
        if mask is None:
            valid = b.ConstantOfShape(b.dims(values=(n,), shape=(1,)), value=np.zeros(1, np.int32))
        else:
            ones = b.Cast(b.Equal(mask, b.constant(np.ones((), mask.tensor.dtype.numpy))), to=I32)
            valid = b.ReduceSum(ones, b.constant(np.array([1], np.int64)), keepdims=0)
        return (y, valid, total)[: a.n_results]


ALL = (
    SimplifiedLayerNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
    EmbedLayerNormalization,
)
