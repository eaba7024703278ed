"""Samples of a deformable convolution as columns (im2col with offsets)."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from math import prod

from occ.compiler.ir.dim import floordiv
from occ.compiler.ir.dtype import I32
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.movement import unflatten
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, call, cast, clamp, literal, where, wrap
from occ.compiler.ir.te.function import Tensor
from occ.compiler.ir.te.roles import SAMPLES


@op(
    "deform_samples",
    reads="channels",
    writes="rows",
    own_attributes="kernel=ints strides=ints dilations=ints before=sizes shape=sizes parts=int offset_group=int",
)
class DeformSamples:
    """Samples of a DeformConv: `out[n, p, q, part, tap, c]` of `x[n, channels, h, w]`.

    Each is bilinear at the position of a tap, moved by an offset. `c` counts the channels of a part.

    The parts are equal in size, with whole parts per group of offsets. Pixels outside of `x` are zero. Positions and
    weights are separate tables, so that vectors along the channels only load and add pixels.
    """

    def body(t, x, offset, mask=None, *, a):
        taps, each = prod(a.kernel), floordiv(x.shape[1], a.parts)
        share = a.parts // a.offset_group
        lead = (x.shape[0], *a.shape, a.offset_group * taps)
        dtype = x.dtype.acc

        def along(k: int) -> tuple[list[Tensor], list[Tensor]]:
            """Positions, -1 outside, and weights of the two pixels along an axis.

            The mask is part of the weights of the first axis.
            """

            def place(n: Expr, p: Expr, q: Expr, g: Expr) -> Expr:
                tap = unflatten(g % taps, a.kernel)[k]
                grid = (p, q)[k] * a.strides[k] + tap * a.dilations[k] - wrap(a.before[k])
                # further outside there are no pixels either, and the position fits in an integer
                return clamp(
                    cast(dtype, grid) + f.in_acc(offset[n, g * 2 + k, p, q]),
                    -2.0,
                    cast(dtype, wrap(x.shape[2 + k] + 1)),
                )

            at = t.map(lead, place, name="at")

            def inside(p: Expr) -> Expr:
                return where((p >= 0) & (p < cast(I32, wrap(x.shape[2 + k]))), p, literal(-1, I32))

            def weight(*i: Expr, near: int) -> Expr:
                past = at[i] - call("floor", at[i])
                value = past if near else 1.0 - past
                return value * f.in_acc(mask[i[0], i[3], i[1], i[2]]) if mask is not None and k == 0 else value

            index = [
                t.map(lead, lambda *i, j=j: inside(cast(I32, call("floor", at[i])) + j), name="index") for j in (0, 1)
            ]
            return index, [t.map(lead, lambda *i, j=j: weight(*i, near=j), name="weight") for j in (0, 1)]

        (rows, tall), (columns, wide) = along(0), along(1)

        def element(n: Expr, p: Expr, q: Expr, part: Expr, tap: Expr, c: Expr) -> Expr:
            here, channel = (n, p, q, part // wrap(share) * taps + tap), part * wrap(each) + c
            total = literal(0, dtype)
            for y, h in zip(rows, tall, strict=True):
                for z, w in zip(columns, wide, strict=True):
                    pixel = where(
                        (y[here] >= 0) & (z[here] >= 0), f.in_acc(x[n, channel, y[here], z[here]]), literal(0, dtype)
                    )
                    total = total + pixel * (h[here] * w[here])
            return cast(x.dtype, total)

        return t.map((x.shape[0], *a.shape, a.parts, taps, each), element, name="deform_samples", role=SAMPLES)


ALL = (DeformSamples,)
