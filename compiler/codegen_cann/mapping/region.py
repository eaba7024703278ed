"""RoiAlign, MaxUnpool, AffineGrid and random numbers as GE nodes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.indexing import scattered
from occ.compiler.codegen_cann.mapping.linear import product
from occ.compiler.codegen_cann.mapping.reduce import reduced
from occ.compiler.codegen_cann.mapping.window import pad
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def _roi_align(e: Emitter, op: Op, x: Ref, rois: Ref, batch: Ref) -> Ref:
    """Averages of bilinear samples, as products with row weights and column weights.

    A sample at `p` contributes `max(0, 1 - |p - h|)` to pixel `h`; a pixel's weight in a bin is the mean over its
    samples.
    """
    if op.a.mode != "avg":
        raise Unsupported("it takes the largest sample of each bin")
    if not op.a.sampling_ratio:
        raise Unsupported("the number of its samples depends on the regions")
    n, size = rois.shape[0], (op.a.output_height, op.a.output_width)
    rows, columns = (_weights(e, op, rois, k, x.shape[2 + k], size[k]) for k in (0, 1))
    axis = e.constant(np.array(0, np.int32))
    images = e.op("GatherV2", x, batch, axis, out=Desc(x.dtype, (n, *x.shape[1:])))
    along = product(e, e.reshape(rows, (n, 1, *rows.shape[1:])), images)
    return product(e, along, e.reshape(columns, (n, 1, *columns.shape[1:])), tb=True)


def _weights(e: Emitter, op: Op, rois: Ref, k: int, pixels: int, bins: int) -> Ref:
    """Weights `[rois, bins, pixels]` along rows (0) or columns (1)."""
    a, n, kind = op.a, rois.shape[0], rois.dtype
    half = a.coordinate_transformation_mode == "half_pixel"
    scaled = e.op("Muls", rois, value=float(a.spatial_scale))
    first, last = (_column(e, scaled, 1 - k), _column(e, scaled, 3 - k))
    if half:
        first, last = (e.op("Sub", v, e.scalar(0.5, kind)) for v in (first, last))
    span = e.op("Sub", last, first)
    span = span if half else e.op("Maximum", span, e.scalar(1, kind))
    step = e.op("RealDiv", span, e.scalar(bins, kind))
    dtype = np.float16 if kind == "FLOAT16" else np.float32
    samples = ((np.arange(a.sampling_ratio) + 0.5) / a.sampling_ratio).astype(dtype)
    offset = e.op("Mul", e.constant(samples.reshape(1, 1, -1, 1)), step)
    start = e.op("Mul", e.constant(np.arange(bins, dtype=dtype).reshape(1, bins, 1, 1)), step)
    at = e.op("Add", e.op("Add", first, start), offset)
    inside = e.op("LogicalAnd", _compared(e, "GreaterEqual", at, -1), _compared(e, "LessEqual", at, pixels))
    place = e.op("ClipByValue", at, e.scalar(0, kind), e.scalar(pixels - 1, kind))
    far = e.op("Abs", e.op("Sub", place, e.constant(np.arange(pixels, dtype=dtype))))
    near = e.op("Maximum", e.op("Sub", e.scalar(1, kind), far), e.scalar(0, kind))
    given = e.op("SelectV2", inside, near, e.scalar(0, kind), out=Desc(kind, (n, bins, a.sampling_ratio, pixels)))
    return reduced(e, "ReduceMean", given, [2], keep=False)


def _column(e: Emitter, rois: Ref, k: int) -> Ref:
    n = rois.shape[0]
    axis = e.constant(np.array(1, np.int32))
    return e.reshape(e.op("GatherV2", rois, e.ints([k]), axis, out=Desc(rois.dtype, (n, 1))), (n, 1, 1, 1))


def _compared(e: Emitter, kind: str, x: Ref, value: float) -> Ref:
    return e.op(kind, x, e.scalar(value, x), out=Desc("BOOL", x.shape))


def _max_roi_pool(e: Emitter, op: Op, x: Ref, rois: Ref) -> Ref:
    """The largest pixel of each bin: first over its rows, then over its columns.

    0 for an empty bin.
    """
    (n, c), (height, width), (down, across) = (rois.shape[0], x.shape[1]), x.shape[2:], op.a.pooled_shape
    axis = e.constant(np.array(0, np.int32))
    batch = e.cast(e.reshape(_column(e, rois, 0), (n,)), "INT32")
    images = e.op("GatherV2", x, batch, axis, out=Desc(x.dtype, (n, *x.shape[1:])))
    low = e.scalar(-65504.0 if x.dtype == "FLOAT16" else float(np.finfo(np.float32).min), x)
    rows, columns = (_covers(e, op, rois, k, s, b) for k, s, b in ((0, height, down), (1, width, across)))
    wide = e.op(
        "SelectV2",
        e.reshape(rows, (n, 1, down, height, 1)),
        e.reshape(images, (n, c, 1, height, width)),
        low,
        out=Desc(x.dtype, (n, c, down, height, width)),
    )
    tall = e.reshape(reduced(e, "ReduceMax", wide, [3], keep=False), (n, c, down, 1, width))
    given = e.op(
        "SelectV2",
        e.reshape(columns, (n, 1, 1, across, width)),
        tall,
        low,
        out=Desc(x.dtype, (n, c, down, across, width)),
    )
    most = reduced(e, "ReduceMax", given, [4], keep=False)
    empty = e.op("Equal", most, low, out=Desc("BOOL", most.shape))
    return e.op("SelectV2", empty, e.scalar(0, x), most, out=most.desc)


def _covers(e: Emitter, op: Op, rois: Ref, k: int, pixels: int, bins: int) -> Ref:
    """Whether a bin covers a pixel: BOOL `[rois, bins, pixels]`."""
    n, kind = rois.shape[0], np.float16 if rois.dtype == "FLOAT16" else np.float32

    def corner(column: int) -> Ref:
        v = e.op("Muls", e.reshape(_column(e, rois, column), (n, 1, 1)), value=float(op.a.spatial_scale))
        up, down = (e.op(f, e.op(g, v, e.scalar(0.5, v))) for f, g in (("Floor", "Add"), ("Ceil", "Sub")))
        return e.op("SelectV2", e.op("Less", v, e.scalar(0, v), out=Desc("BOOL", v.shape)), down, up, out=v.desc)

    first = corner(2 - k)
    extent = e.op("Add", e.op("Sub", corner(4 - k), first), e.scalar(1, first))
    unit = e.op("RealDiv", e.op("Maximum", extent, e.scalar(1, first)), e.scalar(bins, first))
    p, at = (
        e.constant(np.arange(s, dtype=kind).reshape(shape))
        for s, shape in ((bins, (1, bins, 1)), (pixels, (1, 1, pixels)))
    )
    begin = e.op("Add", e.op("Floor", e.op("Mul", p, unit)), first)
    end = e.op("Add", e.op("Ceil", e.op("Mul", e.op("Add", p, e.scalar(1, p)), unit)), first)
    out = Desc("BOOL", (n, bins, pixels))
    return e.op("LogicalAnd", e.op("GreaterEqual", at, begin, out=out), e.op("Less", at, end, out=out), out=out)


def _max_unpool(e: Emitter, op: Op, x: Ref, indices: Ref, _: Ref | None = None) -> Ref:
    """Elements at the flat positions that MaxPool recorded, zeros elsewhere."""
    a, n = op.a, len(x.shape) - 2
    strides, pads = a.strides or (1,) * n, a.pads or (0,) * 2 * n
    size = [(x.shape[2 + k] - 1) * strides[k] - pads[k] - pads[n + k] + a.kernel_shape[k] for k in range(n)]
    shape, count = (*x.shape[:2], *size), prod(x.shape)
    zeros = e.constant(np.zeros(prod(shape), np.float16 if x.dtype == "FLOAT16" else np.float32))
    if zeros.dtype != x.dtype:
        raise Unsupported(f"GE pools no {x.dtype}")
    where, what = e.reshape(indices, (count, 1)), e.reshape(x, (count,))
    whole = e.reshape(scattered(e, zeros, where, what), shape)
    out = e.type(op.result).shape
    if out == shape:
        return whole
    return pad(e, whole, [0] * len(out), [b - s for b, s in zip(out, shape, strict=True)], out)


def _affine_grid(e: Emitter, op: Op, theta: Ref, _: Ref | None = None) -> Ref:
    """Positions of a regular grid, each with a 1 appended, times the transposed matrices."""
    out = e.type(op.result).shape
    n, *size = out[:-1]
    axes = [_places(s, bool(op.a.align_corners)) for s in size]
    grid = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*grid[::-1], np.ones_like(grid[0])], -1).reshape(1, prod(size), len(size) + 1)
    kind = np.float16 if theta.dtype == "FLOAT16" else np.float32
    return e.reshape(product(e, e.constant(points.astype(kind)), theta, tb=True), (n, *size, len(size)))


def _places(size: int, corners: bool) -> np.ndarray:
    if corners:
        if size == 1:
            raise Unsupported("a position cannot be in both corners")
        return np.linspace(-1, 1, size)
    return (np.arange(size) * 2 + 1) / size - 1


def _seeds(a: Any) -> dict[str, int]:
    seed = 0 if a.seed is None else int(np.float32(a.seed).view(np.int32))
    return {"seed": seed, "seed2": int(a.seed is not None)}


def _bernoulli(e: Emitter, op: Op, x: Ref) -> Ref:
    if x.dtype not in ("FLOAT", "FLOAT16"):
        raise Unsupported(f"GE has no random numbers of {x.dtype}")
    drawn = e.op("RandomUniform", e.ints(x.shape), out=x.desc, dtype=x.dtype, **_seeds(op.a))
    return e.cast(e.op("Less", drawn, x, out=Desc("BOOL", x.shape)), e.type(op.result).dtype)


def _multinomial(e: Emitter, op: Op, x: Ref) -> Ref:
    out = e.type(op.result)
    number = e.constant(np.array(op.a.sample_size, np.int32))
    return e.op("Multinomial", x, number, out=out, dtype=out.dtype, **_seeds(op.a))


def _random(kind: str, shift: Callable[[Any], tuple[float, float]]) -> Row:
    def row(e: Emitter, op: Op, *_: Any) -> Ref:
        out = e.type(op.result)
        if out.dtype not in ("FLOAT", "FLOAT16"):
            raise Unsupported(f"GE has no random numbers of {out.dtype}")
        base, scale = shift(op.a)
        made = e.op(kind, e.ints(out.shape), out=out, dtype=out.dtype, **_seeds(op.a))
        return e.op("Add", e.op("Mul", made, e.scalar(scale, made)), e.scalar(base, made))

    return row


def _between(a: Any) -> tuple[float, float]:
    return a.low, a.high - a.low


def _around(a: Any) -> tuple[float, float]:
    return a.mean, a.scale


ROWS: dict[str, Row] = {
    "AffineGrid": _affine_grid, "Bernoulli": _bernoulli, "MaxRoiPool": _max_roi_pool, "MaxUnpool": _max_unpool,
    "Multinomial": _multinomial, "RoiAlign": _roi_align,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), _random("RandomStandardNormal", _around)),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), _random("RandomUniform", _between)),
}  # fmt: skip
