"""Rewrites DequantizeLinear, an operator, QuantizeLinear as one integer operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import OpRule, Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.canonical.quantised import Codes, alone, bias_codes, codes_of, same_scale, without_cut
from occ.runtime.dataclass import dataclass


def product(op: Op, rw: Rewriter) -> bool:
    """`QuantizeLinear(Relu(Conv(DequantizeLinear(x), DequantizeLinear(w), b)))` --> `QLinearConv`, and the like."""
    to = Codes.of_result(op)
    inner = None if to is None else without_cut(op, to)
    if to is None or inner is None or not alone(inner):
        return False
    made = _INTEGER.get(inner.name, _moved)(inner, to, rw)
    if made is None:
        return False
    rw.replace(op, [made])
    return True


def product_before_relu(op: Op, rw: Rewriter) -> bool:
    """`QuantizeLinear(Relu(Conv(...)))` with a zero point of 0 --> `Relu(QLinearConv(...))`: a code has the sign of its number."""
    to = Codes.of_result(op)
    relu = op.operands[0].defining_op if to is not None and op.operands[0] is not None else None
    if to is None or relu is None or relu.name != "Relu" or not alone(relu) or np.any(to.point):
        return False
    inner = relu.operands[0].defining_op if relu.operands[0] is not None else None
    if inner is None or not alone(inner) or inner.name not in _INTEGER:
        return False
    made = _INTEGER[inner.name](inner, to, rw)
    if made is None:
        return False
    rw.replace(op, [rw.builder(op).Relu(made)])
    return True


def _biased(
    op: Op, axis: int, to: Codes, rw: Rewriter, *, constant: bool = False
) -> tuple[Codes, Codes, Value | None] | None:
    """The codes of a product's operands, and the bias in units of its sums.

    None if one of them has none, or if weights that must be `constant` are not.
    """
    x, w = codes_of(op.operands[0]), codes_of(op.operands[1], axis=axis)
    if x is None or w is None or not _fits(x, w, to) or (constant and not isinstance(w.data, Weight)):
        return None
    bias = op.operands[2] if len(op.operands) > 2 else None
    sums = bias_codes(bias, x, w, rw.builder(op))
    return None if bias is not None and sums is None else (x, w, sums)


def _conv(op: Op, to: Codes, rw: Rewriter) -> Value | None:
    found = _biased(op, 0, to, rw, constant=True)
    if found is None:
        return None
    (x, w, sums), b = found, rw.builder(op)
    return b.QLinearConv(*x.operands(b), *w.operands(b), *to.scales(b), sums, **op.attrs)


def _gemm(op: Op, to: Codes, rw: Rewriter) -> Value | None:
    found = _biased(op, 0 if op.a.transB else 1, to, rw) if op.a.alpha == op.a.beta == 1 else None
    if found is None:
        return None
    (x, w, sums), b = found, rw.builder(op)
    attrs = {"transA": op.a.transA, "transB": op.a.transB}
    return b.op("com.microsoft.QGemm", *x.operands(b), *w.operands(b), sums, *to.scales(b), **attrs)


def _matmul(op: Op, to: Codes, rw: Rewriter) -> Value | None:
    x, w = codes_of(op.operands[0]), codes_of(op.operands[1], axis=-1)
    if x is None or w is None or not _fits(x, w, to):
        return None
    b = rw.builder(op)
    return b.QLinearMatMul(*x.operands(b), *w.operands(b), *to.scales(b))


def _binary(op: Op, to: Codes, rw: Rewriter) -> Value | None:
    x, y = map(codes_of, op.operands)
    if x is None or y is None or not x.dtype == y.dtype == to.dtype:
        return None
    b = rw.builder(op)
    return b.op(f"com.microsoft.QLinear{op.name}", *x.operands(b), *y.operands(b), *to.scales(b))


def _moved(op: Op, to: Codes, rw: Rewriter) -> Value | None:
    """Codes with one scale move exactly as their elements do."""
    if not op.spec.moves or len(op.results) != 1:
        return None
    x = codes_of(op.operands[0])
    if x is None or not same_scale(x, to):
        return None
    return rw.builder(op).op(op.name, x.data, *op.operands[1:], **op.attrs)


def _fits(x: Codes, w: Codes, to: Codes) -> bool:
    """Whether onnxruntime multiplies such codes as integers: signed activations require signed weights."""
    return x.dtype == to.dtype and (w.dtype == x.dtype or w.dtype.kind == "i")


_INTEGER: dict[str, Callable[[Op, Codes, Rewriter], Value | None]] = {
    "Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "Add": _binary, "Mul": _binary,
}  # fmt: skip


def there_and_back(op: Op, rw: Rewriter) -> bool:
    """`QuantizeLinear(DequantizeLinear(x))` with the same scale and zero point --> `x`."""
    to, x = Codes.of_result(op), codes_of(op.operands[0])
    if to is None or x is None or not same_scale(x, to):
        return False
    rw.replace(op, [x.data])
    return True


def float_product(op: Op, rw: Rewriter) -> bool:
    """`MatMul(DequantizeLinear(a), DequantizeLinear(b))` without a quantised result --> `MatMulIntegerToFloat`."""
    x, w = codes_of(op.operands[0]), codes_of(op.operands[1], axis=-1)
    readers = op.result.users
    if x is None or w is None or any(u.name in ("QuantizeLinear", "Relu", "Clip") for u in readers):
        return False
    if w.dtype != x.dtype and w.dtype.kind != "i":
        return False
    b = rw.builder(op)
    (a, sa, za), (y, sb, zb) = x.operands(b), w.operands(b)
    rw.replace(op, [b.op("com.microsoft.MatMulIntegerToFloat", a, y, sa, sb, za, zb)])
    return True


RULES: dict[str, tuple[OpRule, ...]] = {
    "QuantizeLinear": (there_and_back, product, product_before_relu),
    "MatMul": (float_product,),
}


@dataclass(frozen=True)
class UseIntegers(Pass):
    """Turns operators between DequantizeLinear and QuantizeLinear into operators on codes, as onnxruntime does.

    Products then are integer sums, scaled and rounded once. A Relu or Clip that saturation implies is dropped, and any
    other Relu works on codes if 0 is the code of 0.

    `%a = DequantizeLinear(%x, @s, @z) %y = Conv(%a, DequantizeLinear(@w, @t)) %q = QuantizeLinear(Relu(%y), @u, @v)`
    --> `%q = QLinearConv(%x, @s, @z, @w, @t, @0, @u, @v)`
    """

    name: ClassVar[str] = "use-integers"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        with np.errstate(all="ignore"):
            changes = rw.apply(RULES)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
