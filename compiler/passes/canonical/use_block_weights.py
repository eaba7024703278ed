"""Keeps block-quantised weights as codes, which constant folding would make floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import OpRule, Rewriter, erase_dead
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.mapped import release

_BITS = {"i2": 2, "u2": 2, "i4": 4, "u4": 4, "i8": 8, "u8": 8}
_LEAST_BLOCK = 16


def product(op: Op, rw: Rewriter) -> bool:
    """`MatMul` or `Gemm` of a constant that DequantizeLinear reads in blocks along the summed axis --> `MatMulNBits`."""
    found = _dequantised(op)
    if found is None:
        return False
    deq, turned = found
    x, c = op.operands[0], (*op.operands, None)[2]
    data, scales, zeros = (*deq.operands, None)[:3]
    assert x is not None
    assert isinstance(data, Weight)
    assert isinstance(scales, Weight)
    bits, size = _BITS[data.tensor.dtype.name], deq.a.block_size
    n, k = data.data.shape if turned else data.data.shape[::-1]
    rows = (lambda v: v) if turned else (lambda v: v.T)
    b = rw.builder(op)
    codes = np.pad(rows(_unsigned(data, bits)), ((0, 0), (0, -k % size)))
    operands = [b.constant(_packed(codes, bits).reshape(n, -1, size * bits // 8))]
    operands.append(b.constant(np.ascontiguousarray(rows(scales.data))))
    if isinstance(zeros, Weight):
        operands.append(b.constant(_packed(rows(_unsigned(zeros, bits)), bits)))
    elif data.tensor.dtype.kind == "u":
        operands.append(b.constant(np.zeros((n, -(-scales.data.shape[turned] * bits // 8)), np.uint8)))
    made = b.op("com.microsoft.MatMulNBits", x, *operands, K=k, N=n, bits=bits, block_size=size)
    rw.replace(op, [made if c is None else b.Add(made, c)])
    if all(u is op for u in deq.result.users):
        release([data.data])  # at once: the weights of a model may be most of its memory
    return True


def _dequantised(op: Op) -> tuple[Op, bool] | None:
    """The DequantizeLinear that a product reads, and whether its data is `[N, K]`; None if it is none of this form."""
    turned = op.name == "Gemm" and bool(op.a.transB)
    if op.name == "Gemm" and (op.a.transA or op.a.alpha != 1 or op.a.beta != 1):
        return None
    maker = _maker(op.operands[1])
    if maker is not None and maker.name == "Transpose" and maker.a.perm in (None, (1, 0)):
        maker, turned = _maker(maker.operands[0]), not turned
    if maker is None or maker.name != "DequantizeLinear":
        return None
    data, scales, zeros = (*maker.operands, None)[:3]
    if (
        not isinstance(data, Weight)
        or not isinstance(scales, Weight)
        or not (zeros is None or isinstance(zeros, Weight))
    ):
        return None
    size, axis = maker.a.block_size, maker.a.axis % 2
    fits = data.data.ndim == 2 and data.tensor.dtype.name in _BITS and axis == int(turned)
    if not fits or not size or size < _LEAST_BLOCK or size & (size - 1):
        return None
    x = op.operands[0]
    if (
        x is None
        or not x.tensor.rank
        or x.tensor.dtype != maker.result.tensor.dtype
        or x.tensor.dtype != scales.tensor.dtype
    ):
        return None
    return maker, turned


def _maker(value: Value | None) -> Op | None:
    return None if value is None else value.defining_op


def _unsigned(w: Weight, bits: int) -> np.ndarray:
    """Codes as u8; signed ones are moved up, and with them their zero point to the centre."""
    if w.tensor.dtype.kind == "u":
        return w.data.astype(np.uint8)
    return (w.data.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of the last axis in bytes, the low bits first."""
    each = 8 // bits
    parts = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each)
    shifted = parts << (bits * np.arange(each, dtype=np.uint8))
    return np.bitwise_or.reduce(shifted, -1).astype(np.uint8)


RULES: dict[str, tuple[OpRule, ...]] = {"MatMul": (product,), "Gemm": (product,)}


@dataclass(frozen=True)
class UseBlockWeights(Pass):
    """Makes `MatMulNBits` of products with constants that DequantizeLinear reads in blocks, before it is folded.

    `%w = DequantizeLinear(@q : i4[K,N], @s) {axis=0, block_size=32}  %y = MatMul(%x, %w)` -->
    `%y = com.microsoft.MatMulNBits(%x, @q.packed, @s.packed) {K, N, bits=4, block_size=32}`
    """

    name: ClassVar[str] = "use-block-weights"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        changes = rw.apply(RULES)
        erase_dead(m)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
