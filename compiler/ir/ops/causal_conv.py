"""CausalConvWithState: a convolution along a sequence, with the inputs of earlier runs as state."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.attention import zeros
from occ.compiler.ir.types import TensorType


@op("CausalConvWithState")
class CausalConvWithState:
    """Depthwise convolution along time over past positions only; the last positions are the next state."""

    def composite(b, x, weight, bias=None, past=None, *, a):
        return causal_convolution(b, x, weight, bias, past, a.activation or "none", 1)


def causal_convolution(
    b: GraphBuilder, x: Value, weight: Value, bias: Value | None, past: Value | None, activation: str, dilation: int
) -> tuple[Value, Value]:
    """An activation of the causal convolution `[N, C, L]` per channel, and the next state.

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


ALL = (CausalConvWithState,)
