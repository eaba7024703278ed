"""Products of tokens with the matrices of their experts, as internal operators."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import F32, I32
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.attention import quotient
from occ.compiler.ir.ops.contrib.block_quantized import field
from occ.compiler.ir.ops.quantize import dequantized
from occ.compiler.ir.shape import equal_dims, equal_shapes, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, literal
from occ.compiler.ir.te.function import Builder, Tensor


def _summed(t: Builder, x: Tensor, experts: Tensor, n: int, weight: Callable[..., Expr], bias: Tensor | None) -> Tensor:
    """`x[r, s] @ weight[experts[r, s]]' + bias[experts[r, s]]` in f32; a single slot of `x` is shared by all."""
    rows, slots = experts.shape
    one = x.shape[1] == 1

    def term(r: Expr, s: Expr, j: Expr, k: Expr) -> Expr:
        given = x[r, literal(0, s.dtype) if one else s, k]
        return f.in_acc(given) * weight(experts[r, s], j, k)

    acc = t.sum((rows, slots, n), [x.shape[2]], term, name="expert_sum")

    def element(r: Expr, s: Expr, j: Expr) -> Expr:
        total = cast(F32, acc[r, s, j])
        return total if bias is None else total + cast(F32, bias[experts[r, s], j])

    return t.map(acc.shape, element, name="expert_product")


def _check_experts(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None, bits: int, block: int
) -> None:
    experts, n, width = codes.shape
    k = width * (8 // bits)
    equal_dims(x.shape[2], k, "the inner extents of the experts' weights")
    blocks = quotient("QMoE", k, block) if scales.rank == 3 else 1
    wanted = (experts, n, blocks) if scales.rank == 3 else (experts, n)
    packed = (experts, n, -(-blocks * bits // 8)) if scales.rank == 3 else (experts, -(-n * bits // 8))
    for what, v, shape in (("scales", scales, wanted), ("zero points", zeros, packed)):
        if v is not None and v.shape != shape:
            raise Invalid(f"`QMoE`: {what} have shape {show_shape(v.shape)}, not {show_shape(shape)}")
    if bias is not None:
        equal_shapes(bias.shape, (experts, n), "the bias of experts")


@op("expert_product", own_attributes="", tags=("contraction",))
class ExpertProduct:
    """Rows `[R, 1 or k, K]` times the matrices `[E, N, K]` of their experts `i64[R, k]`.

    The result is f32 `[R, k, N]`.
    """

    operands = ("x", "experts", "weights", "bias")

    def body(t, x, experts, weights, bias=None, *, a):
        equal_dims(x.shape[2], weights.shape[2], "the inner extents of the experts' weights")
        if bias is not None:
            equal_shapes(bias.shape, weights.shape[:2], "the bias of experts")
        return _summed(t, x, experts, weights.shape[1], lambda e, n, k: cast(F32, weights[e, n, k]), bias)


@op("expert_product_of_blocks", own_attributes="bits=int block=int", tags=("contraction",))
class ExpertProductOfBlocks:
    """`expert_product` of block-quantised matrices, codes `u8[E, N, K*bits/8]` with the low bits first.

    Scales are `[E, N]` or, by blocks of K, `[E, N, K/block]`.

    Zero points are packed likewise along their last axis, `2**(bits - 1)` by default.
    """

    operands = ("x", "experts", "codes", "scales", "zeros", "bias")

    def body(t, x, experts, codes, scales, zeros=None, bias=None, *, a):
        bits, each = a.bits, 8 // a.bits
        _check_experts(x, codes, scales, zeros, bias, bits, a.block)

        def zero(e: Expr, n: Expr, k: Expr) -> Expr:
            if zeros is None:
                return literal(1 << (bits - 1), I32)
            if zeros.rank == 2:
                return cast(I32, field(zeros[e, n // each], n, bits))
            return cast(I32, field(zeros[e, n, k // a.block // each], k // a.block, bits))

        def weight(e: Expr, n: Expr, k: Expr) -> Expr:
            code = cast(I32, field(codes[e, n, k // each], k, bits)) - zero(e, n, k)
            scale = scales[e, n] if scales.rank == 2 else scales[e, n, k // a.block]
            return dequantized(code, scale, None, F32)

        return _summed(t, x, experts, codes.shape[1], weight, bias)


ALL = (ExpertProduct, ExpertProductOfBlocks)
