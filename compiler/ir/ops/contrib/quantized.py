"""Quantised operators of com.microsoft: i32 sums of products, f32 between integers."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import F32, I32
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.ops.quantize import integers, scaled


def _binary(name: str, combine: Callable[..., Value]) -> OpSpec:
    """QLinearAdd and QLinearMul: numpy broadcasting, per-tensor scales, and onnxruntime's arithmetic on x86."""

    def composite(
        b: GraphBuilder, x: Value, x_scale: Value, x_zero: Value | None, y: Value, y_scale: Value, y_zero: Value | None,
        scale: Value, zero: Value | None = None, *, a: SimpleNamespace,
    ) -> Value:  # fmt: skip
        def point(v: Value | None) -> Value:
            return b.constant(np.float32(0)) if v is None else b.Cast(v, to=F32)

        left, right = (b.Cast(v, to=F32) for v in (x, y))
        made = combine(b, (left, x_scale, point(x_zero)), (right, y_scale, point(y_zero)), scale, point(zero))
        return integers(b, made, None, x.tensor.dtype)

    operands = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
    return OpSpec(f"{DOMAIN}.{name}", {"composite": composite, "signature": FormalSignature.of(operands, "C")})


Quantised = tuple[Value, Value, Value]  # codes in f32, scale, zero point in f32


def _sum(b: GraphBuilder, x: Quantised, y: Quantised, scale: Value, zero: Value) -> Value:
    by_x, by_y = (b.Div(v[1], scale) for v in (x, y))
    fixed = b.Sub(zero, b.fma(by_x, x[2], b.Mul(by_y, y[2])))
    return b.fma(x[0], by_x, b.fma(y[0], by_y, fixed))


def _product(b: GraphBuilder, x: Quantised, y: Quantised, scale: Value, zero: Value) -> Value:
    centred = b.Mul(b.Sub(x[0], x[2]), b.Sub(y[0], y[2]))
    return b.Add(b.Mul(centred, b.Div(b.Mul(x[1], y[1]), scale)), zero)


def _between(b: GraphBuilder, x: Value, quant: tuple[Value | None, ...], fn: Callable[[Value], Value]) -> Value:
    """`fn` of dequantised data, requantised; `quant` has the scales and zero points before and after."""
    scale, zero, out_scale, out_zero = quant
    y = fn(b.DequantizeLinear(x, scale, zero))
    if out_zero is None:
        return b.QuantizeLinear(y, out_scale, output_dtype=x.tensor.dtype)
    return b.QuantizeLinear(y, out_scale, out_zero)


def _unary(name: str, names: str, fn: Callable[..., Value], **attributes: object) -> OpSpec:
    def composite(
        b: GraphBuilder, x: Value, scale: Value, zero: Value | None, out_scale: Value, out_zero: Value | None = None, *,
        a: SimpleNamespace,
    ) -> Value:  # fmt: skip
        return _between(b, x, (scale, zero, out_scale, out_zero), lambda v: fn(b, v, a))

    return OpSpec(f"{DOMAIN}.{name}", {"composite": composite, "signature": FormalSignature.of(names, **attributes)})


def _softmax(b: GraphBuilder, x: Value, a: SimpleNamespace) -> Value:
    return b.op("legacy.Softmax" if (a.opset or 13) < 13 else "Softmax", x, axis=a.axis)


def _channels_last(b: GraphBuilder, x: Value, a: SimpleNamespace, fn: Callable[[Value], Value]) -> Value:
    if not a.channels_last:
        return fn(x)
    rank = x.tensor.rank
    first = b.Transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    return b.Transpose(fn(first), perm=(0, *range(2, rank), 1))


_ADDED_CODES = 2**31 // 255  # codes whose sum fits in an i32
_POOL = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "count_include_pad": 0,
    "kernel_shape": None,
    "pads": None,
    "strides": None,
}


def _average(b: GraphBuilder, x: Value, a: SimpleNamespace) -> Value:
    return _channels_last(b, x, a, lambda v: b.AveragePool(v, **{k: getattr(a, k) for k in _POOL}))


@op(
    f"{DOMAIN}.QLinearGlobalAveragePool",
    signature=FormalSignature.of("X x_scale x_zero_point y_scale y_zero_point", channels_last=0),
)
class QLinearGlobalAveragePool:
    """The mean of the codes of each channel, requantised.

    Codes of planes that may have more of them than an i32 can add up are dequantised first.
    """

    def composite(b, x, scale, zero, out_scale, out_zero, *, a):
        planes = range(1, x.tensor.rank - 1) if a.channels_last else range(2, x.tensor.rank)
        count = dim.product(x.tensor.shape[k] for k in planes)
        if not isinstance(count, int) or not 0 < count <= _ADDED_CODES:
            return _between(
                b, x, (scale, zero, out_scale, out_zero), lambda v: _channels_last(b, v, a, b.GlobalAveragePool)
            )
        total = b.ReduceSum(b.Cast(x, to=I32), b.constant(np.array(planes, np.int64)))
        centred = b.Sub(total, b.Mul(b.Cast(zero, to=I32), b.constant(np.int32(count))))
        mean = b.Div(b.Cast(centred, to=F32), b.constant(np.float32(count)))
        return b.QuantizeLinear(b.Mul(mean, scale), out_scale, out_zero)


_CONV = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}


@op(
    f"{DOMAIN}.QLinearConv",
    signature=FormalSignature.of(
        "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?", "y", channels_last=0, **_CONV
    ),
)
class QLinearConvOfOrt:
    """QLinearConv on possibly channels-last images; the weight keeps ONNX's order."""

    def composite(b, x, *rest, a):
        return _channels_last(b, x, a, lambda v: b.QLinearConv(v, *rest, **{k: getattr(a, k) for k in _CONV}))


