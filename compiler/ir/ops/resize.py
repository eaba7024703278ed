"""Resize, one axis after another: each axis is a weighted sum of a few neighbours (ONNX Resize, all modes).

A factor is the number that a file means by an `f32`: 1.3 makes 78 of 60 elements, as PyTorch and OpenVINO have it, and as files
expect it. `exact_resize` takes the `f32` itself, which is a little less, and makes 77 (docs/numerics.md).
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor, isfinite, lcm
from types import SimpleNamespace
from typing import Any

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.dim import Dim, Sym, exact_quotient, floordiv
from occ.compiler.ir.dtype import F32, F64, I32, I64
from occ.compiler.ir.fractions import shortest_fraction
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.shape import normalize_axes
from occ.compiler.ir.te.expr import Expr, call, cast, clamp, equal, literal, maximum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.functions import absolute

EXACT = "exact_resize"


@dataclass(frozen=True)
class AxisResize:
    """The resizing of one axis: extents, the scale as number or expression, the region of interest.

    Positions are quotients of whole numbers that f64 holds, of which a division is rounded once: `33 * 10 / 11` is 30, while
    `33 / 1.1` is a little less, and another neighbour.
    """

    axis: int
    size: Dim
    out: Dim
    scale: Fraction | None  # None: out / size, known at run time only
    roi: tuple[Fraction, Fraction]

    @property
    def factor(self) -> tuple[Expr, Expr]:
        """The scale, as numerator and denominator."""
        if self.scale is not None:
            return literal(float(self.scale.numerator), F64), literal(float(self.scale.denominator), F64)
        return cast(F64, wrap(self.out)), cast(F64, wrap(self.size))

    def unscaled(self, y: Expr) -> Expr:
        """A position of the result in the input."""
        by, parts = self.factor
        return y * parts / by

    @property
    def width(self) -> tuple[Expr, Expr]:
        """The output extent before rounding, as numerator and denominator."""
        if self.scale is None:
            return cast(F64, wrap(self.out)), literal(1.0, F64)
        by, parts = self.factor
        return by * cast(F64, wrap(self.size)), parts


def _floats(name: str, operand: Tensor | None) -> tuple[float, ...]:
    if operand is None or operand.shape == (0,):
        return ()
    if operand.value is None or any(v is None or isinstance(v, Sym) for v in operand.value):
        raise Unresolved("Resize", name)
    return tuple(float(v) for v in operand.value if v is not None and not isinstance(v, Sym))


def axis_plan(
    x: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    a: Any,
    factor: Callable[[float], Fraction] = shortest_fraction,
) -> list[AxisResize]:
    """How each axis that changes is resized.

    Args:
        x, roi, scales, sizes: the operands.
        a: the attributes.
        factor: the number that an `f32` of `scales` or `roi` stands for.

    Raises:
        Invalid: neither or both of `scales` and `sizes` are given, or they are no positive numbers; Unresolved: they are computed
            at run time.
    """
    axes = tuple(range(x.rank)) if a.axes is None else normalize_axes(a.axes, x.rank, "Resize")
    for operand in (scales, sizes):
        n = operand.shape[0] if operand is not None and operand.rank == 1 else 0
        if isinstance(n, int) and n not in (0, len(axes)):
            raise Invalid(f"`Resize`: {n} scales or sizes for {len(axes)} axes")
    factors = _floats("scales", scales)
    asked = static_dims("Resize", "sizes", sizes) if sizes is not None and sizes.shape != (0,) else ()
    if bool(factors) == bool(asked):
        raise Invalid("`Resize` needs either `scales` or `sizes`")
    if len(factors or asked) != len(axes):
        raise Invalid(f"`Resize`: {len(factors or asked)} scales or sizes for {len(axes)} axes")
    if wrong := [s for s in factors if not (isfinite(s) and s > 0)]:
        raise Invalid(f"`Resize` by {wrong[0]}: a scale has to be greater than 0")
    region = _floats("roi", roi) if a.coordinate_transformation_mode == "tf_crop_and_resize" else ()
    if region and (len(region) != 2 * len(axes) or not all(map(isfinite, region))):
        raise Invalid(f"`Resize`: `roi` {[*region]} is no start and end, finite, of each of {len(axes)} axes")
    outs: list[Dim] = list(asked)
    ratios: list[Fraction | None] = [factor(s) for s in factors]
    if asked:
        ratios = [_ratio(out, x.shape[axis]) for out, axis in zip(asked, axes, strict=True)]
        if a.keep_aspect_ratio_policy != "stretch":
            ratios, outs = _keep_aspect(x, axes, ratios, a.keep_aspect_ratio_policy)
    else:
        outs = [_scaled(x.shape[axis], s) for axis, s in zip(axes, ratios, strict=True) if s is not None]
    plan: list[AxisResize] = []
    for k, axis in enumerate(axes):
        bounds = (factor(region[k]), factor(region[k + len(axes)])) if region else (Fraction(0), Fraction(1))
        step = AxisResize(axis, x.shape[axis], outs[k], ratios[k], bounds)
        if step.out != step.size or step.scale != 1 or bounds != (0, 1):
            plan.append(step)
    return plan


def _ratio(out: Dim, size: Dim) -> Fraction | None:
    if isinstance(out, int) and isinstance(size, int):
        return Fraction(out, size)
    quotient = exact_quotient(out, size)
    return Fraction(quotient) if isinstance(quotient, int) else None


def _scaled(size: Dim, scale: Fraction) -> Dim:
    return floordiv(size * scale.numerator, scale.denominator)


def _keep_aspect(
    x: Tensor, axes: tuple[int, ...], ratios: list[Fraction | None], policy: str
) -> tuple[list[Fraction | None], list[Dim]]:
    known = [r for r in ratios if r is not None]
    if len(known) != len(ratios):
        raise Unresolved("Resize", "sizes")
    scale = min(known) if policy == "not_larger" else max(known)
    # Halves round up (ONNX Resize, keep_aspect_ratio_policy).
    outs = [floordiv(x.shape[k] * scale.numerator * 2 + scale.denominator, 2 * scale.denominator) for k in axes]
    return [scale] * len(ratios), outs


def source_position(r: AxisResize, i: Expr, mode: str) -> Expr:
    """Where output position `i` is in the input, an f64 (ONNX Resize, coordinate_transformation_mode)."""
    y, last = cast(F64, i), cast(F64, wrap(r.size - 1))
    width, parts = r.width
    single = equal(width, parts)
    match mode:
        case "asymmetric":
            return r.unscaled(y)
        case "half_pixel":
            return r.unscaled(y + 0.5) - 0.5
        case "pytorch_half_pixel":
            return where(single, literal(-0.5, F64), r.unscaled(y + 0.5) - 0.5)
        case "align_corners":
            return where(single, literal(0, F64), y * last * parts / (width - parts))
        case "half_pixel_symmetric":
            adjustment = cast(F64, wrap(r.out)) * parts / width
            offset = cast(F64, wrap(r.size)) / 2.0 * (1.0 - adjustment)
            return offset + r.unscaled(y + 0.5) - 0.5
        case "tf_half_pixel_for_nn":
            return r.unscaled(y + 0.5)
        case "tf_crop_and_resize":
            return _in_region(r, y, last, single)
        case _:
            raise Invalid(f"`coordinate_transformation_mode` of `Resize` is {mode!r}", code="OCC0107")


def _in_region(r: AxisResize, y: Expr, last: Expr, single: Expr) -> Expr:
    """`last * (start + (end - start) * y / (width - 1))`, rounded once; of a single element the middle."""
    width, parts = r.width
    start, end = r.roi
    unit = lcm(start.denominator, end.denominator)
    first, length = (literal(float(n * unit), F64) for n in (start, end - start))
    middle = last * (first * 2.0 + length) / (2.0 * unit)
    return where(
        single, middle, last * (first * (width - parts) + length * y * parts) / ((width - parts) * float(unit))
    )


def _nearest(t: Builder, x: Tensor, r: AxisResize, a: SimpleNamespace) -> Tensor:
    """The nearest neighbour; by a whole factor it is an integer division, which needs no table."""
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
    """A value of tf_crop_and_resize: positions outside of the input have the one that an attribute says."""
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

    inside = [  # a table for each tap: it is read for every element, and computed for every position of the axis once
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


def _resized(t: Builder, x: Tensor, plan: list[AxisResize], a: SimpleNamespace) -> Tensor:
    value = x
    for r in plan:
        value = along_axis(t, value, r, a)
    if value.dtype != x.dtype:
        rounded = x.dtype.is_int
        return t.map(
            value.shape,
            lambda *i: cast(x.dtype, call("round_even", value[i]) if rounded else value[i]),
            name="rounded",
        )
    return t.map(x.shape, lambda *i: x[i], name="resize") if value is x else value


def _check_mode(a: SimpleNamespace) -> None:
    if a.mode not in ("nearest", "linear", "cubic"):
        raise Invalid(f"`mode` of `Resize` is {a.mode!r}", code="OCC0107")


@op("Resize", static=("roi", "scales", "sizes"), rank=same, writes="any")
class Resize:
    def body(t, x, roi=None, scales=None, sizes=None, *, a):
        _check_mode(a)
        return _resized(t, x, axis_plan(x, roi, scales, sizes, a), a)


@op(EXACT, static=("roi", "scales", "sizes"), rank=same, writes="any", own_attributes="*")
class ExactResize:
    """Resize by the very numbers that `scales` has, as ONNX's definition says: 0.7 is 0.699999988."""

    operands = ("X", "roi", "scales", "sizes")

    def body(t, x, roi=None, scales=None, sizes=None, *, a):
        _check_mode(a)
        return _resized(t, x, axis_plan(x, roi, scales, sizes, a, Fraction), a)


ALL = (Resize, ExactResize)
