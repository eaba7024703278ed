"""State-space layers and short convolutions of com.microsoft, as in Qwen3.5, LFM2 and Mamba.

Sources: the schemas of onnxruntime 1.31 (docs/ContribOperators.md) and its CPU provider.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops import linear_attention
from occ.compiler.ir.ops.attention import quotient, reshape
from occ.compiler.ir.ops.causal_conv import causal_convolution
from occ.compiler.ir.ops.contrib.domain import DOMAIN


def _check_window(name: str, a: SimpleNamespace) -> None:
    if a.state_window:
        raise Invalid(
            f"`{name}` with state_window={a.state_window} keeps several states",
            code="OCC0301",
            help="export the model with state_window=0, for decoding without drafts",
        )


@op(
    f"{DOMAIN}.CausalConvWithState",
    signature=FormalSignature.of(
        "input weight bias? past_state?", "output present_state", activation="none", ndim=1, dilation=1,
        channels_last=0,
        state_window=0,
    ),
)  # fmt: skip
class CausalConvWithState:
    """Depthwise convolution along time over past positions only; the last positions are the next state."""

    def composite(b, x, weight, bias=None, past=None, *, a):
        _check_window("CausalConvWithState", a)
        if a.ndim != 1 or a.dilation < 1:
            raise Invalid(f"`CausalConvWithState` with ndim={a.ndim} and dilation={a.dilation}", code="OCC0301")
        if not a.channels_last:
            return causal_convolution(b, x, weight, bias, past, a.activation, a.dilation)
        shape = x.tensor.dims
        turned = [None if v is None else _channels_first(b, v) for v in (x, past)]
        y, state = causal_convolution(b, turned[0], weight, bias, turned[1], a.activation, a.dilation)
        return tuple(
            reshape(b, b.Transpose(v, perm=(0, 2, 1)), (shape[0], v.tensor.dims[2], *shape[2:])) for v in (y, state)
        )


def _channels_first(b: GraphBuilder, x: Value) -> Value:
    """`[N, L, ...]` as `[N, C, L]`."""
    n, length, *channels = x.tensor.dims
    return b.Transpose(reshape(b, x, (n, length, product(channels))), perm=(0, 2, 1))


@op(
    f"{DOMAIN}.LinearAttention",
    signature=FormalSignature.of(
        "query key value past_state? decay? beta?", "output present_state", q_num_heads=None, kv_num_heads=None,
        update_rule="gated_delta", scale=0.0, chunk_size=64, state_window=0,
    ),
)  # fmt: skip
class LinearAttention:
    """LinearAttention of ai.onnx, possibly with fewer query heads than the state has."""

    def infer(*operands, a):
        _check_window("LinearAttention", a)
        return linear_attention.infer(*operands, a=a)

    def composite(b, q, k, v, past=None, decay=None, beta=None, *, a):
        return linear_attention.composite(b, q, k, v, past, decay, beta, a=a)


@op(
    f"{DOMAIN}.LinearAttentionGate",
    signature=FormalSignature.of("a dt_bias decay_scale b?", "decay beta?"),
)
class LinearAttentionGate:
    """`decay_scale * Softplus(a + dt_bias)` in f32, and the sigmoid of `b`."""

    def composite(b, x, bias, factor, rate=None, *, a):
        kind = x.tensor.dtype
        decay = b.Cast(b.Mul(factor, b.Softplus(b.Add(b.Cast(x, to=F32), bias))), to=kind)
        if a.n_results == 1:
            return decay
        if rate is None:
            raise Invalid("`LinearAttentionGate` has a result beta without the operand `b`")
        return decay, b.Sigmoid(rate)


@op(
    f"{DOMAIN}.GatedRMSNorm",
    signature=FormalSignature.of("X scale gate", "Y", activation="silu", epsilon=1e-5),
)
class GatedRMSNorm:
    """RMSNormalization of groups of `scale` elements along the last axis, times an activation of the gate, in f32."""

    def composite(b, x, scale, gate, *, a):
        *lead, width = x.tensor.dims
        size = scale.tensor.dims[0]
        groups = (*lead, quotient("GatedRMSNorm", width, size), size)
        normal = b.RMSNormalization(
            reshape(b, b.Cast(x, to=F32), groups), b.Cast(scale, to=F32), axis=-1, epsilon=a.epsilon
        )
        wide = b.Cast(gate, to=F32)
        if a.activation not in ("silu", "swish", "sigmoid"):
            raise Invalid(f"`activation` of `GatedRMSNorm` is {a.activation!r}", code="OCC0107")
        opened = b.Sigmoid(wide) if a.activation == "sigmoid" else b.Swish(wide, alpha=1.0)
        return b.Cast(b.Mul(reshape(b, normal, (*lead, width)), opened), to=x.tensor.dtype)


ALL = (CausalConvWithState, LinearAttention, LinearAttentionGate, GatedRMSNorm)