@op(f"{DOMAIN}.QLinearConcat", signature=FormalSignature.of("Y_scale Y_zero_point inputs*", axis=0))
class QLinearConcat:
    """Concat of operands with a scale and a zero point each."""

    def composite(b, scale, zero, *xs, a):
        if not xs or len(xs) % 3:
            raise Invalid(f"`QLinearConcat` takes groups of data, scale and zero point, not {len(xs)} operands")
        parts = [b.DequantizeLinear(*xs[k : k + 3]) for k in range(0, len(xs), 3)]
        return b.QuantizeLinear(parts[0] if len(parts) == 1 else b.Concat(*parts, axis=a.axis), scale, zero)


@op(
    f"{DOMAIN}.QGemm",
    signature=FormalSignature.of(
        "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?", alpha=1.0, transA=0, transB=0
    ),
    tags=("contraction",),
)
class QGemm:
    """`alpha * sa * sb * ((A' - za) @ (B' - zb) + C)`, quantised if the result has a scale.

    Scale and zero point of B may be per column.
    """

    def composite(b, x, x_scale, x_zero, y, y_scale, y_zero, c=None, scale=None, zero=None, *, a):
        left, right = (b.Transpose(v) if swap else v for v, swap in ((x, a.transA), (y, a.transB)))
        acc = b.MatMulInteger(left, right, x_zero, y_zero)
        acc = acc if c is None else b.Add(acc, c)
        if a.alpha != 1:
            x_scale = b.Mul(b.constant(np.float32(a.alpha)), x_scale)
        if scale is None or zero is None:
            return scaled(b, acc, x_scale, y_scale)
        return integers(b, scaled(b, acc, x_scale, y_scale, by=scale), zero, zero.tensor.dtype)


def _to_float(b: GraphBuilder, acc: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    y = b.Mul(b.Cast(acc, to=F32), b.Mul(a_scale, b_scale))
    return y if bias is None else b.Add(y, bias)


@op(
    f"{DOMAIN}.MatMulIntegerToFloat",
    signature=FormalSignature.of("A B a_scale b_scale a_zero_point? b_zero_point? bias?"),
)
class MatMulIntegerToFloat:
    """An integer product, dequantised: `(A - za) @ (B - zb) * (sa * sb) + bias`.

    Scale and zero point of B may be per column.
    """

    def composite(b, x, y, x_scale, y_scale, x_zero=None, y_zero=None, bias=None, *, a):
        return _to_float(b, b.MatMulInteger(x, y, x_zero, y_zero), x_scale, y_scale, bias)


@op(f"{DOMAIN}.DynamicQuantizeMatMul", signature=FormalSignature.of("A B b_scale b_zero_point? bias?"))
class DynamicQuantizeMatMul:
    """A product with the left side quantised by its own range."""

    def composite(b, x, y, y_scale, y_zero=None, bias=None, *, a):
        quantized, scale, zero = b.DynamicQuantizeLinear(x, n_results=3)
        return _to_float(b, b.MatMulInteger(quantized, y, zero, y_zero), scale, y_scale, bias)


@op(
    f"{DOMAIN}.QLinearWhere", signature=FormalSignature.of("condition X x_scale x_zero Y y_scale y_zero z_scale z_zero")
)
class QLinearWhere:
    """Where on operands with a scale and a zero point each."""

    def composite(b, condition, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero, *, a):
        taken = b.Where(condition, b.DequantizeLinear(x, x_scale, x_zero), b.DequantizeLinear(y, y_scale, y_zero))
        return b.QuantizeLinear(taken, scale, zero)


@op(
    f"{DOMAIN}.QEmbedLayerNormalization",
    signature=FormalSignature.of(
        "input_ids segment_ids? word position segment? gamma beta mask? word_scale position_scale segment_scale? "
        "gamma_scale beta_scale word_zero position_zero segment_zero? gamma_zero beta_zero",
        "output mask_index?",
        epsilon=1e-12,
    ),
)
class QEmbedLayerNormalization:
    """EmbedLayerNormalization of quantised tables and weights."""

    def composite(b, ids, segments, *rest, a):
        quantised, mask, scales, zeros = rest[:5], rest[5], rest[6:11], rest[11:]
        words, positions, table, gamma, beta = (
            v if v is None else b.DequantizeLinear(v, scale, zero)
            for v, scale, zero in zip(quantised, scales, zeros, strict=True)
        )
        return b.op(
            f"{DOMAIN}.EmbedLayerNormalization", ids, segments, words, positions, table, gamma, beta, mask,
            epsilon=a.epsilon, n_results=a.n_results,
        )  # fmt: skip


_X = "X X_scale X_zero_point? Y_scale Y_zero_point?"
ALL = (
    _binary("QLinearAdd", _sum),
    _binary("QLinearMul", _product),
    _unary("QLinearLeakyRelu", _X, lambda b, x, a: b.LeakyRelu(x, alpha=a.alpha), alpha=float(np.float32(0.01))),
    _unary("QLinearSigmoid", _X, lambda b, x, a: b.Sigmoid(x)),
    _unary("QLinearSoftmax", "X X_scale x_zero_point? y_scale y_zero_point", _softmax, axis=-1, opset=None),
    QLinearGlobalAveragePool,
    _unary("QLinearAveragePool", "X x_scale x_zero_point? y_scale y_zero_point?", _average, channels_last=0, **_POOL),
    QLinearConvOfOrt,
    QLinearConcat,
    QLinearWhere,
    QEmbedLayerNormalization,
    QGemm,
    MatMulIntegerToFloat,
    DynamicQuantizeMatMul,
)
