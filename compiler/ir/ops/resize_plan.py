"""What Resize does along each axis: sizes, scales, source positions (ONNX Resize)."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isfinite, lcm
from typing import Any

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.dim import Dim, Sym, exact_quotient, floordiv
from occ.compiler.ir.dtype import F64
from occ.compiler.ir.fractions import shortest_fraction
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.shape import normalize_axes
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Tensor
from occ.runtime.dataclass import dataclass

EXACT = "exact_resize"


@dataclass(frozen=True)
class AxisResize:
    """The resizing of one axis: extents, the scale as number or expression, the region of interest.

    Positions are quotients of whole numbers in f64, rounded once by the division: `33 * 10 / 11` is 30, while `33 /
    1.1` is slightly less, which selects another neighbour.
    """

    axis: int
    size: Dim
    out: Dim
    scale: Fraction | None  # None: `computed`, or out / size, known at run time only
    roi: tuple[Fraction, Fraction]
    computed: tuple[Expr, Expr] | None = None  # numerator and denominator of the scale

    @property
    def factor(self) -> tuple[Expr, Expr]:
        """The scale, as numerator and denominator."""
        if self.scale is not None:
            return literal(float(self.scale.numerator), F64), literal(float(self.scale.denominator), F64)
        return self.computed or (cast(F64, wrap(self.out)), cast(F64, wrap(self.size)))

    def unscaled(self, y: Expr) -> Expr:
        """The position in the input for a position in the result."""
        by, parts = self.factor
        return y * parts / by

    @property
    def width(self) -> tuple[Expr, Expr]:
        """The output extent before rounding, as numerator and denominator."""
        if self.scale is None and self.computed is None:
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
    """The resizing of each axis that changes.

    Args:
        x, roi, scales, sizes: the operands.
        a: the attributes.
        factor: maps an `f32` of `scales` or `roi` to the number that it stands for.

    Raises:
        Invalid: neither or both of `scales` and `sizes` are given, or they are not positive; Unresolved: they are
            computed at run time.
    """
    given = getattr(a, "axes", None)  # an `exact_resize` has no schema with defaults
    axes = tuple(range(x.rank)) if given is None else normalize_axes(given, x.rank, "Resize")
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
        raise Invalid(f"`Resize` by {wrong[0]}: a scale must be greater than 0")
    regions = _regions(roi, len(axes), a, factor)
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
        step = AxisResize(axis, x.shape[axis], outs[k], ratios[k], regions[k])
        if step.out != step.size or step.scale != 1 or step.roi != _WHOLE:
            plan.append(step)
    return plan


def computed_plan(x: Tensor, roi: Tensor | None, fractions: Tensor, sizes: Tensor, a: Any) -> list[AxisResize]:
    """The resizing of each of `axes` by a scale that a run computes.

    Args:
        x, roi: as of Resize.
        fractions: numerator and denominator of each scale: f64[axes, 2].
        sizes: the extents of the result.
        a: the attributes.

    Raises:
        Invalid: `roi` is no region.
    """
    outs, regions = static_dims("Resize", "sizes", sizes), _regions(roi, len(a.axes), a, shortest_fraction)
    return [
        AxisResize(axis, x.shape[axis], outs[k], None, regions[k], (fractions[k, 0], fractions[k, 1]))
        for k, axis in enumerate(a.axes)
    ]


_WHOLE = Fraction(0), Fraction(1)


def _regions(
    roi: Tensor | None, n: int, a: Any, factor: Callable[[float], Fraction]
) -> list[tuple[Fraction, Fraction]]:
    """The region of interest on each of `n` axes."""
    region = _floats("roi", roi) if a.coordinate_transformation_mode == "tf_crop_and_resize" else ()
    if region and (len(region) != 2 * n or not all(map(isfinite, region))):
        raise Invalid(f"`Resize`: `roi` {[*region]} is not a finite start and end, of each of {n} axes")
    return [(factor(region[k]), factor(region[k + n])) for k in range(n)] if region else [_WHOLE] * n


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
    """The position of output `i` in the input, an f64 (ONNX Resize, coordinate_transformation_mode)."""
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
    """`last * (start + (end - start) * y / (width - 1))`, rounded once; the middle if there is a single element."""
    width, parts = r.width
    start, end = r.roi
    unit = lcm(start.denominator, end.denominator)
    first, length = (literal(float(n * unit), F64) for n in (start, end - start))
    middle = last * (first * 2.0 + length) / (2.0 * unit)
    return where(
        single, middle, last * (first * (width - parts) + length * y * parts) / ((width - parts) * float(unit))
    )
