"""Operators of com.microsoft that onnxruntime's optimiser writes into files: fused products, activations and norms."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import I32
from occ.compiler.ir.operator.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.ops.attention import scaled
from occ.compiler.ir.shape import equal_shapes
from occ.compiler.ir.value import Value

DOMAIN = "com.microsoft"


def activated(b: GraphBuilder, x: Value, name: str | None, values: tuple[float, ...]) -> Value:
    """`x` through the activation that a fused operator names.

    Raises:
        Invalid: it is unknown.
    """
    alpha = values[0] if values else None
    match name:
        case None | "":
            return x
        case (
            "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" | "HardSwish"
        ):  # onnxruntime looks at no parameters of these
            return b.op(name, x)
        case "LeakyRelu" | "Elu" | "ThresholdedRelu":
            return b.op(name, x, alpha=alpha)
        case "Selu":
            return b.Selu(x, alpha=alpha, gamma=values[1] if len(values) > 1 else None)
        case "ScaledTanh" | "ParametricSoftplus" if len(values) > 1:
            return b.op(name, x, alpha=alpha, beta=values[1])
        case "HardSigmoid":
            return b.HardSigmoid(x, alpha=alpha, beta=values[1] if len(values) > 1 else None)
        case "Clip" if len(values) > 1:
            return b.Clip(x, *(b.constant(np.asarray(v, x.tensor.dtype.numpy)) for v in values[:2]))
        case _:
            raise Invalid(f"the activation {name!r} is unknown", code="OCC0107")


@op(
    f"{DOMAIN}.FusedMatMul",
    signature=FormalSignature.of("A B", alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0),
)
class FusedMatMul:
    """`alpha * A' @ B'`, where each operand may be transposed.

    With `transBatchA` the first axis is moved before the last one; the batch axes then begin after it.
    """

    def composite(b, x, y, *, a):
        def turned(v: Value, swap: int, batch: int) -> Value:
            rank = v.tensor.rank
            perm = list(range(rank))
            if batch and rank > 2:
                perm = [*perm[1:-1], 0, perm[-1]]
            if swap and rank > 1:
                perm[-1], perm[-2] = perm[-2], perm[-1]
            return v if perm == sorted(perm) else b.Transpose(v, perm=tuple(perm))

        made = b.MatMul(turned(x, a.transA, a.transBatchA), turned(y, a.transB, a.transBatchB))
        return scaled(b, made, a.alpha)


@op(f"{DOMAIN}.ExpandDims", signature=FormalSignature.of("X axis"))
class ExpandDims:
    """Unsqueeze of one axis, which is a scalar."""

    def composite(b, x, axis, *, a):
        known = static_elements(axis)
        if known is None or len(known) != 1 or not isinstance(known[0], int):
            raise Invalid("an `axis` that is no known number", code="OCC0107")
        return b.Unsqueeze(x, b.constant(np.array(known, np.int64)))


@op(f"{DOMAIN}.CDist", signature=FormalSignature.of("A B", "C", metric="sqeuclidean"))
class CDist:
    """Distances of the rows of `A` `[m, k]` and of `B` `[n, k]`: `[m, n]`."""

    def composite(b, x, y, *, a):
        if a.metric not in ("sqeuclidean", "euclidean"):
            raise Invalid(f"`metric` is {a.metric!r}", code="OCC0107", help="`sqeuclidean` and `euclidean` are known")
        at = [b.constant(np.array([k], np.int64)) for k in (1, 0, 2)]
        apart = b.Sub(b.Unsqueeze(x, at[0]), b.Unsqueeze(y, at[1]))
        squares = b.ReduceSum(b.Mul(apart, apart), at[2], keepdims=0)
        return b.Sqrt(squares) if a.metric == "euclidean" else squares


WINDOW = {"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": None, "kernel_shape": None, "pads": None, "strides": None}


@op(f"{DOMAIN}.NhwcMaxPool", signature=FormalSignature.of("x", "y", **WINDOW))
class NhwcMaxPool:
    """MaxPool of images with channels last."""

    def composite(b, x, *, a):
        last = (0, *range(2, x.tensor.rank), 1)
        first = (0, x.tensor.rank - 1, *range(1, x.tensor.rank - 1))
        y = b.MaxPool(b.Transpose(x, perm=first), **{k: getattr(a, k) for k in WINDOW})
        return b.Transpose(y, perm=last)


CONV = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}


@op(f"{DOMAIN}.FusedConv", signature=FormalSignature.of("X W B? Z?", activation=None, activation_params=None, **CONV))
class FusedConv:
    """An activation of Conv, to which `Z` is added."""

    def composite(b, x, w, bias=None, z=None, *, a):
        y = b.Conv(x, w, bias, **{k: getattr(a, k) for k in CONV})
        if z is not None:
            equal_shapes(z.tensor.dims, y.tensor.dims, "`Z` of `FusedConv`")
            y = b.Add(y, z)
        return activated(b, y, a.activation, tuple(a.activation_params or ()))


@op(
    f"{DOMAIN}.FusedGemm",
    signature=FormalSignature.of(
        "A B C?", alpha=1.0, beta=1.0, transA=0, transB=0, activation=None, activation_alpha=None, activation_beta=None,
        activation_gamma=None,
    ),
)  # fmt: skip
class FusedGemm:
    """An activation of Gemm."""

    def composite(b, x, y, c=None, *, a):
        made = b.Gemm(x, y, c, alpha=a.alpha, beta=a.beta, transA=a.transA, transB=a.transB)
        values = tuple(v for v in (a.activation_alpha, a.activation_beta, a.activation_gamma) if v is not None)
        return activated(b, made, a.activation, values)


def _gelu(name: str, operands: str, approximate: str) -> OpSpec:
    def composite(b: GraphBuilder, x: Value, bias: Value | None = None, *, a: SimpleNamespace) -> Value:
        return b.Gelu(x if bias is None else b.Add(x, bias), approximate=approximate)

    return OpSpec(f"{DOMAIN}.{name}", {"composite": composite, "signature": FormalSignature.of(operands)})


@op(f"{DOMAIN}.QuickGelu", signature=FormalSignature.of("X", alpha=1.702))
class QuickGelu:
    def composite(b, x, *, a):
        return b.Swish(x, alpha=a.alpha)


@op(f"{DOMAIN}.GatedAdd", signature=FormalSignature.of("X Y gate", "output"))
class GatedAdd:
    """`X + Y * gate`, the gate one number of each row."""

    def composite(b, x, y, gate, *, a):
        return b.Add(x, b.Mul(y, gate))


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
    """RMSNormalization under the name that onnxruntime gives it in ai.onnx."""

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
    """LayerNormalization of a sum, and the sum."""

    def composite(b, x, skip, gamma, beta=None, bias=None, *, a):
        total = _skipped(b, x, skip, bias)
        normal = b.LayerNormalization(total, gamma, beta, axis=-1, epsilon=a.epsilon, n_results=3)
        return (*normal, total)[: a.n_results]


@op(
    f"{DOMAIN}.SkipSimplifiedLayerNormalization",
    signature=FormalSignature.of("input skip gamma bias?", _SKIP_RESULTS, epsilon=1e-12),
)
class SkipSimplifiedLayerNormalization:
    """RMSNormalization of a sum, and the sum."""

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
        "output mask_index? embedding_sum?", epsilon=1e-12, mask_index_type=0,
    ),
)  # fmt: skip
class EmbedLayerNormalization:
    """LayerNormalization of the sum of word, position and segment embeddings; the number of valid words of each row."""

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
            valid = b.Cast(b.ReduceSum(mask, b.constant(np.array([1], np.int64)), keepdims=0), to=I32)
        return (y, valid, total)[: a.n_results]


ALL = (
    FusedMatMul, ExpandDims, CDist, NhwcMaxPool, FusedConv, FusedGemm, QuickGelu, GatedAdd, _gelu("Gelu", "X", "none"),
    _gelu("BiasGelu", "A B", "none"),
    _gelu("FastGelu", "X bias?", "tanh"), SimplifiedLayerNormalization, SkipLayerNormalization,
    SkipSimplifiedLayerNormalization, EmbedLayerNormalization,
)  # fmt: skip
