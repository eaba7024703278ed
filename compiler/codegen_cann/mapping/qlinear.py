"""Quantised matrix products, convolutions and sums as GE nodes with exact INT32 sums."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.ascend_quant import factor_of, number, quantised
from occ.compiler.codegen_cann.mapping.convolution import convolve
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.quantize import dequantized, integer_product, rounded, signed, sums, times
from occ.compiler.codegen_cann.mapping.quantized_chains import QuantizedChain, convolution
from occ.compiler.codegen_cann.mapping.quantized_chains import product as quantized_product
from occ.compiler.codegen_cann.mapping.window import pad, window_pads
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def _convolution(e: Emitter, op: Op, x: Ref, w: Ref, xz: Ref | None, wz: Ref | None) -> Ref:
    """The convolution of `x - xz` and `w - wz`, padded by zeros, in INT32.

    With the operands moved into INT8, the sum over a window of `(x - a) * (w - b)` is that of `x * w`, less `a` times the
    sum of the filter, less `b` times the sum of the window, plus `a * b` for each element of the filter.
    """
    n, attrs = len(x.shape) - 2, op.a
    strides, dilations = list(attrs.strides or [1] * n), list(attrs.dilations or [1] * n)
    pads = window_pads(op, x.shape[2:], w.shape[2:])
    left, a = signed(e, x, xz)
    right, b = signed(e, w, wz)
    if a is not None and any(map(any, pads)):  # what is padded has the value that stands for zero
        begins, ends = ([0, 0, *(p[k] for p in pads)] for k in (0, 1))
        shape = [d + p + q for d, p, q in zip(left.shape, begins, ends, strict=True)]
        left = pad(e, left, begins, ends, shape, value=_scalar(e, a))
        pads = [(0, 0)] * n

    def applied(filters: Ref) -> Ref:
        return convolve(e, left, filters, None, pads, strides, dilations, attrs.group, Desc("INT32", ()))

    total = applied(right)
    if a is not None:
        a = e.reshape(a, ())
        total = e.op("Sub", total, times(e, _filter_sums(e, right), a))
    if b is not None:
        b = e.reshape(b, () if prod(b.shape) == 1 else (w.shape[0], *[1] * n))
        ones = np.ones((1 if attrs.group == 1 else w.shape[0], *w.shape[1:]), np.int8)
        total = e.op("Sub", total, e.op("Mul", applied(e.constant(ones)), b))
    if a is not None and b is not None:
        total = e.op("Add", total, times(e, times(e, b, a), e.scalar(prod(w.shape[1:]), "INT32")))
    return total


def _scalar(e: Emitter, point: Ref) -> Ref:
    """A zero point as a scalar INT8."""
    if point.node.type == "Const":
        return e.constant(point.node.value.astype(np.int8).reshape(()))
    return e.reshape(e.cast(point, "INT8"), ())


def _filter_sums(e: Emitter, w: Ref) -> Ref:
    """The sum of each filter, so that it broadcasts against channels."""
    count, shape = prod(w.shape[1:]), (w.shape[0], *[1] * (len(w.shape) - 2))
    if w.node.type == "Const":
        return e.constant(w.node.value.reshape(-1, count).sum(1, dtype=np.int32).reshape(shape))
    return e.reshape(sums(e, e.reshape(w, (w.shape[0], count)), -1), shape)


def _conv_integer(e: Emitter, op: Op, x: Ref, w: Ref, xz: Ref | None = None, wz: Ref | None = None) -> Ref:
    return _convolution(e, op, x, w, xz, wz)


def _arithmetic(e: Emitter, kind: str, x: Ref, y: Ref) -> Ref:
    """A product or quotient of scales; of constants a constant."""
    if x.node.type == y.node.type == "Const":
        fn = {"Mul": np.multiply, "RealDiv": np.divide}[kind]
        return e.constant(fn(x.node.value, y.node.value))
    return e.op(kind, x, y)


def _requantized(e: Emitter, total: Ref, scale: Ref, zero: Ref | None, out: str) -> Ref:
    return rounded(e, e.op("Mul", e.cast(total, "FLOAT"), scale), zero, out)


def _qlinear_conv(
    e: Emitter, op: Op, x: Ref, xs: Ref, xz: Ref, w: Ref, ws: Ref, wz: Ref, ys: Ref, yz: Ref, b: Ref | None = None
) -> Ref:
    how = QuantizedChain(xz, wz, factor_of(xs, ws, ys), yz, b, e.type(op.result).dtype)
    if (made := convolution(e, op, x, w, how)) is not None:
        return made
    total = _convolution(e, op, x, w, xz, wz)
    channels = (w.shape[0], *[1] * (len(x.shape) - 2))
    if b is not None:
        total = e.op("Add", total, e.reshape(b, channels))
    ws = e.reshape(ws, () if prod(ws.shape) == 1 else channels)
    scale = _arithmetic(e, "RealDiv", _arithmetic(e, "Mul", e.reshape(xs, ()), ws), e.reshape(ys, ()))
    return _requantized(e, total, scale, e.reshape(yz, ()), e.type(op.result).dtype)


def _of_rows(e: Emitter, v: Ref) -> Ref:
    """A scale or zero point of the rows of a matrix as something that broadcasts against it."""
    return e.reshape(v, (*v.shape, 1)) if len(v.shape) == 1 and v.shape[0] > 1 else v


def _qlinear_matmul(
    e: Emitter, op: Op, x: Ref, xs: Ref, xz: Ref, y: Ref, ys: Ref, yz: Ref, scale: Ref, zero: Ref
) -> Ref:
    how = QuantizedChain(xz, yz, factor_of(xs, ys, scale), zero, None, e.type(op.result).dtype)
    if (made := quantized_product(e, x, y, how)) is not None:
        return made
    total = integer_product(e, x, y, xz, yz)
    xs, ys, scale = (e.cast(v, "FLOAT") for v in (xs, ys, scale))
    factor = _arithmetic(e, "RealDiv", _arithmetic(e, "Mul", _of_rows(e, xs), ys), _of_rows(e, scale))
    made = _requantized(e, total, factor, _of_rows(e, zero), e.type(op.result).dtype)
    return e.reshape(made, e.type(op.result).shape)


def _turned(e: Emitter, v: Ref, swap: int) -> Ref:
    if not swap:
        return v
    return e.constant(np.ascontiguousarray(v.node.value.T)) if v.node.type == "Const" else e.transpose(v, [1, 0])


def _qgemm(
    e: Emitter, op: Op, x: Ref, xs: Ref, xz: Ref, y: Ref, ys: Ref, yz: Ref, c: Ref | None = None, scale: Ref | None = None,
    zero: Ref | None = None,
) -> Ref:  # fmt: skip
    x, y = _turned(e, x, op.a.transA), _turned(e, y, op.a.transB)
    if scale is not None and op.a.alpha == 1:
        how = QuantizedChain(xz, yz, factor_of(xs, ys, scale), zero, c, e.type(op.result).dtype)
        if (c is None or c.shape == y.shape[1:]) and (made := quantized_product(e, x, y, how)) is not None:
            return made
    total = integer_product(e, x, y, xz, yz)
    if c is not None:
        total = e.op("Add", total, c)
    factor = _arithmetic(e, "Mul", e.reshape(xs, ()), ys if prod(ys.shape) > 1 else e.reshape(ys, ()))
    value = e.op("Mul", e.cast(total, "FLOAT"), _arithmetic(e, "Mul", factor, e.scalar(op.a.alpha, "FLOAT")))
    if scale is None or zero is None:
        return value
    return rounded(e, e.op("RealDiv", value, e.reshape(scale, ())), e.reshape(zero, ()), e.type(op.result).dtype)


def _binary(kind: str) -> Row:
    def row(
        e: Emitter, op: Op, x: Ref, xs: Ref, xz: Ref | None, y: Ref, ys: Ref, yz: Ref | None, scale: Ref,
        zero: Ref | None = None,
    ) -> Ref:  # fmt: skip
        made, out = e.op(kind, _plain(e, x, xs, xz), _plain(e, y, ys, yz)), e.type(op.result).dtype
        codes = quantised(e, made, number(scale), number(zero), out)
        return rounded(e, e.op("RealDiv", made, scale), zero, out) if codes is None else codes

    return row


def _plain(e: Emitter, x: Ref, scale: Ref, zero: Ref | None) -> Ref:
    return dequantized(e, x, e.reshape(scale, ()), None if zero is None else e.reshape(zero, ()))


ROWS: dict[str, Row] = {
    "ConvInteger": _conv_integer, "QLinearConv": _qlinear_conv, "QLinearMatMul": _qlinear_matmul,
    "com.microsoft.QGemm": _qgemm, "com.microsoft.QLinearAdd": _binary("Add"), "com.microsoft.QLinearMul": _binary("Mul"),
}  # fmt: skip
