"""ONNX's experimental operators of opset 8 and older, as Core ML and Caffe2 converters wrote them.

Source: onnxruntime, which still implements them.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.attention import scaled


def _shifted(b: GraphBuilder, x: Value, by: float) -> Value:
    return x if by == 0 else b.Add(x, b.constant(np.asarray(by, x.tensor.dtype.numpy)))


@op("Affine", signature=FormalSignature.of("X", alpha=1.0, beta=0.0))
class Affine:
    """`alpha * X + beta`."""

    def composite(b, x, *, a):
        return _shifted(b, scaled(b, x, a.alpha), a.beta)


@op("Scale", signature=FormalSignature.of("input", "output", scale=1.0))
class Scale:
    """`scale * input`."""

    def composite(b, x, *, a):
        return b.Identity(x) if a.scale == 1 else scaled(b, x, a.scale)


@op("ParametricSoftplus", signature=FormalSignature.of("X", alpha=1.0, beta=1.0))
class ParametricSoftplus:
    """`alpha * log(1 + exp(beta * X))`."""

    def composite(b, x, *, a):
        return scaled(b, b.Softplus(scaled(b, x, a.beta)), a.alpha)


@op("ScaledTanh", signature=FormalSignature.of("input", "output", alpha=1.0, beta=1.0))
class ScaledTanh:
    """`alpha * tanh(beta * input)`."""

    def composite(b, x, *, a):
        return scaled(b, b.Tanh(scaled(b, x, a.beta)), a.alpha)


@op("ImageScaler", signature=FormalSignature.of("input", "output", scale=1.0, bias=None))
class ImageScaler:
    """`scale * input + bias`, with one bias per channel of `[n, c, h, w]`."""

    def composite(b, x, *, a):
        dims = x.tensor.dims
        if len(dims) != 4 or a.bias is None or len(a.bias) != dims[1]:
            raise Invalid(f"`ImageScaler` of {x.tensor} with bias={a.bias}", code="OCC0107")
        bias = np.asarray(a.bias, np.float64).astype(x.tensor.dtype.numpy)
        return b.Add(scaled(b, x, a.scale), b.constant(bias.reshape(1, -1, 1, 1)))


@op("Crop", signature=FormalSignature.of("input", "output", border=None, scale=None))
class Crop:
    """Crops images `[n, c, h, w]` by a border (left, top, right, bottom).

    With `scale` (height, width), the result has that size.
    """

    def composite(b, x, *, a):
        dims, border = x.tensor.dims, a.border
        if len(dims) != 4 or border is None or len(border) != 4 or min(border) < 0 or len(a.scale or (0, 0)) != 2:
            raise Invalid(f"`Crop` of {x.tensor} with border={border} and scale={a.scale}", code="OCC0107")
        left, top, right, bottom = border
        size = a.scale or (dims[2] - top - bottom, dims[3] - left - right)
        ends = (top + size[0], left + size[1])
        for extent, end in zip(dims[2:], ends, strict=True):
            if isinstance(extent, int) and isinstance(end, int) and end > extent:
                raise Invalid(f"`Crop` to {end} of an axis of {extent}")
        listed = b.constant(np.array(ends)) if a.scale else b.dims(values=ends, shape=(2,))
        return b.Slice(x, b.constant(np.array([top, left])), listed, b.constant(np.array([2, 3])))


ALL = (Affine, Scale, ParametricSoftplus, ScaledTanh, ImageScaler, Crop)
