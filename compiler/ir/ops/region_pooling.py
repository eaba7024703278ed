"""Pooling of regions: RoiAlign, MaxRoiPool."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from types import SimpleNamespace

from occ.compiler.ir.dim import Dim, ceildiv, lower
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.sampling import Neighbours
from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, call, cast, equal, literal, maximum, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def _batch_check(t, name: str, of: Callable[[Expr], Expr], rois: Tensor, limit: Dim) -> None:
    t.check(
        rois.shape[:1],
        lambda k: (of(k) >= 0) & (of(k) < wrap(limit)),
        f"`{name}` has a batch index outside of the data",
    )


@op("RoiAlign")
class RoiAlign:
    """Regions of interest as bins of averaged (or largest) bilinear samples (ONNX RoiAlign)."""

    limits = "with sampling_ratio 0, regions must not be larger than the image"

    def body(t, x, rois, batch_indices, *, a):
        count, channels = rois.shape[0], x.shape[1]
        equal_dims(rois.shape[1], 4, "`RoiAlign`: a region must have four coordinates")
        equal_dims(batch_indices.shape[0], count, "`RoiAlign`: the regions and their batch indices")
        sizes, bins = x.shape[2:], (a.output_height, a.output_width)
        dtype = x.dtype.acc
        _batch_check(t, "RoiAlign", lambda k: cast(I64, batch_indices[k]), rois, x.shape[0])
        begin, step = _bins(t, rois, bins, a)

        def samples(r: Expr, k: int) -> Expr:
            if a.sampling_ratio > 0:
                return literal(a.sampling_ratio, I64)
            return cast(I64, call("ceil", step[r, wrap(k)]))

        most = [a.sampling_ratio or ceildiv(s, b) + 1 for s, b in zip(sizes, bins, strict=True)]
        if not a.sampling_ratio:
            t.check(
                (count,),
                lambda r: (samples(r, 0) <= wrap(most[0])) & (samples(r, 1) <= wrap(most[1])),
                "`RoiAlign` with sampling_ratio 0 has a region that is larger than the image",
            )

        around = [
            _roi_neighbours(t, x.shape[2 + k], (count, bins[k], most[k]), begin, step, lambda r, k=k: samples(r, k), k)
            for k in (0, 1)
        ]
        average = a.mode == "avg"
        # All channels are read at the same positions: channels last makes that one read.
        last = t.map((x.shape[0], *sizes, channels), lambda n, y, z, c: x[n, c, y, z], name="channels_last")

        def term(r, py, px, c, sy, sx, ty, tx):
            (y, wy), (z, wz) = (
                (n.index[at], n.weight[at]) for n, at in zip(around, ((r, py, sy, ty), (r, px, sx, tx)), strict=True)
            )
            value = f.in_acc(last[cast(I64, batch_indices[r]), y, z, c]) * wy * wz
            # A sample outside of the image is zero, one past the last does not count, and an image without pixels has
            # none.
            none = literal(0 if average else dtype.lowest, dtype)
            some = [wrap(n) > 0 for n in sizes if lower(n) < 1]
            return where(reduce(and_, some, (sy < samples(r, 0)) & (sx < samples(r, 1))), value, none)

        shape = (count, *bins, channels)
        acc = t.reduce("sum" if average else "max", shape, (*most, 2, 2), term, name="roi_align")

        def element(*i: Expr) -> Expr:
            n = maximum(samples(i[0], 0) * samples(i[0], 1), 1)
            if average:
                return cast(x.dtype, acc[i] / cast(dtype, n))
            return cast(x.dtype, where(equal(acc[i], dtype.lowest), literal(0, dtype), acc[i]))

        found = t.map(shape, element, name="found")
        return t.map((count, channels, *bins), lambda r, c, *p: found[(r, *p, c)], name="roi_align_out")


def _bins(t: Builder, rois: Tensor, bins: Sequence[int], a: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """The start and length of each region's bins, along both axes: [regions, 2]."""
    half = a.coordinate_transformation_mode == "half_pixel"

    def start(r: Expr, k: int) -> Expr:
        return f.in_acc(rois[r, wrap(1 - k)]) * a.spatial_scale - (0.5 if half else 0.0)

    def width(r: Expr, k: int) -> Expr:
        span = f.in_acc(rois[r, wrap(3 - k)]) * a.spatial_scale - (0.5 if half else 0.0) - start(r, k)
        return span if half else maximum(span, 1.0)

    shape = (rois.shape[0], 2)
    begin = t.map(shape, lambda r, k: where(equal(k, 0), start(r, 0), start(r, 1)), name="begin")
    step = t.map(shape, lambda r, k: where(equal(k, 0), width(r, 0) / bins[0], width(r, 1) / bins[1]), name="step")
    return begin, step


