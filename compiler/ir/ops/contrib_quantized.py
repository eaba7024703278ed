"""Quantised operators of com.microsoft: computed in f32 between integers, contractions in i32."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.conversion import quantize
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.expr import Expr, cast
from occ.compiler.ir.ops.contraction import matmul
from occ.compiler.ir.ops.contrib import DOMAIN
from occ.compiler.ir.ops.quantize import centred, dequantized
from occ.compiler.ir.ops.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.shape import broadcast_shapes
from occ.compiler.ir.te import Builder, Tensor
from occ.compiler.ir.value import Value


def _one(x: Tensor) -> Expr:
    return x[(0,) * x.rank]


def _zero(x: Tensor | None) -> Expr | None:
    return None if x is None else _one(x)


def _binary(name: str, combine: Callable[[Expr, Expr], Expr]) -> OpSpec:
    """QLinearAdd and QLinearMul: numpy broadcasting, scales of the tensors."""

    def body(
        t: Builder, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y: Tensor, y_scale: Tensor, y_zero: Tensor | None,
        scale: Tensor, zero: Tensor | None = None, *, a: SimpleNamespace,
    ) -> Tensor:  # fmt: skip
        def element(*i: Expr) -> Expr:
            left = dequantized(x.at(i), _one(x_scale), _zero(x_zero), F32)
            right = dequantized(y.at(i), _one(y_scale), _zero(y_zero), F32)
            return quantize(combine(left, right) / _one(scale), x.dtype, _zero(zero))

        return t.map(broadcast_shapes(x.shape, y.shape, op=name), element, name="quantized")

    operands = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
    return OpSpec(f"{DOMAIN}.{name}", {"body": body, "signature": FormalSignature.of(operands, "C")})


def _between(b: GraphBuilder, x: Value, quant: tuple[Value | None, ...], fn: Callable[[Value], Value]) -> Value:
    """`fn` of dequantised data, quantised; `quant` has scale and zero point before and behind."""
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


def _global_average(b: GraphBuilder, x: Value, a: SimpleNamespace) -> Value:
    return _channels_last(b, x, a, b.GlobalAveragePool)


@op(f"{DOMAIN}.QLinearConcat", signature=FormalSignature.of("Y_scale Y_zero_point inputs*", axis=0))
class QLinearConcat:
    """Concat of operands that each have a scale and a zero point."""

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
    """`alpha * sa * sb * ((A' - za) @ (B' - zb) + C)`, quantised where there is a scale; those of B may be per column."""

    def body(t, x, x_scale, x_zero, y, y_scale, y_zero, c=None, scale=None, zero=None, *, a):
        def turned(v: Tensor, swap: int) -> Tensor:
            return t.map(v.shape[::-1], lambda i, j: v[j, i], name="turned") if swap else v

        left, right = turned(x, a.transA), turned(y, a.transB)
        by_column = None if y_zero.type.size == 1 else (lambda i: y_zero[i[-1]])
        acc = matmul(t, "QGemm", centred(t, left, x_zero), centred(t, right, y_zero, by_column))

        def element(*i):
            total = acc[i] if c is None else acc[i] + c.at(i)
            sb = _one(y_scale) if y_scale.type.size == 1 else y_scale[i[-1]]
            value = cast(F32, total) * (_one(x_scale) * sb * a.alpha)
            return value if scale is None or zero is None else quantize(value / _one(scale), zero.dtype, _one(zero))

        return t.map(acc.shape, element, name="qgemm")


def _to_float(b: GraphBuilder, acc: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    y = b.Mul(b.Cast(acc, to=F32), b.Mul(a_scale, b_scale))
    return y if bias is None else b.Add(y, bias)


@op(
    f"{DOMAIN}.MatMulIntegerToFloat",
    signature=FormalSignature.of("A B a_scale b_scale a_zero_point? b_zero_point? bias?"),
)
class MatMulIntegerToFloat:
    """`(A - za) @ (B - zb) * (sa * sb) + bias`; the scales of B may be per column."""

    def composite(b, x, y, x_scale, y_scale, x_zero=None, y_zero=None, bias=None, *, a):
        return _to_float(b, b.MatMulInteger(x, y, x_zero, y_zero), x_scale, y_scale, bias)


@op(f"{DOMAIN}.DynamicQuantizeMatMul", signature=FormalSignature.of("A B b_scale b_zero_point? bias?"))
class DynamicQuantizeMatMul:
    """A product with the left side quantised by its own range."""

    def composite(b, x, y, y_scale, y_zero=None, bias=None, *, a):
        quantized, scale, zero = b.DynamicQuantizeLinear(x, n_results=3)
        return _to_float(b, b.MatMulInteger(quantized, y, zero, y_zero), scale, y_scale, bias)


_X = "X X_scale X_zero_point? Y_scale Y_zero_point?"
ALL = (
    _binary("QLinearAdd", lambda x, y: x + y),
    _binary("QLinearMul", lambda x, y: x * y),
    _unary("QLinearLeakyRelu", _X, lambda b, x, a: b.LeakyRelu(x, alpha=a.alpha), alpha=float(np.float32(0.01))),
    _unary("QLinearSigmoid", _X, lambda b, x, a: b.Sigmoid(x)),
    _unary("QLinearSoftmax", "X X_scale x_zero_point? y_scale y_zero_point", _softmax, axis=-1, opset=None),
    _unary("QLinearGlobalAveragePool", "X x_scale x_zero_point y_scale y_zero_point", _global_average, channels_last=0),
    _unary("QLinearAveragePool", "X x_scale x_zero_point? y_scale y_zero_point?", _average, channels_last=0, **_POOL),
    QLinearConcat,
    QGemm,
    MatMulIntegerToFloat,
    DynamicQuantizeMatMul,
)
