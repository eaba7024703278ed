"""Mixture of experts of com.microsoft: a router chooses a few networks for each token.

Sources: the schemas of onnxruntime 1.31 (docs/ContribOperators.md) and what its CPU provider computes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import F32, U8
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.attention import quotient, reshape
from occ.compiler.ir.ops.contrib.block_quantized import check_blocks
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_dims

Product = Callable[[Value, int], Value | None]  # rows `[R, 1 or k, K]` times numbered matrices: f32 `[R, k, N]`


def _gated(b: GraphBuilder, gate: Value, linear: Value, a: SimpleNamespace) -> Value:
    """`G * sigmoid(alpha * G) * (L + beta)`, with `L` limited on both sides and the gate from above."""
    if a.swiglu_limit is not None and np.isfinite(a.swiglu_limit):
        low, high = (b.constant(np.float32(v)) for v in (-a.swiglu_limit, a.swiglu_limit))
        gate, linear = b.Min(gate, high), b.Clip(linear, low, high)
    if a.activation_beta:
        linear = b.Add(linear, b.constant(np.float32(a.activation_beta)))
    return b.Mul(b.Swish(gate, alpha=a.activation_alpha), linear)


def _halves(b: GraphBuilder, x: Value, interleaved: bool) -> tuple[Value, ...]:
    """Gate and linear part of `[R, k, 2*I]`: interleaved, or one half after the other."""
    *lead, width = x.tensor.dims
    half = quotient("MoE", width, 2)
    if not interleaved:
        return b.Split(x, b.constant(np.array([half, half], np.int64)), axis=-1, n_results=2)
    pairs = reshape(b, x, (*lead, half, 2))
    return tuple(b.Gather(pairs, b.constant(np.int64(k)), axis=-1) for k in range(2))


_ACTIVATIONS = {
    "relu": lambda b, x: b.Relu(x),
    "gelu": lambda b, x: b.Gelu(x, approximate="tanh"),
    "silu": lambda b, x: b.Swish(x, alpha=1.0),
    "identity": lambda b, x: x,
}


def _hidden(b: GraphBuilder, x: Value, times: Product, a: SimpleNamespace) -> Value:
    """The activation between the first and the second product."""
    first, third = times(x, 1), times(x, 3)
    assert first is not None
    if a.activation_type == "swiglu":
        if third is None and a.swiglu_fusion not in (1, 2):
            raise Invalid(
                f"experts with swiglu_fusion={a.swiglu_fusion} and no third weight",
                code="OCC0107",
                help="pass fc3, or fuse it into fc1 with swiglu_fusion 1 (interleaved) or 2 (one after the other)",
            )
        parts = (first, third) if third is not None else _halves(b, first, a.swiglu_fusion == 1)
        return _gated(b, *parts, a)
    if a.activation_type not in _ACTIVATIONS:
        raise Invalid(
            f"experts with activation_type={a.activation_type!r}",
            code="OCC0107",
            help=f"{', '.join(_ACTIVATIONS)} and swiglu are defined",
        )
    y = _ACTIVATIONS[a.activation_type](b, first)
    return y if third is None else b.Mul(y, third)


def _mixture(
    b: GraphBuilder, x: Value, experts: Value, shares: Value, times: Callable[[Value], Product], a: SimpleNamespace
) -> Value:
    """The weighted sum of the selected experts' outputs per token, with weights f32 `[R, k]`."""
    shape, kind = x.tensor.dims, x.tensor.dtype
    if x.tensor.rank not in (2, 3):
        raise Invalid(f"a mixture of experts takes rows or `[N, L, D]`, not {x.type}")
    rows = reshape(b, x, (product(shape[:-1]), 1, shape[-1]))
    of = times(experts)
    made = of(_hidden(b, rows, of, a), 2)
    assert made is not None
    weighted = b.Mul(made, b.Unsqueeze(shares, b.constant(np.array([2]))))
    total = b.ReduceSum(weighted, b.constant(np.array([1])), keepdims=0)
    return reshape(b, b.Cast(total, to=kind) if kind != F32 else total, shape)


