"""Quantisation: to and from integers and narrow floats, and contractions of quantised operands."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import F32, I32, U8, DType
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.contraction import matmul
from occ.compiler.ir.ops.window import convolution
from occ.compiler.ir.shape import equal_dims, equal_shapes, normalize_axis, show_shape
from occ.compiler.ir.te.conversion import FLOAT8, quantize
from occ.compiler.ir.te.expr import Expr, call, cast, clamp, equal, literal, maximum, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor

Reader = Callable[[Sequence[Expr]], Expr]


def scale_at(name: str, x: Tensor, scale: Tensor, axis: int, block: int) -> Reader:
    """Reads the scale or zero point of an element: per tensor, per axis or per block.

    Raises:
        Invalid: its shape matches none of the three.
    """
    if scale.rank == 0 or scale.type.size == 1:
        return lambda _: scale[(0,) * scale.rank]
    k = normalize_axis(axis, x.rank, name)
    what = f"`{name}`: a scale of shape {show_shape(scale.shape)} for data of {show_shape(x.shape)}"
    if scale.rank == 1 and not block:
        equal_dims(scale.shape[0], x.shape[k], what)
        return lambda i: scale[i[k]]
    if scale.rank != x.rank or block <= 0:
        raise Invalid(what)
    for j, (n, extent) in enumerate(zip(scale.shape, x.shape, strict=True)):
        equal_dims(n, dim.ceildiv(extent, block) if j == k else extent, what)
    return lambda i: scale[tuple(p // block if j == k else p for j, p in enumerate(i))]


@op("QuantizeLinear", dtype=U8, later={"precision": 0, "output_dtype": None})
class QuantizeLinear:
    """`saturate(round(x / scale) + zero_point)` per tensor, axis or block."""

    def body(t, x, y_scale, y_zero_point=None, *, a):
        to = y_zero_point.dtype if y_zero_point is not None else a.output_dtype or U8
        if a.output_dtype not in (None, to):
            raise Invalid(f"`QuantizeLinear` to {a.output_dtype} has a zero point of {to}", code="OCC0201")
        precision = a.precision or y_scale.dtype
        precision = precision if precision.is_float else F32
        scale = scale_at("QuantizeLinear", x, y_scale, a.axis, a.block_size)
        zero = None
        if y_zero_point is not None and to.name not in FLOAT8:
            zero = scale_at("QuantizeLinear", x, y_zero_point, a.axis, a.block_size)

        def element(*i):
            scaled = cast(precision, x[i]) / cast(precision, scale(i))
            return quantize(scaled, to, None if zero is None else zero(i), saturate=bool(a.saturate))

        return t.map(x.shape, element, name="quantize")


def dequantized(x: Expr, scale: Expr, zero: Expr | None, to: DType) -> Expr:
    """`(x - zero) * scale` in f32, as `to`."""
    if x.dtype.is_int and x.dtype.bits <= 16:
        value = cast(I32, x) if zero is None else cast(I32, x) - cast(I32, zero)
        return cast(to, cast(F32, value) * cast(F32, scale))
    value = cast(F32, x) if zero is None else cast(F32, x) - cast(F32, zero)
    return cast(to, value * cast(F32, scale))


@op("DequantizeLinear", later={"output_dtype": None})
class DequantizeLinear:
    """`(x - zero_point) * scale` per tensor, axis or block."""

    def body(t, x, x_scale, x_zero_point=None, *, a):
        to = a.output_dtype or x_scale.dtype
        scale = scale_at("DequantizeLinear", x, x_scale, a.axis, a.block_size)
        zero = None
        if x_zero_point is not None and x.dtype.is_int:
            zero = scale_at("DequantizeLinear", x, x_zero_point, a.axis, a.block_size)
        return t.map(
            x.shape,
            lambda *i: dequantized(x[i], scale(i), None if zero is None else zero(i), to),
            name="dequantize",
        )


@op("DynamicQuantizeLinear", writes="any")
class DynamicQuantizeLinear:
    """u8 with the range of the data, zero included (ONNX DynamicQuantizeLinear)."""

    def body(t, x, *, a):
        # Both ends in one pass: the minimum is the negated maximum of the negated elements.
        ends = t.reduce("max", [2], x.shape, lambda side, *i: where(side < 1, x[i], -x[i]), name="ends")
        top = t.map([], lambda: maximum(ends[(wrap(0),)], 0), name="top")
        bottom = t.map([], lambda: minimum(-ends[(wrap(1),)], 0), name="bottom")

        def scale_of():
            same = equal(top[()], bottom[()])
            return where(same, literal(1, x.dtype), top[()] - bottom[()]) / literal(255, x.dtype)

        scale = t.map([], scale_of, name="scale")
        zero = t.map([], lambda: call("round_even", clamp(0.0 - bottom[()] / scale[()], 0, 255)), name="zero")

        def element(*i):
            return cast(U8, clamp(call("nearest", x[i] / scale[()]) + cast(I32, zero[()]), 0, 255))

        return (
            t.map(x.shape, element, name="quantize"),
            t.map([], lambda: scale[()], name="y_scale"),
            t.map([], lambda: cast(U8, zero[()]), name="y_zero_point"),
        )


def centred(t: Builder, x: Tensor, zero: Tensor | None, at: Reader | None = None) -> Tensor:
    """`x - zero` as i32 (f32 for narrow floats); `at` reads the zero point, per tensor by default."""
    acc = I32 if x.dtype.is_int else F32

    def element(*i):
        if zero is None:
            return cast(acc, x[i])
        return cast(acc, x[i]) - cast(acc, at(i) if at else zero[(0,) * zero.rank])

    return t.map(x.shape, element, name="centred")


def _of_rows(value: Tensor | None) -> Reader | None:
    """Reads a scale or zero point of a left matrix: a number, or one per row."""
    if value is None or value.type.size == 1:
        return None
    return (lambda i: value[i[-2]]) if value.rank == 1 else (lambda i: value.at((*i[:-1], wrap(0))))


def _of_columns(value: Tensor | None) -> Reader | None:
    """Reads a scale or zero point of a right matrix: a number, or one per column."""
    if value is None or value.type.size == 1:
        return None
    return (lambda i: value[i[-1]]) if value.rank == 1 else (lambda i: value.at((*i[:-2], wrap(0), i[-1])))


@op("MatMulInteger", tags=("contraction",))
class MatMulInteger:
    def body(t, a_, b_, a_zero_point=None, b_zero_point=None, *, a):
        for zero, operand, axis in ((a_zero_point, a_, -2), (b_zero_point, b_, -1)):
            if zero is not None and zero.rank == 1 and zero.type.size != 1 and operand.rank >= -axis:
                equal_dims(
                    zero.shape[0], operand.shape[axis], "`MatMulInteger`: the zero points and the rows or columns"
                )
        left = centred(t, a_, a_zero_point, _of_rows(a_zero_point))
        right = centred(t, b_, b_zero_point, _of_columns(b_zero_point))
        return matmul(t, "MatMulInteger", left, right)


def integers(b: GraphBuilder, v: Value, zero: Value | None, to: DType) -> Value:
    """`v + zero` as integers of type `to`: nearest, ties to even, saturated."""
    return b.saturate(v, zero, to=to)


def _ratio(b: GraphBuilder, *scales: Value, by: Value | None) -> Value:
    """The product of scales, from left to right, divided by the result's: rounded as in onnxruntime."""
    product = reduce(b.Mul, [_wide(b, v) for v in scales])
    return product if by is None else b.Div(product, _wide(b, by))


