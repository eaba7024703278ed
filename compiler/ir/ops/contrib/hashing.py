"""MurmurHash3 of com.microsoft."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import I32, STR, U32, U64
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.te.expr import Expr, binary, cast, literal
from occ.compiler.ir.types import TensorType


@op("murmur3", own_attributes="seed=int")
class Murmur3:
    """32-bit MurmurHash3 of each element, u32 or u64, as bytes: u32."""

    operands = ("x",)

    def body(t, x, *, a):
        def word(v: int) -> Expr:
            return literal(v & 0xFFFFFFFF, U32)

        def turned(v: Expr, by: int) -> Expr:
            return binary("shl", v, word(by)) ^ binary("shr", v, word(32 - by))

        def mixed(h: Expr, v: Expr) -> Expr:
            h = h ^ turned(v * word(0xCC9E2D51), 15) * word(0x1B873593)
            return turned(h, 13) * word(5) + word(0xE6546B64)

        def element(*i: Expr) -> Expr:
            h = mixed(word(a.seed), cast(U32, x[i]))
            if x.dtype.bits == 64:
                h = mixed(h, cast(U32, binary("shr", x[i], literal(32, x.dtype))))
            h = h ^ word(x.dtype.bits // 8)
            for by, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
                h = (h ^ binary("shr", h, word(by))) * word(factor)
            return h ^ binary("shr", h, word(16))

        return t.map(x.shape, element, name="murmur3")


@op("murmur3_of_text", host="murmur3_of_text", own_attributes="seed=int")
class Murmur3OfText:
    """32-bit MurmurHash3 of each UTF-8 string: u32."""

    operands = ("x",)

    def infer(x, *, a):
        return TensorType(U32, x.type.shape)


@op(f"{DOMAIN}.MurmurHash3", signature=FormalSignature.of("X", positive=1, seed=0))
class MurmurHash3:
    """32-bit MurmurHash3 of each element: u32, or i32 if not `positive`. ML.NET writes it for hashed features."""

    def composite(b, x, *, a):
        dtype = x.tensor.dtype
        if dtype == STR:
            y = b.murmur3_of_text(x, seed=a.seed)
        elif dtype.bits in (32, 64):
            y = b.murmur3(b.BitCast(x, to=U32 if dtype.bits == 32 else U64), seed=a.seed)
        else:
            raise Invalid(f"`MurmurHash3` of {x.tensor}")
        return y if a.positive == 1 else b.BitCast(y, to=I32)


ALL = (
    Murmur3,
    Murmur3OfText,
    MurmurHash3,
)