def _chosen(
    b: GraphBuilder, x: Value, router: Value, weights: Sequence[Value | None], a: SimpleNamespace
) -> tuple[Value, Value]:
    """The experts of each row of `x`: scores f32 `[R, k]`, indices i64 `[R, k]`.

    Their `weights` must exist.
    """
    if router.tensor.rank != 2:
        raise Invalid(f"router_probs of a mixture of experts is {router.type}, not `[rows, experts]`")
    equal_dims(
        router.tensor.dims[0],
        product(x.tensor.dims[:-1]),
        "a mixture of experts: the rows of the input and of router_probs",
    )
    for w in weights:
        if w is not None:
            equal_dims(
                w.tensor.dims[0],
                router.tensor.dims[1],
                "a mixture of experts: the weights and the columns of router_probs",
            )
    scores = b.Cast(router, to=F32) if router.tensor.dtype != F32 else router
    return b.TopK(scores, b.constant(np.array([a.k], np.int64)), axis=-1, n_results=2)


def _sparse_shares(b: GraphBuilder, router: Value, best: Value, experts: Value) -> Value:
    """SparseMixer weights f32 `[R, 2]`: each expert's softmax among scores close to its own.

    Close means within 2 % of the larger of the two numbers; the first expert is excluded for the second. This is what
    transformers computes for PhiMoE, and the CUDA provider of onnxruntime; its CPU provider ignores the attribute.
    """
    n = router.tensor.dims[1]
    if not isinstance(n, int):
        raise Invalid(f"use_sparse_mixer of router_probs {router.type}", help="use a fixed number of experts")
    scores = b.Unsqueeze(b.Cast(router, to=F32) if router.tensor.dtype != F32 else router, b.constant(np.array([1])))
    best, experts = (b.Unsqueeze(x, b.constant(np.array([2]))) for x in (best, experts))
    gap = b.Sub(best, scores)
    far = b.Greater(gap, b.Mul(b.Max(b.Abs(scores), best), b.constant(np.float32(2 * 0.01))))
    first = b.Gather(experts, b.constant(np.array([0])), axis=1)
    taken = b.And(b.Equal(first, b.constant(np.arange(n))), b.constant(np.array([[[False], [True]]])))
    near = b.Where(b.Or(far, taken), b.constant(np.float32(0)), b.Exp(b.Neg(gap)))
    return b.Reciprocal(b.ReduceSum(near, b.constant(np.array([2])), keepdims=0))


def _shares(b: GraphBuilder, scores: Value) -> Value:
    """Scores divided by their sum, unless that is 0."""
    total = b.ReduceSum(scores, b.constant(np.array([1])), keepdims=1)
    none = b.Equal(total, b.constant(np.float32(0)))
    return b.Where(none, b.constant(np.float32(0)), b.Div(scores, total))


_ATTRIBUTES = {
    "k": 1,
    "activation_type": "relu",
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
    "normalize_routing_weights": 0,
    "swiglu_fusion": 0,
    "swiglu_limit": None,
    "use_sparse_mixer": 0,
}


def _check_router(a: SimpleNamespace) -> None:
    if a.use_sparse_mixer and a.k != 2:
        raise Invalid(f"a mixture of experts with use_sparse_mixer and k={a.k}", code="OCC0107", help="k is 2 there")


def _rows_first(b: GraphBuilder, x: Value, w1: Value, w2: Value, w3: Value | None) -> tuple[Value, Value, Value | None]:
    """Weights in the shapes `[E, I, H]`, `[E, H, I]` and `[E, I, H]`; older files declare their last two axes in turn.

    The elements are in the same order there, which onnxruntime relies on too (`moe_helper.h`, `legacy_shape`).
    """
    width = x.tensor.dims[-1]
    if w1.tensor.rank != 3 or w2.tensor.rank != 3:
        return w1, w2, w3
    (experts, *first), (_, inner, last) = w1.tensor.dims, w2.tensor.dims
    square = inner == last == width and first[0] == width != first[1]  # a fused product tells
    if not square and not (last == width != inner):
        return w1, w2, w3
    turned = [None if w is None else reshape(b, w, (experts, *reversed(w.tensor.dims[1:]))) for w in (w1, w2, w3)]
    return turned[0], turned[1], turned[2]  # pyright: ignore[reportReturnType]


