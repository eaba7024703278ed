"""CropAndResize of com.microsoft."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.ranks import fixed
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.ops.movement import static_ints
from occ.compiler.ir.shape import equal_dims, equal_shapes
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, call, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


@op(
    f"{DOMAIN}.CropAndResize",
    signature=FormalSignature.of("X rois batch_indices crop_size", extrapolation_value=0.0, mode="bilinear"),
    static=("crop_size",),
    rank=fixed(4),
)
class CropAndResize:
    """Regions `[y1, x1, y2, x2]` of images `[n, c, h, w]`, resized to one size.

    Corners are fractions of the last pixel's position, and map to the corners of the crop. Positions outside of the
    image have `extrapolation_value`.
    """

    def body(t, x, rois, batches, size, *, a):
        crop = static_ints("CropAndResize", "crop_size", size)
        if x.rank != 4 or rois.rank != 2 or len(crop) != 2:
            raise Invalid(f"`CropAndResize` of {x.type}, regions {rois.type} and {len(crop)} sizes")
        if a.mode not in ("bilinear", "nearest"):
            raise Invalid(f"`mode` of `CropAndResize` is {a.mode!r}", code="OCC0107")
        equal_dims(rois.shape[1], 4, "`CropAndResize`: a region must have four coordinates")
        equal_shapes(batches.shape, rois.shape[:1], "`CropAndResize`: the regions and their batch indices")
        t.check(
            batches.shape,
            lambda k: (batches[k] >= 0) & (cast(I64, batches[k]) < wrap(x.shape[0])),
            "`CropAndResize` has a batch index outside of the data",
        )
        dtype = x.dtype.acc
        last = [cast(dtype, wrap(n - 1)) for n in x.shape[2:]]
        at = [_along(t, rois, crop[k], last[k], k) for k in (0, 1)]
        shape = (rois.shape[0], x.shape[1], *crop)

        def element(r: Expr, c: Expr, *p: Expr) -> Expr:
            batch = cast(I64, batches[r])
            places = [v[r, q] for v, q in zip(at, p, strict=True)]

            def pixel(y: Expr, z: Expr) -> Expr:
                return f.in_acc(x[batch, c, cast(I64, y), cast(I64, z)])

            low, high = ([call(way, v) for v in places] for way in ("floor", "ceil"))
            parts = [v - begin for v, begin in zip(places, low, strict=True)]

            def across(row: Expr) -> Expr:
                left = pixel(row, low[1])
                return left + (pixel(row, high[1]) - left) * parts[1]

            if a.mode == "nearest":
                value = pixel(*(call("floor", v + 0.5) for v in places))
            else:
                value = across(low[0]) + (across(high[0]) - across(low[0])) * parts[0]
            inside = [(v >= 0.0) & (v <= end) for v, end in zip(places, last, strict=True)]
            return cast(x.dtype, where(inside[0] & inside[1], value, literal(a.extrapolation_value, dtype)))

        return t.map(shape, element, name="crops")


def _along(t: Builder, rois: Tensor, n: int, last: Expr, axis: int) -> Tensor:
    """Positions of the pixels of each crop along an axis: f32[regions, n]."""

    def place(r: Expr, p: Expr) -> Expr:
        begin, end = (f.in_acc(rois[r, wrap(axis + k)]) for k in (0, 2))
        if n == 1:
            return (begin + end) * 0.5 * last
        step = (end - begin) * last / float(n - 1)
        return where(equal(p, n - 1), end * last, begin * last + cast(last.dtype, p) * step)

    return t.map((rois.shape[0], n), place, name="at")


ALL = (CropAndResize,)
