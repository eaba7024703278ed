"""Convolutions as GE nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.chip import DILATION, FILTER, HALF_MODES, PAD, STRIDE
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.linear import product
from occ.compiler.codegen_cann.mapping.shape import gathered
from occ.compiler.codegen_cann.mapping.window import flat, pad, padded, strided, window_pads
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_CONVOLUTIONS = {2: ("Conv2D", "Conv2DTranspose"), 3: ("Conv3D", "Conv3DTranspose")}  # by spatial axes
_STEPS = 256  # the product of a native transposed convolution's strides must be less
_MOST_FRAMES = 1 << 28  # maximum total elements of a convolution's frames


class ConvAttrs(NamedTuple):
    """Strides and dilations of a convolution along its spatial axes, and its groups."""

    strides: Sequence[int]
    dilations: Sequence[int]
    groups: int

    @classmethod
    def of(cls, op: Op, n: int) -> ConvAttrs:
        """Those of a Conv or ConvTranspose over `n` axes."""
        return cls(list(op.a.strides or [1] * n), list(op.a.dilations or [1] * n), op.a.group)

    def with_axis(self) -> ConvAttrs:
        """The same with another axis in front, of one element."""
        return ConvAttrs([1, *self.strides], [1, *self.dilations], self.groups)


def convolve(
    e: Emitter, x: Ref, w: Ref, b: Ref | None, pads: Sequence[tuple[int, int]], attrs: ConvAttrs,
    out: Desc | None = None,
) -> Ref:  # fmt: skip
    """A Conv2D or Conv3D of 1 to 3 spatial axes; results have the type of `x`, or that of `out`."""
    n, (strides, dilations, groups) = len(x.shape) - 2, attrs
    if n == 1:
        x, w = (e.op("Unsqueeze", v, out=Desc(v.dtype, (*v.shape[:2], 1, v.shape[2])), axes=[2]) for v in (x, w))
        made = convolve(e, x, w, b, [(0, 0), *pads], attrs.with_axis(), out)
        return e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    if n not in (2, 3):
        raise Unsupported(f"GE has no convolution over {n} axes")
    if n == 2 and max(map(max, pads)) > PAD:
        x, pads = padded(e, x, pads), [(0, 0)] * n
    if n == 2 and (max(w.shape[2:]) > FILTER or max(strides) > STRIDE or max(dilations) > DILATION):
        return _framed(e, padded(e, x, pads), w, b, attrs, x.dtype if out is None else out.dtype)
    layout = "NCHW" if n == 2 else "NCDHW"
    kernel = w.shape[2:]
    spatial = [(x.shape[2 + k] + sum(pads[k]) - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1 for k in range(n)]
    dtype = out.dtype if out is not None else x.dtype
    made = e.op(
        _CONVOLUTIONS[n][0], x, w, b, out=Desc(dtype, (x.shape[0], w.shape[0], *spatial), layout),
        strides=[1, 1, *strides],
        pads=flat(pads), dilations=[1, 1, *dilations], groups=groups, data_format=layout,
    )  # fmt: skip
    made.node.formats = {"x": layout, "filter": layout}
    return made


def _framed(e: Emitter, x: Ref, w: Ref, b: Ref | None, attrs: ConvAttrs, dtype: str) -> Ref:
    """A convolution over two axes as a product of its filters with the windows of the input, gathered into frames.

    It supports filters, strides and dilations beyond Conv2D's limits, as in audio front ends.
    """
    (n, c, *_), (m, _, *kernel), (strides, dilations, groups) = x.shape, w.shape, attrs
    size: list[int] = []
    for k in (0, 1):
        reach = dilations[k] * (kernel[k] - 1) + 1
        size.append((x.shape[2 + k] - reach) // strides[k] + 1)
    if (count := n * c * prod(size) * prod(kernel)) > _MOST_FRAMES:
        raise Unsupported(f"GE `Conv2D` takes no such filter or step, and its frames have {count} elements")
    for k in (0, 1):
        if kernel[k] > 1 or strides[k] > 1:
            at = np.arange(size[k])[:, None] * strides[k] + np.arange(kernel[k]) * dilations[k]
            x = gathered(e, x, at.reshape(-1).astype(np.int64), 2 + k)
    own, depth, area = m // groups, c // groups * prod(kernel), prod(size)
    parts = e.reshape(x, (n, groups, c // groups, size[0], kernel[0], size[1], kernel[1]))
    frames = e.transpose(parts, [0, 1, 3, 5, 2, 4, 6])
    if groups == 1:
        made = product(e, e.reshape(frames, (n * area, depth)), e.reshape(w, (m, depth)), dtype, tb=True)
    else:
        stacked = e.reshape(frames, (n, groups, area, depth))
        made = product(e, stacked, e.reshape(w, (1, groups, own, depth)), dtype, tb=True)
    turned = e.transpose(e.reshape(made, (n, groups, area, own)), [0, 1, 3, 2])
    result = e.reshape(turned, (n, m, *size))
    return result if b is None else e.op("Add", result, e.reshape(b, (m, 1, 1)))


def _conv(e: Emitter, op: Op, x: Ref, w: Ref, b: Ref | None = None) -> Ref:
    n, a = len(x.shape) - 2, op.a
    if a.pads and min(a.pads) < 0:
        raise Unsupported("its pads are negative")
    return convolve(e, x, w, b, window_pads(op, x.shape[2:], w.shape[2:]), ConvAttrs.of(op, n))


def conv_transpose_pads(op: Op, size: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """The begin pads that a transposed convolution crops from each axis."""
    a, n = op.a, len(size)
    if not a.output_shape and a.auto_pad in ("NOTSET", "VALID"):
        return list((a.pads or (0,) * 2 * n)[:n])
    strides, dilations = a.strides or (1,) * n, a.dilations or (1,) * n
    extra = a.output_padding or (0,) * n
    out = op.result.tensor.static[2:]
    begins: list[int] = []
    for k in range(n):
        total = strides[k] * (size[k] - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1 - out[k]
        total = max(total, 0)
        begins.append(total // 2 if a.auto_pad == "SAME_UPPER" else total - total // 2)
    return begins


def _conv_transpose(e: Emitter, op: Op, x: Ref, w: Ref, b: Ref | None = None) -> Ref:
    """ConvTranspose as GE's own operator, in half precision if the chip has no other kernel.

    Otherwise as zeros between the elements and a convolution with the flipped kernel.
    """
    a, n = op.a, len(x.shape) - 2
    strides, dilations = list(a.strides or [1] * n), list(a.dilations or [1] * n)
    begins = conv_transpose_pads(op, x.shape[2:], w.shape[2:])
    fits = all(d == 1 for d in dilations) and prod(strides) < _STEPS
    if fits and e.unit_for(_CONVOLUTIONS[max(n, 2)][1], x.dtype, 1, exact=True) == "AI Core":
        bias = b if b is None or x.dtype == "FLOAT16" else e.cast(b, "FLOAT")
        return _native_transpose(e, op, x, w, bias, begins)
    if fits and x.dtype == "FLOAT" and e.precision in HALF_MODES:
        bias = None if b is None else _halved(e, b)
        return e.cast(_native_transpose(e, op, _halved(e, x), _halved(e, w), bias, begins), x.dtype)
    out = op.result.tensor.static[2:]
    pads: list[tuple[int, int]] = []
    for k in range(n):
        reach = dilations[k] * (w.shape[2 + k] - 1)
        spread = (x.shape[2 + k] - 1) * strides[k] + 1
        begin = reach - begins[k]
        pads.append((begin, out[k] + reach - spread - begin))
    fitting = fitted(e, spread_out(e, x, strides), pads, turned(e, w, a.group), b)
    return convolve(e, *fitting, ConvAttrs([1] * n, dilations, a.group))


def fitted(
    e: Emitter, x: Ref, pads: list[tuple[int, int]], w: Ref, b: Ref | None
) -> tuple[Ref, Ref, Ref | None, list[tuple[int, int]]]:
    """Negative pads crop the input instead."""
    if all(p >= 0 for pair in pads for p in pair):
        return x, w, b, pads
    begin = [0, 0, *(max(-p, 0) for p, _ in pads)]
    end = [*x.shape[:2], *(x.shape[2 + k] - max(-q, 0) for k, (_, q) in enumerate(pads))]
    shape = tuple(t - s for s, t in zip(begin, end, strict=True))
    x = strided(e, x, begin, end, range(len(shape)), [1] * len(shape), Desc(x.dtype, shape))
    return x, w, b, [(max(p, 0), max(q, 0)) for p, q in pads]


def spread_out(e: Emitter, x: Ref, strides: Sequence[int]) -> Ref:
    """`stride - 1` zeros between the elements of each spatial axis."""
    if all(s == 1 for s in strides):
        return x
    n = len(strides)
    apart = e.reshape(x, (*x.shape[:2], *(d for s in x.shape[2:] for d in (s, 1))))
    ends = [0, 0, *(d for s in strides for d in (0, s - 1))]
    shape = tuple(d + q for d, q in zip(apart.shape, ends, strict=True))
    padded = pad(e, apart, [0] * len(ends), ends, shape)
    full = e.reshape(padded, (*x.shape[:2], *(x.shape[2 + k] * strides[k] for k in range(n))))
    size = (*x.shape[:2], *((x.shape[2 + k] - 1) * strides[k] + 1 for k in range(n)))
    return strided(e, full, [0] * (n + 2), size, range(n + 2), [1] * (n + 2), Desc(x.dtype, size))


def turned(e: Emitter, w: Ref, groups: int) -> Ref:
    """The kernel (C, M/g, k...) of a transposed convolution as the (M, C/g, k...) kernel of a convolution."""
    c, m, *k = w.shape
    if w.node.type == "Const":
        data = w.node.value.reshape(groups, c // groups, m, *k).swapaxes(1, 2).reshape(groups * m, c // groups, *k)
        return e.constant(np.ascontiguousarray(data[(slice(None), slice(None), *[slice(None, None, -1)] * len(k))]))
    parts = e.reshape(w, (groups, c // groups, m, *k))
    swapped = e.transpose(parts, [0, 2, 1, *range(3, 3 + len(k))])
    kernel = e.reshape(swapped, (groups * m, c // groups, *k))
    return e.op("ReverseV2", kernel, e.ints(range(2, 2 + len(k)), np.int32), out=kernel.desc)


def _halved(e: Emitter, x: Ref) -> Ref:
    """FLOAT as FLOAT16; a constant at build time, with large values saturated."""
    if x.node.type != "Const" or x.dtype != "FLOAT":
        return e.cast(x, "FLOAT16")
    most = np.finfo(np.float16).max
    return e.constant(np.clip(x.node.value, -most, most).astype(np.float16))


def _native_transpose(e: Emitter, op: Op, x: Ref, w: Ref, b: Ref | None, begins: Sequence[int]) -> Ref:
    n = len(x.shape) - 2
    attrs, out = ConvAttrs.of(op, n), op.result.tensor.static[2:]
    if n == 1:
        x, w = (e.op("Unsqueeze", v, out=Desc(v.dtype, (*v.shape[:2], 1, v.shape[2])), axes=[2]) for v in (x, w))
        made = _transpose_node(e, x, w, b, attrs.with_axis(), (1, *out), [0, *begins])
        return e.op("Squeeze", made, out=Desc(made.dtype, (*made.shape[:2], made.shape[3])), axis=[2])
    return _transpose_node(e, x, w, b, attrs, out, begins)


def _transpose_node(
    e: Emitter, x: Ref, w: Ref, b: Ref | None, attrs: ConvAttrs, out: Sequence[int], begins: Sequence[int]
) -> Ref:
    kernel, (strides, dilations, groups) = w.shape[2:], attrs
    n = len(kernel)
    pads: list[tuple[int, int]] = []
    extra: list[int] = []
    for k in range(n):
        full = (x.shape[2 + k] - 1) * strides[k] + dilations[k] * (kernel[k] - 1) + 1
        end = full - begins[k] - out[k]
        pads.append((begins[k], max(end, 0)))
        extra.append(max(-end, 0))
    layout = "NCHW" if n == 2 else "NCDHW"
    desc = Desc(x.dtype, (x.shape[0], w.shape[1] * groups, *out), layout)
    made = e.op(
        _CONVOLUTIONS[n][1], e.ints([0] * (n + 2), np.int32), x, w, b, out=desc, strides=[1, 1, *strides],
        pads=flat(pads),
        dilations=[1, 1, *dilations], groups=groups, data_format=layout, output_padding=[0, 0, *extra],
    )  # fmt: skip
    made.node.formats = {"x": layout, "filter": layout}
    return made


ROWS: dict[str, Row] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
