"""Col2Im and DeformConv as GE convolutions and grid samples."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.convolution import ConvAttrs, convolve, fitted, spread_out
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.shape import gathered
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def _col2im(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    """Blocks summed into an image: a transposed convolution with one-element filters, one per tap."""
    image, block = ([int(d) for d in e.known(op, k).reshape(-1)] for k in (1, 2))  # pyright: ignore[reportOptionalMemberAccess]
    n, taps = len(image), prod(block)
    if x.dtype not in ("FLOAT", "FLOAT16"):
        raise Unsupported(f"blocks of {x.dtype} are not summed")
    strides, dilations, begins = (
        list(v or [d] * n) for v, d in ((op.a.strides, 1), (op.a.dilations, 1), (op.a.pads, 0))
    )
    spread, pads, counts = [], [], []
    for k in range(n):
        reach, padding = dilations[k] * (block[k] - 1), begins[k] + (begins[n + k] if op.a.pads else 0)
        counts.append((image[k] + padding - reach - 1) // strides[k] + 1)
        spread.append((counts[k] - 1) * strides[k] + 1)
        pads.append((reach - begins[k], image[k] - spread[k] + begins[k]))
    channels = x.shape[1] // taps
    kernel = np.zeros((channels, taps, *block), np.float16 if x.dtype == "FLOAT16" else np.float32)
    for tap, at in enumerate(np.ndindex(*block)):
        kernel[(slice(None), tap, *(b - 1 - i for b, i in zip(block, at, strict=True)))] = 1
    parts = spread_out(e, e.reshape(x, (x.shape[0], channels * taps, *counts)), strides)
    return convolve(e, *fitted(e, parts, pads, e.constant(kernel), None), ConvAttrs([1] * n, dilations, channels))


def _deform_conv(e: Emitter, op: Op, x: Ref, w: Ref, offset: Ref, b: Ref | None = None, mask: Ref | None = None) -> Ref:
    """The displaced taps of all windows by the grid sampler, then a pointwise convolution."""
    a, kernel = op.a, w.shape[2:]
    if len(kernel) != 2 or x.dtype not in ("FLOAT", "FLOAT16"):
        raise Unsupported(f"GE samples two axes of FLOAT, not {len(kernel)} of {x.dtype}")
    strides, dilations, pads = list(a.strides or [1] * 2), list(a.dilations or [1] * 2), list(a.pads or [0] * 4)
    (n, c, *size), out, taps, groups = x.shape, op.result.tensor.static[2:], prod(kernel), a.offset_group
    # Positions in an axis of s elements are (2 * p + 1) / s - 1 for the sampler; the last axis comes first there.
    place = np.zeros((1, taps, 2, *out), np.float32)
    scale = np.zeros((1, 1, 2, 1, 1), np.float32)
    for k in (0, 1):
        tap = np.unravel_index(np.arange(taps), kernel)[k].reshape(taps, 1, 1) * dilations[k] - pads[k]
        along = (np.arange(out[k]) * strides[k]).reshape([-1, 1] if k == 0 else [1, -1])
        scale[0, 0, k] = 2 / size[k]
        place[0, :, k] = (2 * (tap + along) + 1) / size[k] - 1
    moved = e.op("Mul", e.reshape(e.cast(offset, "FLOAT"), (n * groups, taps, 2, *out)), e.constant(scale))
    grid = gathered(e, e.op("Add", moved, e.constant(place)), np.array([1, 0]), 2)
    grid = e.reshape(e.transpose(grid, [0, 1, 3, 4, 2]), (n * groups, taps * out[0], out[1], 2))
    stacked = e.reshape(x, (n * groups, c // groups, *size))
    shape = (n * groups, c // groups, taps * out[0], out[1])
    taken = e.op(
        "GridSampler2D", stacked, e.cast(grid, x.dtype), out=Desc(x.dtype, shape, "NCHW"),
        interpolation_mode="bilinear",
        padding_mode="zeros", align_corners=False,
    )  # fmt: skip
    taken.node.formats = {"x": "NCHW"}
    if mask is not None:
        taken = e.op("Mul", taken, e.reshape(mask, (n * groups, 1, taps * out[0], out[1])))
    windows = e.reshape(taken, (n, c * taps, *out))
    flat_kernel = e.reshape(w, (w.shape[0], w.shape[1] * taps, 1, 1))
    return convolve(e, windows, flat_kernel, b, [(0, 0)] * 2, ConvAttrs([1] * 2, [1] * 2, a.group))


ROWS: dict[str, Row] = {"Col2Im": _col2im, "DeformConv": _deform_conv}
