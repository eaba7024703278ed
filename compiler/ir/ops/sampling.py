"""Operators that read an image at fractional positions: GridSample, DeformConv, RoiAlign, and grids for them."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product as box

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import functions as f
from occ.compiler.ir.dim import Dim, ceildiv, floordiv
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.expr import Expr, call, cast, clamp, equal, literal, maximum, minimum, where, wrap
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.ops.spec import op
from occ.compiler.ir.ops.window import window_of
from occ.compiler.ir.shape import equal_dims, show_shape
from occ.compiler.ir.te import Tensor

Pixel = Callable[[Sequence[Expr]], Expr]
Weights = Callable[[Expr], list[Expr]]
CUBIC_A = -0.75  # of Keys' cubic convolution, as PyTorch has it


def linear_weights(d: Expr) -> list[Expr]:
    """Weights of the neighbours at 0 and 1 of a point at `d` between them."""
    return [1.0 - d, d]


def cubic_weights(d: Expr) -> list[Expr]:
    """Weights of the neighbours at -1, 0, 1 and 2 of a point at `d` between the middle ones."""

    def near(x: Expr) -> Expr:
        return ((x * (CUBIC_A + 2)) - (CUBIC_A + 3)) * x * x + 1.0

    def far(x: Expr) -> Expr:
        return ((x * CUBIC_A - 5 * CUBIC_A) * x + 8 * CUBIC_A) * x - 4 * CUBIC_A

    return [far(d + 1.0), near(d), near(1.0 - d), far(2.0 - d)]


def interpolated(pixel: Pixel, at: Sequence[Expr], first: int, weights: Weights) -> Expr:
    """The weighted sum of the pixels around a point; `first` is the position of the first neighbour."""
    low = [call("floor", p) for p in at]
    per_axis = [weights(p - q) for p, q in zip(at, low, strict=True)]
    corner = [cast(I64, q) + first for q in low]
    total: Expr | None = None
    for taps in box(*(range(len(w)) for w in per_axis)):
        weight = reduce(lambda x, y: x * y, (w[k] for w, k in zip(per_axis, taps, strict=True)))
        value = pixel([c + k for c, k in zip(corner, taps, strict=True)]) * weight
        total = value if total is None else total + value
    assert total is not None
    return total


def zero_outside(read: Pixel, extents: Sequence[Dim], dtype_zero: Expr) -> Pixel:
    """A reader that gives zero outside of the image."""

    def pixel(at: Sequence[Expr]) -> Expr:
        inside: Expr = literal(True, BOOL)
        for p, n in zip(at, extents, strict=True):
            inside = inside & (p >= 0) & (p < wrap(n))
        return where(inside, read(at), dtype_zero)

    return pixel


def reflected(x: Expr, low: float | Expr, high: Expr) -> Expr:
    """`x` mirrored at `low` and `high` until it lies between them."""
    low = literal(low, x.dtype) if not isinstance(low, Expr) else low
    span = high - low

    def folded(over: Expr, near: Expr, sign: int) -> Expr:
        turns = call("trunc", over / span)
        rest = over - turns * span
        even = equal(turns, call("floor", turns * 0.5) * 2.0)
        far = near + span if sign > 0 else near - span
        return where(even, near + rest if sign > 0 else near - rest, far - rest if sign > 0 else far + rest)

    inside = where(x < low, folded(low - x, low, 1), where(x > high, folded(x - high, high, -1), x))
    return where(equal(span, 0), low, inside)


@op("GridSample")
class GridSample:
    """The image at the positions of a grid, in any number of spatial axes (ONNX GridSample)."""

    def body(t, x, grid, *, a):
        n = x.rank - 2
        if grid.rank != x.rank or grid.shape[-1] != n:
            raise Invalid(f"`GridSample`: a grid of shape {show_shape(grid.shape)} for data of rank {x.rank}")
        if a.mode not in ("nearest", "linear", "cubic"):
            raise Invalid(f"`mode` of `GridSample` is {a.mode!r}", code="OCC0107")
        if a.padding_mode not in ("zeros", "border", "reflection"):
            raise Invalid(f"`padding_mode` of `GridSample` is {a.padding_mode!r}", code="OCC0107")
        equal_dims(x.shape[0], grid.shape[0], "`GridSample`: batch extents")
        sizes, dtype = x.shape[2:], grid.dtype.acc
        last = [cast(dtype, wrap(s - 1)) for s in sizes]
        low = 0.0 if a.align_corners else -0.5
        high = [e if a.align_corners else e + 0.5 for e in last]

        def place(v: Expr, k: int) -> Expr:
            size = cast(dtype, wrap(sizes[k]))
            p = (v + 1.0) * 0.5 * last[k] if a.align_corners else ((v + 1.0) * size - 1.0) * 0.5
            p = call("round_even", p) if a.mode == "nearest" else p
            if a.padding_mode == "border":
                return where((p < low) | (p > high[k]), clamp(p, 0.0, last[k]), p)
            return reflected(p, low, high[k]) if a.padding_mode == "reflection" else p

        def bounded(k: int, p: Expr) -> Expr:
            if a.padding_mode == "border":
                return clamp(p, 0, wrap(sizes[k] - 1))
            return cast(I64, reflected(cast(dtype, p), low, high[k]))

        def element(*i: Expr) -> Expr:
            def read(at: Sequence[Expr]) -> Expr:
                return cast(dtype, x[(i[0], i[1], *at)])

            def pixel(at: Sequence[Expr]) -> Expr:
                if a.padding_mode == "zeros":
                    return zero_outside(read, sizes, literal(0, dtype))(at)
                return read([bounded(k, p) for k, p in enumerate(at)])

            at = [place(cast(dtype, grid[(i[0], *i[2:], wrap(n - 1 - k))]), k) for k in range(n)]
            if a.mode == "nearest":
                return cast(x.dtype, pixel([cast(I64, p) for p in at]))
            linear = a.mode == "linear"
            value = interpolated(pixel, at, 0 if linear else -1, linear_weights if linear else cubic_weights)
            return cast(x.dtype, value)

        return t.map((*x.shape[:2], *grid.shape[1:-1]), element, name="grid_sample")


@op("AffineGrid", static=("size",))
class AffineGrid:
    """Positions of a regular grid under an affine map, x first (ONNX AffineGrid)."""

    def body(t, theta, size, *, a):
        shape = static_dims("AffineGrid", "size", size)
        n = len(shape) - 2
        if n not in (2, 3) or theta.rank != 3:
            raise Invalid(f"`AffineGrid` of size {show_shape(shape)} and theta of rank {theta.rank}")
        spatial, dtype = shape[2:], theta.dtype.acc

        def place(p: Expr, extent: Dim) -> Expr:
            whole = cast(dtype, wrap(extent))
            if a.align_corners:
                return cast(dtype, p) * (literal(2, dtype) / (whole - 1.0)) - 1.0
            return (cast(dtype, p) * 2.0 + 1.0) / whole - 1.0

        def element(*i: Expr) -> Expr:
            at = [place(p, e) for p, e in zip(i[1:-1], spatial, strict=True)][::-1]
            total = f.in_acc(theta[i[0], i[-1], wrap(n)])
            for k, p in enumerate(at):
                total = total + f.in_acc(theta[i[0], i[-1], wrap(k)]) * p
            return cast(theta.dtype, total)

        return t.map((shape[0], *spatial, n), element, name="affine_grid")


@op("DeformConv")
class DeformConv:
    """Convolution whose taps are moved by offsets and weighted by a mask (ONNX DeformConv)."""

    def body(t, x, w, offset, b=None, mask=None, *, a):
        a.auto_pad = "NOTSET"
        win = window_of("DeformConv", x.shape[2:], w.shape[2:], a)
        n, per_group = len(win.out), w.shape[1]
        equal_dims(x.shape[1], per_group * a.group, "`DeformConv`: channels of input and weight differ")
        each, per_offset = floordiv(w.shape[0], a.group), floordiv(x.shape[1], a.offset_group)
        taps = reduce(lambda p, q: p * q, win.kernel, 1)
        dtype = x.dtype.acc

        def product(*i: Expr) -> Expr:
            batch, o, out, c, tap = i[0], i[1], i[2 : 2 + n], i[2 + n], i[3 + n :]
            channel = o // wrap(each) * wrap(per_group) + c
            flat: Expr = literal(0, I64)
            for k, size in zip(tap, win.kernel, strict=True):
                flat = flat * size + k
            first = channel // wrap(per_offset) * taps + flat
            at = [
                cast(dtype, p - wrap(pad)) + f.in_acc(offset[(batch, first * n + k, *out)])
                for k, (p, pad) in enumerate(zip(win.position(out, tap), win.before, strict=True))
            ]
            read = zero_outside(lambda p: cast(dtype, x[(batch, channel, *p)]), x.shape[2:], literal(0, dtype))
            value = interpolated(read, at, 0, linear_weights) * f.in_acc(w[(o, c, *tap)])
            return value if mask is None else value * f.in_acc(mask[(batch, first, *out)])

        shape = (x.shape[0], w.shape[0], *win.out)
        acc = t.sum(shape, (per_group, *win.kernel), product, name="deform_conv")
        return t.map(
            shape, lambda *i: cast(x.dtype, acc[i] if b is None else acc[i] + f.in_acc(b[i[1]])), name="deform_conv_out"
        )


def _batch_check(t, name: str, of: Callable[[Expr], Expr], rois: Tensor, limit: Dim) -> None:
    t.check(
        rois.shape[:1],
        lambda k: (of(k) >= 0) & (of(k) < wrap(limit)),
        f"`{name}` has a batch index outside of the data",
    )


@op("RoiAlign")
class RoiAlign:
    """Regions of interest as bins of averaged (or largest) bilinear samples (ONNX RoiAlign)."""

    limits = "with sampling_ratio 0, regions may not be larger than the image"

    def body(t, x, rois, batch_indices, *, a):
        count, channels = rois.shape[0], x.shape[1]
        sizes, bins = x.shape[2:], (a.output_height, a.output_width)
        dtype = x.dtype.acc
        half = a.coordinate_transformation_mode == "half_pixel"
        _batch_check(t, "RoiAlign", lambda k: cast(I64, batch_indices[k]), rois, x.shape[0])

        def start(r: Expr, k: int) -> Expr:
            return f.in_acc(rois[r, wrap(1 - k)]) * a.spatial_scale - (0.5 if half else 0.0)

        def width(r: Expr, k: int) -> Expr:
            span = f.in_acc(rois[r, wrap(3 - k)]) * a.spatial_scale - (0.5 if half else 0.0) - start(r, k)
            return span if half else maximum(span, 1.0)

        begin = t.map((count, 2), lambda r, k: where(equal(k, 0), start(r, 0), start(r, 1)), name="begin")
        step = t.map(
            (count, 2), lambda r, k: where(equal(k, 0), width(r, 0) / bins[0], width(r, 1) / bins[1]), name="step"
        )

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

        def sample(r: Expr, c: Expr, p: Sequence[Expr], s: Sequence[Expr]) -> tuple[Expr, list[Expr]]:
            """Whether a sample counts, and its weighted neighbours."""
            used, corner = literal(True, BOOL), []
            for k in (0, 1):
                n = samples(r, k)
                unit = step[r, wrap(k)]
                at = begin[r, wrap(k)] + cast(dtype, p[k]) * unit + (cast(dtype, s[k]) + 0.5) * unit / cast(dtype, n)
                used = used & (s[k] < n) & (at >= -1.0) & (at <= cast(dtype, wrap(sizes[k])))
                at = maximum(at, 0.0)
                low = minimum(cast(I64, at), wrap(sizes[k] - 1))
                high = minimum(low + 1, wrap(sizes[k] - 1))
                part = where(equal(low, wrap(sizes[k] - 1)), literal(0, dtype), at - cast(dtype, low))
                corner.append(((low, 1.0 - part), (high, part)))
            batch = cast(I64, batch_indices[r])
            return used, [wy * wx * f.in_acc(x[batch, c, y, z]) for y, wy in corner[0] for z, wx in corner[1]]

        def term(r, c, py, px, sy, sx):
            used, parts = sample(r, c, (py, px), (sy, sx))
            join = (lambda p, q: p + q) if a.mode == "avg" else maximum
            none = literal(0 if a.mode == "avg" else dtype.lowest, dtype)
            # A sample outside of the image is a zero, one behind the last is none.
            value = where(used, reduce(join, parts), literal(0, dtype))
            return where((sy < samples(r, 0)) & (sx < samples(r, 1)), value, none)

        shape = (count, channels, *bins)
        acc = t.reduce("sum" if a.mode == "avg" else "max", shape, most, term, name="roi_align")

        def element(*i: Expr) -> Expr:
            n = maximum(samples(i[0], 0) * samples(i[0], 1), 1)
            if a.mode == "avg":
                return cast(x.dtype, acc[i] / cast(dtype, n))
            return cast(x.dtype, where(equal(acc[i], dtype.lowest), literal(0, dtype), acc[i]))

        return t.map(shape, element, name="roi_align_out")


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


ALL = (GridSample, AffineGrid, DeformConv, RoiAlign, MaxRoiPool)