def _roi_neighbours(
    t: Builder, size: Dim, shape: Sequence[Dim], begin: Tensor, step: Tensor, samples: Callable[[Expr], Expr], k: int
) -> Neighbours:
    """The two pixels around each sample of each bin along one axis, with weight 0 if the sample is outside."""
    dtype = step.dtype

    def place(r: Expr, p: Expr, s: Expr) -> Expr:
        unit = step[r, wrap(k)]
        n = cast(dtype, maximum(samples(r), 1))
        return begin[r, wrap(k)] + cast(dtype, p) * unit + (cast(dtype, s) + 0.5) * unit / n

    at = t.map(shape, place, name="at")
    last = wrap(size - 1)

    def low(i: Sequence[Expr]) -> Expr:
        return minimum(cast(I64, maximum(at[tuple(i[:-1])], 0.0)), last)

    def weight(*i: Expr) -> Expr:
        p = at[i[:-1]]
        part = where(equal(low(i), last), literal(0, dtype), maximum(p, 0.0) - cast(dtype, low(i)))
        inside = (p >= -1.0) & (p <= cast(dtype, wrap(size)))
        return where(inside, where(equal(i[-1], 0), 1.0 - part, part), literal(0, dtype))

    wide = (*shape, 2)
    return Neighbours(
        t.map(wide, lambda *i: minimum(low(i) + i[-1], last), name="index"), t.map(wide, weight, name="weight")
    )


@op("MaxRoiPool")
class MaxRoiPool:
    """The maximum of each bin of regions of interest with rounded borders (ONNX MaxRoiPool)."""

    def body(t, x, rois, *, a):
        sizes, bins = x.shape[2:], tuple(a.pooled_shape)
        dtype, low = x.dtype.acc, literal(x.dtype.lowest, x.dtype)

        def corner(r: Expr, k: int) -> Expr:
            v = f.in_acc(rois[r, wrap(k)]) * a.spatial_scale
            return cast(I64, where(v < 0, call("ceil", v - 0.5), call("floor", v + 0.5)))

        def batch(r: Expr) -> Expr:
            return cast(I64, rois[r, wrap(0)])

        _batch_check(t, "MaxRoiPool", batch, rois, x.shape[0])

        def inside(r: Expr, p: Expr, at: Expr, k: int) -> Expr:
            first = corner(r, 2 - k)
            unit = cast(dtype, maximum(corner(r, 4 - k) - first + 1, 1)) / bins[k]
            begin = cast(I64, call("floor", cast(dtype, p) * unit)) + first
            end = cast(I64, call("ceil", cast(dtype, p + 1) * unit)) + first
            return (at >= begin) & (at < end)

        def term(r, c, py, px, y, z):
            return where(inside(r, py, y, 0) & inside(r, px, z, 1), x[batch(r), c, y, z], low)

        shape = (rois.shape[0], x.shape[1], *bins)
        best = t.reduce("max", shape, sizes, term, name="max_roi_pool")
        return t.map(shape, lambda *i: where(equal(best[i], low), literal(0, x.dtype), best[i]), name="pooled")


ALL = (RoiAlign, MaxRoiPool)
