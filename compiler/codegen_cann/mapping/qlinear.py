"""Quantised matrix products, convolutions and sums as GE nodes with exact INT32 sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.ascend_quant import factor_of, number, quantised
from occ.compiler.codegen_cann.mapping.convolution import ConvAttrs, convolve
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.quantize import dequantized, integer_product, rounded, signed, sums, times
from occ.compiler.codegen_cann.mapping.quantized_chains import QuantizedChain, convolution
from occ.compiler.codegen_cann.mapping.quantized_chains import product as quantized_product
from occ.compiler.codegen_cann.mapping.window import pad, window_pads
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def _convolution(e: Emitter, op: Op, x: Ref, w: Ref, xz: Ref | None, wz: Ref | None) -> Ref:
    """The convolution of `x - xz` and `w - wz`, zero-padded, in INT32.

    With the operands shifted to INT8, the sum over a window of `(x - a) * (w - b)` is the sum of `x * w`, minus `a`
    times the sum of the filter, minus `b` times the sum of the window, plus `a * b` per element of the filter.
    """
    n, attrs = len(x.shape) - 2, op.a
    strides, dilations = list(attrs.strides or [1] * n), list(attrs.dilations or [1] * n)
    pads = window_pads(op, x.shape[2:], w.shape[2:])
    left, a = signed(e, x, xz)
    right, b = signed(e, w, wz)
    if a is not None and any(map(any, pads)):  # the padding value represents zero
        begins, ends = ([0, 0, *(p[k] for p in pads)] for k in (0, 1))
        shape = [d + p + q for d, p, q in zip(left.shape, begins, ends, strict=True)]
        left = pad(e, left, begins, ends, shape, value=_scalar(e, a))
        pads = [(0, 0)] * n

    def applied(filters: Ref) -> Ref:
        return convolve(e, left, filters, None, pads, ConvAttrs(strides, dilations, attrs.group), Desc("INT32", ()))

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
    """The sum of each filter, broadcastable to channels."""
    count, shape = prod(w.shape[1:]), (w.shape[0], *[1] * (len(w.shape) - 2))
    if w.node.type == "Const":
        return e.constant(w.node.value.reshape(-1, count).sum(1, dtype=np.int32).reshape(shape))
    return e.reshape(sums(e, e.reshape(w, (w.shape[0], count)), -1), shape)


def _conv_integer(e: Emitter, op: Op, x: Ref, w: Ref, xz: Ref | None = None, wz: Ref | None = None) -> Ref:
    return _convolution(e, op, x, w, xz, wz)


def _arithmetic(e: Emitter, kind: str, x: Ref, y: Ref) -> Ref:
    """A product or quotient of scales; constant for constants."""
    if x.node.type == y.node.type == "Const":
        fn = {"Mul": np.multiply, "RealDiv": np.divide}[kind]
        return e.constant(fn(x.node.value, y.node.value))
    return e.op(kind, x, y)


def _requantized(e: Emitter, total: Ref, scale: Ref, zero: Ref | None, out: str) -> Ref:
    return rounded(e, e.op("Mul", e.cast(total, "FLOAT"), scale), zero, out)


class _Codes(NamedTuple):
    """A quantised operand: its codes, their scale and zero point."""

    codes: Ref
    scale: Ref
    zero: Ref | None


def _pair(operands: Sequence[Any]) -> tuple[_Codes, _Codes, tuple[Any, ...]]:
    """The two quantised operands with which all QLinear operators begin, and the others."""
    return _Codes(*operands[:3]), _Codes(*operands[3:6]), (*operands[6:], None, None, None)


def _qlinear_conv(e: Emitter, op: Op, *operands: Ref | None) -> Ref:
    x, w, (ys, yz, b, *_) = _pair(operands)
    how = QuantizedChain(x.zero, w.zero, factor_of(x.scale, w.scale, ys), yz, b, e.type(op.result).dtype)
    if (made := convolution(e, op, x.codes, w.codes, how)) is not None:
        return made
    total = _convolution(e, op, x.codes, w.codes, x.zero, w.zero)
    channels = (w.codes.shape[0], *[1] * (len(x.codes.shape) - 2))
    if b is not None:
        total = e.op("Add", total, e.reshape(b, channels))
    ws = e.reshape(w.scale, () if prod(w.scale.shape) == 1 else channels)
    scale = _arithmetic(e, "RealDiv", _arithmetic(e, "Mul", e.reshape(x.scale, ()), ws), e.reshape(ys, ()))
    return _requantized(e, total, scale, e.reshape(yz, ()), e.type(op.result).dtype)


def _of_rows(e: Emitter, v: Ref) -> Ref:
    """A scale or zero point per row of a matrix, broadcastable to it."""
    return e.reshape(v, (*v.shape, 1)) if len(v.shape) == 1 and v.shape[0] > 1 else v


def _qlinear_matmul(e: Emitter, op: Op, *operands: Ref | None) -> Ref:
    x, y, (scale, zero, *_) = _pair(operands)
    how = QuantizedChain(x.zero, y.zero, factor_of(x.scale, y.scale, scale), zero, None, e.type(op.result).dtype)
    if (made := quantized_product(e, x.codes, y.codes, how)) is not None:
        return made
    total = integer_product(e, x.codes, y.codes, x.zero, y.zero)
    xs, ys, scale = (e.cast(v, "FLOAT") for v in (x.scale, y.scale, scale))
    factor = _arithmetic(e, "RealDiv", _arithmetic(e, "Mul", _of_rows(e, xs), ys), _of_rows(e, scale))
    made = _requantized(e, total, factor, _of_rows(e, zero), e.type(op.result).dtype)
    return e.reshape(made, e.type(op.result).shape)


def _turned(e: Emitter, v: Ref, swap: int) -> Ref:
    if not swap:
        return v
    return e.constant(np.ascontiguousarray(v.node.value.T)) if v.node.type == "Const" else e.transpose(v, [1, 0])


def _qgemm(e: Emitter, op: Op, *operands: Ref | None) -> Ref:
    x, y, (c, scale, zero, *_) = _pair(operands)
    left, right = _turned(e, x.codes, op.a.transA), _turned(e, y.codes, op.a.transB)
    if scale is not None and op.a.alpha == 1:
        how = QuantizedChain(x.zero, y.zero, factor_of(x.scale, y.scale, scale), zero, c, e.type(op.result).dtype)
        fits = c is None or c.shape == right.shape[1:]
        if fits and (made := quantized_product(e, left, right, how)) is not None:
            return made
    total = integer_product(e, left, right, x.zero, y.zero)
    if c is not None:
        total = e.op("Add", total, c)
    ys = y.scale if prod(y.scale.shape) > 1 else e.reshape(y.scale, ())
    factor = _arithmetic(e, "Mul", e.reshape(x.scale, ()), ys)
    value = e.op("Mul", e.cast(total, "FLOAT"), _arithmetic(e, "Mul", factor, e.scalar(op.a.alpha, "FLOAT")))
    if scale is None or zero is None:
        return value
    return rounded(e, e.op("RealDiv", value, e.reshape(scale, ())), e.reshape(zero, ()), e.type(op.result).dtype)


def _binary(kind: str) -> Row:
    def row(e: Emitter, op: Op, *operands: Ref | None) -> Ref:
        x, y, (scale, zero, *_) = _pair(operands)
        made, out = e.op(kind, _plain(e, x), _plain(e, y)), e.type(op.result).dtype
        codes = quantised(e, made, number(scale), number(zero), out)
        return rounded(e, e.op("RealDiv", made, scale), zero, out) if codes is None else codes

    return row


def _plain(e: Emitter, x: _Codes) -> Ref:
    """The numbers that codes represent."""
    return dequantized(e, x.codes, e.reshape(x.scale, ()), None if x.zero is None else e.reshape(x.zero, ()))


ROWS: dict[str, Row] = {
    "ConvInteger": _conv_integer, "QLinearConv": _qlinear_conv, "QLinearMatMul": _qlinear_matmul,
    "com.microsoft.QGemm": _qgemm, "com.microsoft.QLinearAdd": _binary("Add"),
    "com.microsoft.QLinearMul": _binary("Mul"),
}  # fmt: skip
