"""Internal ops that make codes of numbers: fused multiply-add, and rounding with saturation."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.shape import broadcast_shapes
from occ.compiler.ir.te.conversion import quantize
from occ.compiler.ir.te.expr import Cast, call, cast


@op("fma", own_attributes="")
class Fma:
    """`x * y + z`, rounded once."""

    def body(t, x, y, z, *, a):
        shape = broadcast_shapes(x.shape, y.shape, z.shape, op="fma")
        return t.map(shape, lambda *i: call("fma", x.at(i), y.at(i), z.at(i)), name="fma")


@op("saturate", own_attributes="to=dtype")
class Saturate:
    """The integers of type `to` nearest to `x`, ties to even, plus `zero`; finite values outside its range saturate."""

    def body(t, x, zero=None, *, a):
        shape = x.shape if zero is None else broadcast_shapes(x.shape, zero.shape, op="saturate")

        def element(*i):
            return quantize(x.at(i), a.to, None if zero is None else zero.at(i))

        return t.map(shape, element, name="saturate")


@op("saturate_f32", own_attributes="to=dtype")
class SaturateF32:
    """The result of `saturate` as f32: no code is packed into bytes to be widened again."""

    def body(t, x, zero=None, *, a):
        shape = x.shape if zero is None else broadcast_shapes(x.shape, zero.shape, op="saturate_f32")

        def element(*i):
            code = quantize(x.at(i), a.to, None if zero is None else zero.at(i))
            return cast(F32, code.arg if isinstance(code, Cast) else code)

        return t.map(shape, element, name="saturate")


ALL = (Fma, Saturate, SaturateF32)
