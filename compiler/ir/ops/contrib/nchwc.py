"""Operators on blocked channels (com.microsoft.nchwc), written by onnxruntime's optimiser at level `all`.

There an image's channels are in blocks of a vector each, `[N, C / block, H, W, block]`, rounded up to whole blocks.
Here an image is `[N, C, H, W]`, with the same number of channels: memory layout is not for a file to decide. Weights
are constants in the order of those blocks, `[O / block, I / block, H, W, block of I, block of O]`, or `[O / block, I,
H, W, block of O]` for depthwise convolutions and images with fewer channels than a block
(onnxruntime/core/optimizer/nchwc_transformer.cc and mlas/lib/reorder.cpp). The importer determines the block size, and
states it as `block`.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import ceildiv
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.ops.contrib.activation import activated
from occ.compiler.ir.ops.contrib.convolution import CONV, WINDOW

DOMAIN = "com.microsoft.nchwc"


def _weights(b: GraphBuilder, stored: Value, block: int, *, both: bool) -> Value:
    """`[O, I, H, W]` from stored weights; `both`: the image's channels are in blocks too."""
    o, i, high, wide = stored.tensor.dims
    if o % block or (both and i % block):
        raise Invalid(f"weights for {i} channels and {o} results, which are not blocks of {block}", code="OCC0107")
    split, perm = (o // block, i, high, wide, block), (0, 4, 1, 2, 3)
    if both:
        split, perm = (o // block, i // block, high, wide, block, block), (0, 5, 1, 4, 2, 3)
    parts = b.Transpose(b.Reshape(stored, b.constant(np.array(split, np.int64)), allowzero=1), perm=perm)
    return b.Reshape(parts, b.constant(np.array((o, i, high, wide), np.int64)), allowzero=1)


@op(
    f"{DOMAIN}.Conv",
    signature=FormalSignature.of("X W B? Sum?", activation=None, activation_params=None, block=16, **CONV),
)
class Conv:
    """An activation of Conv with `Sum` added."""

    def composite(b, x, w, bias=None, total=None, *, a):
        if w.tensor.rank != 4 or not all(isinstance(d, int) for d in w.tensor.dims):
            raise Invalid("weights that are not four known extents", code="OCC0107")
        inner = w.tensor.dims[1]
        one_by_one = inner < a.block if a.group == 1 else inner == 1
        y = b.Conv(x, _weights(b, w, a.block, both=not one_by_one), bias, **{k: getattr(a, k) for k in CONV})
        y = y if total is None else b.Add(y, total)
        return activated(b, y, a.activation, tuple(a.activation_params or ()))


@op(f"{DOMAIN}.ReorderInput", signature=FormalSignature.of("X", channels_last=0, block=16))
class ReorderInput:
    """An image padded with zero channels to whole blocks."""

    def composite(b, x, *, a):
        planes = b.Transpose(x, perm=(0, 3, 1, 2)) if a.channels_last else x
        channels = planes.tensor.dims[1]
        more = ceildiv(channels, a.block) * a.block - channels
        return planes if more == 0 else b.Pad(planes, b.dims(values=(0, 0, 0, 0, 0, more, 0, 0), shape=(8,)))


@op(f"{DOMAIN}.ReorderOutput", signature=FormalSignature.of("X", channels_last=0, channels=0))
class ReorderOutput:
    """The first `channels` channels of an image."""

    def composite(b, x, *, a):
        count = x.tensor.dims[1]
        if a.channels < 1 or (isinstance(count, int) and a.channels > count):
            raise Invalid(f"{a.channels} channels of an image with {count}", code="OCC0107")
        first, end, axis = (b.constant(np.array([k], np.int64)) for k in (0, a.channels, 1))
        planes = b.Slice(x, first, end, axis)
        return b.Transpose(planes, perm=(0, 2, 3, 1)) if a.channels_last else planes


@op(
    f"{DOMAIN}.Upsample",
    signature=FormalSignature.of("X", scales=None, mode="nearest", coordinate_transformation_mode="asymmetric"),
)
class Upsample:
    """Resize by whole factors."""

    def composite(b, x, *, a):
        scales = b.constant(np.asarray(a.scales or (), np.float32))
        how = {"coordinate_transformation_mode": a.coordinate_transformation_mode, "mode": a.mode}
        return b.Resize(x, None, scales, nearest_mode="floor", **how)


def _pool(name: str, **attributes: object) -> OpSpec:
    def composite(b: GraphBuilder, x: Value, *, a: SimpleNamespace) -> Value:
        return b.op(name, x, **{k: getattr(a, k) for k in attributes})

    signature = FormalSignature.of("X", storage_order=0, **attributes)
    return OpSpec(f"{DOMAIN}.{name}", {"composite": composite, "signature": signature})


ALL = (
    Conv, ReorderInput, ReorderOutput, Upsample, _pool("MaxPool", **WINDOW), _pool("GlobalMaxPool"),
    _pool("AveragePool", count_include_pad=0, **WINDOW), _pool("GlobalAveragePool"),
)  # fmt: skip
