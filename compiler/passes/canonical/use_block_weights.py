"""Keeps block-quantised weights as codes, which constant folding would turn into floats."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import OpRule, Rewriter, erase_dead
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass
from occ.runtime.mapped_arrays import release

_BITS = {"i2": 2, "u2": 2, "i4": 4, "u4": 4, "i8": 8, "u8": 8}
_LEAST_BLOCK = 16


@dataclass(frozen=True)
class _Quantised:
    """A constant matrix that DequantizeLinear reads.

    Attributes:
        codes: `[N, K]`.
        scales: `[N, blocks]`; a scale for a whole column of the product counts as one block.
        zeros: `[N, blocks]` of the element type of the codes, or None.
        size: of a block.
    """

    deq: Op
    codes: Weight
    turned: bool
    scales: np.ndarray
    zeros: np.ndarray | None
    size: int


def product(op: Op, rw: Rewriter, *, columns: bool = False) -> bool:
    """`MatMul` or `Gemm` with a constant that DequantizeLinear reads in blocks of the summed axis --> `MatMulNBits`."""
    found = _quantised(op, columns=columns)
    if found is None:
        return False
    x, c = op.operands[0], (*op.operands, None)[2]
    assert x is not None
    dtype, size = found.codes.tensor.dtype, found.size
    bits, data = _BITS[dtype.name], found.codes.data
    unsigned = _unsigned(data if found.turned else data.T, bits, dtype.kind)
    n, k = unsigned.shape
    b = rw.builder(op)
    packed = _packed(np.pad(unsigned, ((0, 0), (0, -k % size))), bits)
    operands = [b.constant(packed.reshape(n, -1, size * bits // 8)), b.constant(np.ascontiguousarray(found.scales))]
    if found.zeros is not None:
        operands.append(b.constant(_packed(_unsigned(found.zeros, bits, dtype.kind), bits)))
    elif dtype.kind == "u":
        operands.append(b.constant(np.zeros((n, -(-found.scales.shape[1] * bits // 8)), np.uint8)))
    made = b.op("com.microsoft.MatMulNBits", x, *operands, K=k, N=n, bits=bits, block_size=size)
    rw.replace(op, [made if c is None else b.Add(made, c)])
    if all(u is op for u in found.deq.result.users):
        release([data])  # right away: the weights of a model may be most of its memory
    return True


def column(op: Op, rw: Rewriter) -> bool:
    """Like `product`, for scales per column or for the whole matrix, which count as one block."""
    return product(op, rw, columns=True)


def _quantised(op: Op, *, columns: bool) -> _Quantised | None:
    """The constant that a product reads through DequantizeLinear; None if it does not have this form."""
    form = op.matrix_product
    if form is None or form.left_transposed or form.is_scaled:
        return None
    turned = form.right_transposed
    maker = _maker(op.operands[1])
    if maker is not None and maker.name == "Transpose" and maker.a.perm in (None, (1, 0)):
        maker, turned = _maker(maker.operands[0]), not turned
    if maker is None or maker.name != "DequantizeLinear":
        return None
    data, scales, zeros = (*maker.operands, None)[:3]
    if not isinstance(data, Weight) or not isinstance(scales, Weight) or not isinstance(zeros, Weight | None):
        return None
    if (
        data.data.ndim != 2
        or data.tensor.dtype.name not in _BITS
        or not _same_type(op.operands[0], maker.result, scales)
    ):
        return None
    n, k = data.data.shape if turned else data.data.shape[::-1]
    size, axis = maker.a.block_size, maker.a.axis % 2
    given = [v if v is None else v.data for v in (scales, zeros)]
    if size and size >= _LEAST_BLOCK and not size & (size - 1) and axis == int(turned):
        by_column = [v if v is None or turned else v.T for v in given]
    elif columns and not size and (scales.data.size == 1 or axis != int(turned)) and not _codes(op.operands[0]):
        size = max(_LEAST_BLOCK, 1 << (k - 1).bit_length())
        by_column = [v if v is None else np.broadcast_to(v.reshape(-1, 1), (n, 1)) for v in given]
    else:
        return None
    assert by_column[0] is not None
    return _Quantised(maker, data, turned, by_column[0], by_column[1], size)


def _same_type(x: Value | None, *others: Value) -> bool:
    return x is not None and bool(x.tensor.rank) and all(v.tensor.dtype == x.tensor.dtype for v in others)


def _codes(x: Value | None) -> bool:
    """Whether a value is itself quantised, so that the product is an integer one."""
    maker = _maker(x)
    return maker is not None and maker.name == "DequantizeLinear"


def _maker(value: Value | None) -> Op | None:
    return None if value is None else value.defining_op


def _unsigned(codes: np.ndarray, bits: int, kind: str) -> np.ndarray:
    """Codes as u8; signed ones are shifted up, and their zero point with them."""
    if kind == "u":
        return codes.astype(np.uint8)
    return (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis packed into bytes, low bits first."""
    each = 8 // bits
    parts = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each)
    shifted = parts << (bits * np.arange(each, dtype=np.uint8))
    return np.bitwise_or.reduce(shifted, -1).astype(np.uint8)


RULES: dict[str, tuple[OpRule, ...]] = {"MatMul": (product,), "Gemm": (product,)}
_WITH_COLUMNS: dict[str, tuple[OpRule, ...]] = {"MatMul": (column,), "Gemm": (column,)}


@dataclass(frozen=True)
class UseBlockWeights(Pass):
    """Turns products with constants that DequantizeLinear reads in blocks into `MatMulNBits`, before they are folded.

    `%w = DequantizeLinear(@q : i4[K,N], @s) {axis=0, block_size=32}  %y = MatMul(%x, %w)` -->
    `%y = com.microsoft.MatMulNBits(%x, @q.packed, @s.packed) {K, N, bits=4, block_size=32}`
    """

    name: ClassVar[str] = "use-block-weights"
    columns: bool = False  # one scale per result column also counts as a block

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        changes = rw.apply(_WITH_COLUMNS if self.columns else RULES)
        erase_dead(m)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