@op(
    f"{DOMAIN}.MoE",
    signature=FormalSignature.of(
        "input router_probs fc1_experts_weights fc1_experts_bias? fc2_experts_weights fc2_experts_bias? "
        "fc3_experts_weights? fc3_experts_bias?",
        "output",
        **_ATTRIBUTES,
    ),
)
class MoE:
    """A mixture of experts: the `k` best of `router_probs`, weighted by their softmax.

    The softmax is over all experts, and may be rescaled to a sum of 1.

    With `use_sparse_mixer` (PhiMoE), `k` is 2 and each of the two has its softmax among scores close to its own.
    """

    def composite(b, x, router, w1, b1, w2, b2=None, w3=None, b3=None, *, a):
        _check_router(a)
        w1, w2, w3 = _rows_first(b, x, w1, w2, w3)
        scores, experts = _chosen(b, x, router, (w1, w2, w3), a)
        if a.use_sparse_mixer:
            shares = _sparse_shares(b, router, scores, experts)
        elif a.normalize_routing_weights:
            shares = b.Softmax(scores, axis=-1)
        else:
            every = b.Cast(router, to=F32) if router.tensor.dtype != F32 else router
            shares = b.GatherElements(b.Softmax(every, axis=-1), experts, axis=1)
        held = {1: (w1, b1), 2: (w2, b2), 3: (w3, b3)}

        def times(chosen: Value) -> Product:
            return lambda v, k: None if held[k][0] is None else b.expert_product(v, chosen, *held[k])

        return _mixture(b, x, experts, shares, times, a)


@op(
    f"{DOMAIN}.QMoE",
    signature=FormalSignature.of(
        "input router_probs fc1_experts_weights fc1_scales? fc1_experts_bias? fc2_experts_weights fc2_scales?"
        " fc2_experts_bias? fc3_experts_weights? fc3_scales? fc3_experts_bias? fc1_zero_points? fc2_zero_points?"
        " fc3_zero_points? router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? fc2_act_scale?"
        " fc1_act_block_scale? fc2_act_block_scale?", "output", **_ATTRIBUTES, expert_weight_bits=4,
        fc1_expert_weight_bits=None, fc2_expert_weight_bits=None, fc3_expert_weight_bits=None, block_size=0,
        quant_type="int", accuracy_level=0, weights_prepacked=-1,
    ),
)  # fmt: skip
class QMoE:
    """A mixture of experts of quantised weights: the `k` best of `router_probs`, by the softmax among them.

    `router_weights`, if given, are the weights, and may be rescaled to a sum of 1; `use_sparse_mixer` as in `MoE`.
    """

    def composite(
        b, x, router, w1, s1, b1, w2, s2=None, b2=None, w3=None, s3=None, b3=None, z1=None, z2=None, z3=None,
        mixing=None, *others, a,
    ):  # fmt: skip
        _check_router(a)
        _check_kind(a, others)
        scores, experts = _chosen(b, x, router, (w1, w2, w3), a)
        if a.use_sparse_mixer:
            if mixing is not None:
                raise Invalid(
                    "`QMoE` with use_sparse_mixer and router_weights", code="OCC0107", help="leave one of them out"
                )
            shares = _sparse_shares(b, router, scores, experts)
        elif mixing is None:
            shares = b.Softmax(scores, axis=-1)
        else:
            shares = b.GatherElements(b.Cast(mixing, to=F32), experts, axis=1)
            shares = _shares(b, shares) if a.normalize_routing_weights else shares
        held = {1: (w1, s1, z1, b1), 2: (w2, s2, z2, b2), 3: (w3, s3, z3, b3)}

        def times(chosen: Value) -> Product:
            def of(v: Value, k: int) -> Value | None:
                if held[k][0] is None:
                    return None
                return b.expert_product_of_blocks(v, chosen, *held[k], **_form(k, held[k], a))

            return of

        return _mixture(b, x, experts, shares, times, a)


def _check_kind(a: SimpleNamespace, others: Sequence[Value | None]) -> None:
    if a.quant_type != "int" or any(x is not None for x in others):
        raise Invalid(
            f"`QMoE` with quant_type={a.quant_type!r} or scales of the whole weight",
            code="OCC0301",
            help="only integers of 2, 4 and 8 bits are supported: export the model for CPU",
        )
    if a.weights_prepacked == 1:
        raise Invalid(
            "`QMoE` with weights_prepacked=1 has weights in the layout of a CUDA kernel",
            code="OCC0107",
            help="export the model for CPU, without prepacked weights",
        )


def _form(k: int, held: Sequence[Value | None], a: SimpleNamespace) -> dict[str, int]:
    """Bits of a weight's codes, and elements of a block, 0 for one block per row."""
    codes, scales, *_ = held
    bits = getattr(a, f"fc{k}_expert_weight_bits") or a.expert_weight_bits
    if codes is None or scales is None or codes.tensor.dtype != U8 or codes.tensor.rank != 3:
        raise Invalid(f"`QMoE`: fc{k} needs weights `u8[experts, rows, bytes]` and scales")
    by_block = scales.tensor.rank == 3
    check_blocks("QMoE", bits, a.block_size if by_block else 16)
    return {"bits": bits, "block": a.block_size if by_block else 0}


ALL = (MoE, QMoE)
