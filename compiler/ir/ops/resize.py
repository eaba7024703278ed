"""Resize, one axis after another: each axis is a weighted sum of a few neighbours (ONNX Resize, all modes).

A factor is the decimal number that an `f32` in the file stands for: 1.3 resizes 60 elements to 78, as PyTorch and
OpenVINO do, and as files expect. `exact_resize` uses the `f32` itself, which is slightly less, and returns 77
(docs/numerics.md).
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.dtype import F32, F64, I32, I64
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.resize_plan import EXACT, AxisResize, axis_plan, source_position
from occ.compiler.ir.shape import at_least
from occ.compiler.ir.te.expr import Expr, call, cast, clamp, equal, literal, maximum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.functions import absolute


def _nearest(t: Builder, x: Tensor, r: AxisResize, a: SimpleNamespace) -> Tensor:
    """The nearest neighbour; by an integer factor it is an integer division, which needs no table."""
    mode, rule = a.coordinate_transformation_mode, a.nearest_mode
    whole = r.scale is not None and r.scale.denominator == 1 and r.out == r.size * r.scale.numerator
    if whole and ((mode, rule) == ("asymmetric", "floor") or (mode == "half_pixel" and rule.startswith("round"))):
        factor = int(r.scale or 1)
        return _read(t, x, r, lambda i: i // factor)
    if mode == "asymmetric" and rule == "floor" and r.scale is not None and r.scale.numerator == 1:
        step = r.scale.denominator
        return _read(t, x, r, lambda i: i * step)

    def choose(i: Expr) -> Expr:
        at = source_position(r, i, mode)
        match rule:
            case "floor":
                return call("floor", at)
            case "ceil":
                return call("ceil", at)
            case "round_prefer_floor":
                return call("ceil", at - 0.5)
            case "round_prefer_ceil":
                return call("floor", at + 0.5)
            case _:
                raise Invalid(f"`nearest_mode` of `Resize` is {rule!r}", code="OCC0107")

    table = t.map([r.out], lambda i: cast(I32, clamp(cast(I64, choose(i)), 0, wrap(r.size - 1))), name="nearest")
    if mode != "tf_crop_and_resize":
        return _read(t, x, r, lambda i: cast(I64, table[i]))
    at = t.map([r.out], lambda i: source_position(r, i, mode), name="at")
    return _read(t, x, r, lambda i: cast(I64, table[i]), lambda i, value: _cropped(r, at[i], value, a))


def _cropped(r: AxisResize, at: Expr, value: Expr, a: SimpleNamespace) -> Expr:
    """A value for tf_crop_and_resize: positions outside of the input have the extrapolation value."""
    outside = (at < 0.0) | (at > cast(F64, wrap(r.size - 1)))
    return where(outside, cast(value.dtype, literal(a.extrapolation_value, F32)), value)


def _read(
    t: Builder,
    x: Tensor,
    r: AxisResize,
    at: Callable[[Expr], Expr],
    then: Callable[[Expr, Expr], Expr] = lambda _, value: value,
) -> Tensor:
    shape = [r.out if k == r.axis else n for k, n in enumerate(x.shape)]

    def element(*i: Expr) -> Expr:
        return then(i[r.axis], x[(*i[: r.axis], at(i[r.axis]), *i[r.axis + 1 :])])

    return t.map(shape, element, name="resize")


def _weights(mode: str, r: AxisResize, a: SimpleNamespace) -> tuple[int, int, Callable[[int, Expr], Expr]]:
    """(number of taps, offset of the first, weight of a tap given the fraction) of linear and cubic interpolation."""
    shrink = 1.0
    if a.antialias:
        if r.scale is None:
            raise Unresolved("Resize", "sizes")
        shrink = min(float(r.scale), 1.0)
    reach = 1 if mode == "linear" else 2
    first = floor(-reach / shrink) + 1
    taps = (2 if mode == "linear" else 4) if shrink == 1 else (2 - 2 * first if mode == "linear" else 2 - first - first)

    def weight(k: int, fraction: Expr) -> Expr:
        distance = absolute((literal(first + k, F64) - fraction) * shrink)
        if mode == "linear":
            return maximum(1.0 - distance, 0.0)
        c = a.cubic_coeff_a
        near = ((c + 2) * distance - (c + 3)) * distance * distance + 1.0
        far = ((c * distance - 5 * c) * distance + 8 * c) * distance - 4 * c
        return where(distance <= 1.0, near, where(distance < 2.0, far, literal(0, F64)))

    return taps, first, weight


def _interpolated(t: Builder, x: Tensor, r: AxisResize, a: SimpleNamespace) -> Tensor:
    taps, first, weight = _weights(a.mode, r, a)
    dtype = x.dtype.acc if x.dtype.is_float else F64
    at = t.map([r.out], lambda i: source_position(r, i, a.coordinate_transformation_mode), name="at")
    left = t.map([r.out], lambda i: cast(I64, call("ceil", at[i])) - 1, name="left")  # left < at <= left + 1
    raw = [t.map([r.out], lambda i, k=k: weight(k, at[i] - cast(F64, left[i])), name="raw") for k in range(taps)]

    inside = [  # a table for each tap: it is read for every element, but computed only once per position of the axis
        t.map([r.out], lambda i, k=k: cast(I32, clamp(left[i] + (first + k), 0, wrap(r.size - 1))), name="tap")
        for k in range(taps)
    ]

    def kept(k: int, i: Expr) -> Expr:
        if not a.exclude_outside:
            return raw[k][i]
        position = left[i] + (first + k)
        return where((position >= 0) & (position < wrap(r.size)), raw[k][i], literal(0, F64))

    def normal(k: int, i: Expr) -> Expr:
        if not (a.exclude_outside or a.antialias):
            return raw[k][i]
        total = kept(0, i)
        for other in range(1, taps):
            total = total + kept(other, i)
        return kept(k, i) / where(equal(total, 0.0), literal(1, F64), total)

    weights = [t.map([r.out], lambda i, k=k: cast(dtype, normal(k, i)), name="weight") for k in range(taps)]

    def element(*i: Expr) -> Expr:
        o = i[r.axis]
        total: Expr | None = None
        for k in range(taps):
            value = cast(dtype, x[(*i[: r.axis], cast(I64, inside[k][o]), *i[r.axis + 1 :])]) * weights[k][o]
            total = value if total is None else total + value
        assert total is not None
        return total if a.coordinate_transformation_mode != "tf_crop_and_resize" else _cropped(r, at[o], total, a)

    shape = [r.out if k == r.axis else n for k, n in enumerate(x.shape)]
    return t.map(shape, element, name="resize")


def along_axis(t: Builder, x: Tensor, r: AxisResize, a: SimpleNamespace) -> Tensor:
    """Resize one axis; interpolated values have the accumulation type."""
    return _nearest(t, x, r, a) if a.mode == "nearest" else _interpolated(t, x, r, a)


def resized(t: Builder, x: Tensor, plan: list[AxisResize], a: SimpleNamespace) -> Tensor:
    """The tensor with the axes of a plan resized.

    Raises:
        Invalid: an attribute is none that Resize has, or an axis without elements would get some.
        Unresolved: its number of neighbours depends on a scale that a run computes.
    """
    if a.mode not in ("nearest", "linear", "cubic"):
        raise Invalid(f"`mode` of `Resize` is {a.mode!r}", code="OCC0107")
    value = x
    for r in plan:
        if r.scale is None:  # only then may there be positions without elements to read
            at_least(r.size, dim.minimum(r.out, 1), "`Resize` of an axis without elements")
        value = along_axis(t, value, r, a)
    if value.dtype != x.dtype:
        rounded = x.dtype.is_int
        return t.map(
            value.shape,
            lambda *i: cast(x.dtype, call("round_even", value[i]) if rounded else value[i]),
            name="rounded",
        )
    return t.map(x.shape, lambda *i: x[i], name="resize") if value is x else value


@op("Resize", static=("roi", "scales", "sizes"), rank=same, writes="any")
class Resize:
    def body(t, x, roi=None, scales=None, sizes=None, *, a):
        return resized(t, x, axis_plan(x, roi, scales, sizes, a), a)


@op(EXACT, static=("roi", "scales", "sizes"), rank=same, writes="any", own_attributes="*")
class ExactResize:
    """Resize by exactly the numbers in `scales`, as ONNX defines it: 0.7 is 0.699999988."""

    operands = ("X", "roi", "scales", "sizes")

    def body(t, x, roi=None, scales=None, sizes=None, *, a):
        return resized(t, x, axis_plan(x, roi, scales, sizes, a, Fraction), a)


ALL = (Resize, ExactResize)
