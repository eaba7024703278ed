"""Resize by scales that a run computes.

`%f = scale_fractions(%scales)  sizes(scaled_extents(%x, %f)) {defines=[dim<_u0>]}  %y = scaled_resize(%x, %roi, %f,
dims(_u0))`: the extents of the result are sizes of the run, and its positions are computed from `%f`.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import F32, F64, I32, I64
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.resize import resized
from occ.compiler.ir.ops.resize_plan import computed_plan
from occ.compiler.ir.ops.shape_of import pick
from occ.compiler.ir.te.expr import Expr, call, cast, equal, literal, where

MOST_PARTS = 4096  # largest denominator that is looked for
SCALED = "scaled_resize"
_INFINITE = 2.0**128  # more than any `f32`


@op("scale_fractions", own_attributes="exact=int")
class ScaleFractions:
    """The number that each scale, an `f32`, stands for, as numerator and denominator: f64[n, 2].

    It is the fraction with the smallest denominator that rounds to the scale (`shortest_fraction`), up to `MOST_PARTS`;
    beyond, or with `exact`, the scale itself over 1. An axis of no more than `MOST_PARTS` elements has the same extent
    by either: otherwise the quotient of both extents, which is a shorter fraction, would be between them.
    """

    operands = ("scales",)

    def body(t, scales, *, a):
        n = scales.shape[0]
        number = t.map([n], lambda i: cast(F64, scales[(i,)]), name="scale")
        t.check([n], lambda i: (number[i] > 0.0) & (number[i] < _INFINITE), "a scale must be greater than 0")
        if a.exact:
            return t.map([n, 2], lambda i, j: where(equal(j, 0), number[i], literal(1.0, F64)), name="fraction")

        def parts(i: Expr, r: Expr) -> Expr:
            """The denominator `r + 1` where a fraction with it rounds to the scale."""
            by = cast(F64, r + 1)
            rounds = equal(cast(F32, call("round_even", number[i] * by) / by), scales[(i,)])
            return where(rounds, cast(I32, r + 1), literal(MOST_PARTS + 1, I32))

        fewest = t.reduce("min", [n], [MOST_PARTS], parts, name="parts")

        def fraction(i: Expr, j: Expr) -> Expr:
            short, by = fewest[i] <= MOST_PARTS, cast(F64, fewest[i])
            whole = where(short, call("round_even", number[i] * by), number[i])
            return where(equal(j, 0), whole, where(short, by, literal(1.0, F64)))

        return t.map([n, 2], fraction, name="fraction")


@op("scaled_extents", own_attributes="axes=ints")
class ScaledExtents:
    """The extents of axes resized by fractions: i64[axes]."""

    operands = ("data", "fractions")

    def body(t, x, fractions, *, a):
        sizes = [x.shape[axis] for axis in a.axes]

        def extent(k: Expr) -> Expr:
            return cast(I64, call("floor", cast(F64, pick(sizes, k)) * fractions[k, 0] / fractions[k, 1]))

        return t.map([len(sizes)], extent, name="extents")


@op(SCALED, static=("roi", "sizes"), rank=same, writes="any", own_attributes="*")
class ScaledResize:
    """A Resize of `axes` by fractions (`scale_fractions`) to sizes (`scaled_extents`)."""

    operands = ("X", "roi", "fractions", "sizes")

    def body(t, x, roi, fractions, sizes, *, a):
        return resized(t, x, computed_plan(x, roi, fractions, sizes, a), a)


ALL: tuple[OpSpec, ...] = (ScaleFractions, ScaledExtents, ScaledResize)