def _wide(b: GraphBuilder, scale: Value) -> Value:
    return scale if scale.tensor.dtype == F32 else b.Cast(scale, to=F32)


def scaled(b: GraphBuilder, acc: Value, *scales: Value, by: Value | None = None) -> Value:
    """Sums in f32 times one factor, a constant if the scales are constant."""
    made = b.Mul(b.Cast(acc, to=F32), _ratio(b, *scales, by=by))
    equal_shapes(made.tensor.dims, acc.tensor.dims, "a quantised product with its scales")
    return made


def column(b: GraphBuilder, value: Value | None, behind: int = 1) -> Value | None:
    """One value per row or channel, reshaped to broadcast along the `behind` axes after it.

    Others are unchanged.
    """
    if value is None or value.tensor.rank != 1 or value.tensor.size == 1:
        return value
    return b.Reshape(value, b.constant(np.array([-1, *[1] * behind], np.int64)))


@op("QLinearMatMul", tags=("contraction",))
class QLinearMatMul:
    """A quantised product: `saturate(round((a - za) @ (b - zb) * (sa * sb / sy)) + zy)`.

    Scales are per tensor, row of a or column of b.
    """

    def composite(b, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero, *, a):
        acc = b.MatMulInteger(x, y, x_zero, y_zero)
        value = scaled(b, acc, column(b, x_scale), y_scale, by=column(b, scale))
        to = x.tensor.dtype if zero is None else zero.tensor.dtype
        return integers(b, value, column(b, zero), to)


def _of_filters(value: Tensor | None) -> Reader | None:
    return None if value is None or value.type.size == 1 else (lambda i: value[i[0]])


@op("ConvInteger", tags=("contraction",))
class ConvInteger:
    """Convolution of `x - x_zero_point` and `w - w_zero_point` in i32; padding is the zero point."""

    def body(t, x, w, x_zero_point=None, w_zero_point=None, *, a):
        if w_zero_point is not None and w_zero_point.rank == 1 and w_zero_point.type.size != 1:
            equal_dims(w_zero_point.shape[0], w.shape[0], "`ConvInteger`: the zero points and the filters")
        return convolution(
            t, "ConvInteger", centred(t, x, x_zero_point), centred(t, w, w_zero_point, _of_filters(w_zero_point)), a
        )


@op("QLinearConv", tags=("contraction",))
class QLinearConv:
    """Quantised convolution; scale and zero point of the weight per tensor or per output channel, bias in i32."""

    def composite(b, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None, *, a):
        spatial = x.tensor.rank - 2
        acc = b.ConvInteger(x, w, x_zero, w_zero, **{key: getattr(a, key) for key in _WINDOW})
        if bias is not None:
            acc = b.Add(acc, b.Reshape(bias, b.constant(np.array([-1, *[1] * spatial], np.int64))))
        value = scaled(b, acc, x_scale, column(b, w_scale, spatial), by=y_scale)
        return integers(b, value, y_zero, y_zero.tensor.dtype)


_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


ALL = (
    QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv,
)  # fmt: skip
