"""The compiler's own ops between sums and codes, the integers of quantised tensors."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.conversion import quantize
from occ.compiler.ir.dtype import F32, I32
from occ.compiler.ir.expr import call, cast, clamp, literal
from occ.compiler.ir.ops.spec import op
from occ.compiler.ir.shape import broadcast_shapes


@op("fma", tags=("elementwise",))
class Fma:
    """`x * y + z`, rounded once."""

    def body(t, x, y, z, *, a):
        shape = broadcast_shapes(x.shape, y.shape, z.shape, op="fma")
        return t.map(shape, lambda *i: call("fma", x.at(i), y.at(i), z.at(i)), name="fma")


@op("saturate", tags=("elementwise",))
class Saturate:
    """The integers of type `to` nearest to `x`, halves to even, plus `zero`; finite values beyond its range saturate.

    `x` is cut to the range before it is rounded, so that the conversion needs no more tests.
    """

    def body(t, x, zero=None, *, a):
        shape = x.shape if zero is None else broadcast_shapes(x.shape, zero.shape, op="saturate")

        def element(*i):
            value, shift = x.at(i), None if zero is None else zero.at(i)
            if not a.to.is_int or x.dtype != F32:
                return quantize(value, a.to, shift)
            low, high = (literal(n, I32) for n in (a.to.lowest, a.to.highest))
            if shift is None:
                return cast(a.to, call("nearest", clamp(value, cast(F32, low), cast(F32, high))))
            moved = cast(I32, shift)
            whole = call("nearest", clamp(value, cast(F32, low - moved), cast(F32, high - moved)))
            return cast(a.to, whole + moved)

        return t.map(shape, element, name="saturate")


ALL = (Fma, Saturate)
