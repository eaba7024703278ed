"""Operators of com.microsoft on block-quantised weights of 2, 4 or 8 bits.

Sources: the schemas of onnxruntime 1.31 (docs/ContribOperators.md) and what its CPU provider computes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.dtype import I32, I64, U8
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.ops.movement import unflatten
from occ.compiler.ir.ops.quantize import dequantized
from occ.compiler.ir.shape import equal_dims, equal_shapes, normalize_axis, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.conversion import FLOAT8
from occ.compiler.ir.te.expr import Expr, binary, cast, literal, where, wrap
from occ.compiler.ir.te.function import Tensor

_LEAST_BLOCK = 16
_LEVELS = range(5)  # accuracy levels: unset, f32, f16, bf16, int8


def field(byte: Expr, k: Expr, bits: int) -> Expr:
    """Element `k` of a byte that packs codes of `bits`, low bits first."""
    if bits == 8:
        return byte
    return binary("shr", byte, cast(byte.dtype, k % (8 // bits) * bits)) & ((1 << bits) - 1)


def check_blocks(name: str, bits: int, size: int | None) -> None:
    """Check that the code width and block size are valid.

    Raises:
        Invalid: they are not.
    """
    if bits not in (2, 4, 8):
        raise Invalid(f"`{name}` has codes of {bits} bits", code="OCC0107", help="2, 4 and 8 bits are defined")
    if size is None or size < _LEAST_BLOCK or size & (size - 1):
        raise Invalid(f"`{name}` has blocks of {size}", code="OCC0107", help="powers of two from 16 on are defined")


def _check_size(what: str, v: Tensor, shape: Sequence[int]) -> None:
    """Check the shape of an operand, which may be flat in older files.

    The runtime checks what cannot be proved.

    Raises:
        Invalid: it is wrong.
    """
    row = (int(product(shape)),)
    equal_shapes(v.shape, row if v.rank == 1 else shape, f"`MatMulNBits`: {what}")


def check_products(x: Tensor, operands: Sequence[Tensor | None], a) -> None:
    """Check the attributes and operands of a `MatMulNBits`.

    Raises:
        Invalid: they are wrong, or the weight is packed for GPUs.
    """
    packed, scales, zeros, groups, bias = operands
    bits, size = a.bits, a.block_size
    check_blocks("MatMulNBits", bits, size)
    if a.weight_prepacked:
        raise Invalid(
            f"`MatMulNBits` with weight_prepacked={a.weight_prepacked} has a weight in the layout of a CUDA kernel",
            code="OCC0107",
            help="export the model for CPU, without prepacked weights",
        )
    if a.accuracy_level not in _LEVELS:
        raise Invalid(f"`MatMulNBits` has accuracy_level={a.accuracy_level}", code="OCC0107", help="0 to 4 are defined")
    if not a.K or not a.N or a.K < 1 or a.N < 1:
        raise Invalid(f"`MatMulNBits` with K={a.K} and N={a.N}", code="OCC0107")
    equal_dims(x.shape[-1], a.K, "`MatMulNBits`: inner extents")
    blocks = -(-a.K // size)
    _check_size("B", packed, (a.N, blocks, size * bits // 8))
    _check_size("scales", scales, (a.N, blocks))
    if zeros is not None:
        _check_size("zero_points", zeros, (a.N, blocks if zeros.dtype.is_float else -(-blocks * bits // 8)))
    if groups is not None and groups.shape not in ((a.K,), (blocks * size,)):
        raise Invalid(f"`MatMulNBits`: g_idx has shape {show_shape(groups.shape)}, not [{a.K}]")
    if bias is not None:
        _check_size("bias", bias, (a.N,))


@op(
    f"{DOMAIN}.MatMulNBits",
    signature=FormalSignature.of(
        "A B scales zero_points? g_idx? bias?",
        K=None,
        N=None,
        bits=4,
        block_size=None,
        accuracy_level=0,
        weight_prepacked=0,
    ),
    tags=("contraction",),
)
class MatMulNBits:
    """`A @ dequantised(B)' + bias`, summed in f32.

    B is `[N, blocks, bytes]`, blocks of K packed from the low bits; each block has a scale and a zero point, packed
    likewise or as floats, `2**(bits - 1)` by default. `g_idx` maps each element of K to its block.
    `accuracy_level` is the precision that A may be rounded to: 4 allows int8, block by block; 0 and 1 allow nothing.
    """

    def body(t, x, packed, scales, zeros=None, groups=None, bias=None, *, a):
        check_products(x, (packed, scales, zeros, groups, bias), a)
        bits, size = a.bits, a.block_size
        blocks, each = -(-a.K // size), 8 // bits
        dtype = x.dtype.acc

        def at(v, n, block):
            flat = n * blocks + block
            return v[flat] if v.rank == 1 else v[unflatten(flat, v.shape)]

        def zero(n, block):
            if zeros is None:
                return literal(1 << (bits - 1), I32)
            if zeros.dtype.is_float:
                return at(zeros, n, block)
            place = n * -(-blocks // each) + block // each
            byte = zeros[place] if zeros.rank == 1 else zeros[unflatten(place, zeros.shape)]
            return cast(I32, field(byte, block, bits))

        def code(n, k):
            place = (n, k // size, k % size // each)
            if packed.rank == 1:
                place = ((n * blocks + place[1]) * (size // each) + place[2],)
            return field(packed[place], k % size, bits)

        def weight(n, k):
            block = k // size if groups is None else cast(I64, groups[k])
            z = zero(n, block)
            if z.dtype.is_float:
                return cast(dtype, (cast(z.dtype, code(n, k)) - z) * cast(z.dtype, at(scales, n, block)))
            return dequantized(cast(I32, code(n, k)) - z, at(scales, n, block), None, dtype)

        w = t.map((a.N, a.K), weight, name="weight")
        shape = (*x.shape[:-1], a.N)
        acc = t.sum(shape, [a.K], lambda *i: f.in_acc(x[(*i[:-2], i[-1])]) * w[i[-2], i[-1]], name="matmul")

        def element(*i):
            return cast(x.dtype, acc[i] if bias is None else acc[i] + f.in_acc(bias[i[-1]]))

        return t.map(shape, element, name="matmul_nbits")


@op(
    f"{DOMAIN}.GatherBlockQuantized",
    signature=FormalSignature.of(
        "data indices scales zero_points?", bits=4, block_size=128, gather_axis=0, quantize_axis=1
    ),
)
class GatherBlockQuantized:
    """Gather from block-quantised data, dequantised: `(data - zero_point) * scale` of the rows in `indices`.

    `data` is i4 or u4, u8 with codes of 2, 4 or 8 bits along its last axis, or a narrow float. Default zero points are
    0, or `2**(bits - 1)` for u8. Negative indices count from the end; those out of range yield zeros.
    """

    def body(t, data, indices, scales, zeros=None, *, a):
        narrow = data.dtype.is_float
        if narrow:
            _check_narrow(data, zeros, a.block_size)
        else:
            check_blocks("GatherBlockQuantized", a.bits, a.block_size)
        gathered = normalize_axis(a.gather_axis, data.rank, "GatherBlockQuantized")
        blocked = normalize_axis(a.quantize_axis, data.rank, "GatherBlockQuantized")
        bits = a.bits if data.dtype == U8 else 8
        each = 8 // bits
        shape = (*data.shape[:-1], data.shape[-1] * each)
        if data.dtype == U8 and (gathered != 0 or (each > 1 and blocked == 0)):
            raise Invalid("`GatherBlockQuantized`: u8 is gathered along axis 0, but its blocks are along another one")
        size = a.block_size or shape[blocked]
        _check_scales(scales, shape, blocked, size, narrow)
        n, q = data.shape[gathered], indices.rank

        def zero(block):
            if zeros is not None:
                return field(zeros[(*block[:-1], block[-1] // each)], block[-1], bits)
            return literal(1 << (bits - 1), U8) if data.dtype == U8 else None

        def element(*i):
            asked = cast(I64, indices[i[gathered : gathered + q]])
            row = where(asked < 0, asked + n, asked)
            at = (*i[:gathered], row, *i[gathered + q :])
            place = tuple(p // size if k == blocked else p for k, p in enumerate(at))
            block = tuple(wrap(0) if m == 1 else p for p, m in zip(place, scales.shape, strict=True))
            code = field(data[(*at[:-1], at[-1] // each)], at[-1], bits)
            value = dequantized(code, scales[block], zero(block), scales.dtype)
            return where((row >= 0) & (row < n), value, literal(0, scales.dtype))

        return t.map((*shape[:gathered], *indices.shape, *shape[gathered + 1 :]), element, name="gather")


def _check_narrow(data: Tensor, zeros: Tensor | None, size: int) -> None:
    if data.dtype.name not in (*FLOAT8, "f4e2m1") or zeros is not None:
        raise Invalid(f"`GatherBlockQuantized` of {data.dtype}{' with zero points' if zeros is not None else ''}")
    if size:
        check_blocks("GatherBlockQuantized", 8, size)


def _check_scales(scales: Tensor, shape: Sequence[Dim], blocked: int, size: Dim, broadcast: bool) -> None:
    wanted = [-(-n // size) if k == blocked else n for k, n in enumerate(shape)]
    fits = scales.rank == len(wanted) and all(
        m == n or (broadcast and m == 1 and k != blocked)
        for k, (m, n) in enumerate(zip(scales.shape, wanted, strict=True))
    )
    if not fits:
        raise Invalid(
            f"`GatherBlockQuantized`: scales of shape {show_shape(scales.shape)}, not {show_shape(tuple(wanted))}"
        )


@op("product_by_table", own_attributes="K=int N=int block=int transposed=bool", tags=("contraction",))
class ProductByTable:
    """`A @ B'` for a matrix B `[N, K]` whose codes index a table of values, with block scales.

    Codes have 4 bits, two per byte, high bits first; `A @ B` unless transposed.
    """

    operands = ("A", "B", "absmax", "table")

    def body(t, x, packed, scales, table, *, a):
        size = a.K * a.N
        equal_dims(x.shape[-1], a.K if a.transposed else a.N, "`MatMulBnb4`: inner extents")
        for what, v, n in (("B", packed, -(-size // 2)), ("absmax", scales, -(-size // a.block))):
            if product(v.shape) != n:
                raise Invalid(f"`MatMulBnb4`: {what} has shape {show_shape(v.shape)}, not [{n}]")

        def weight(n, k):
            at = n * a.K + k
            byte = packed[unflatten(at // 2, packed.shape)]
            code = binary("shr", byte, cast(U8, (1 - at % 2) * 4)) & 15
            return cast(x.dtype.acc, table[cast(I64, code)]) * f.in_acc(scales[unflatten(at // a.block, scales.shape)])

        w = t.map((a.N, a.K), weight, name="weight")
        of = (lambda j, k: w[j, k]) if a.transposed else (lambda j, k: w[k, j])
        shape = (*x.shape[:-1], a.N if a.transposed else a.K)
        acc = t.sum(shape, [x.shape[-1]], lambda *i: f.in_acc(x[(*i[:-2], i[-1])]) * of(i[-2], i[-1]), name="matmul")
        return t.map(shape, lambda *i: cast(x.dtype, acc[i]), name="product")


_FP4 = (0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_TABLES = (  # of bitsandbytes, by quant_type: 4-bit floats with sign, and quantiles of the normal distribution
    (*_FP4, *(-v for v in _FP4)),
    (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)  # fmt: skip


@op(
    f"{DOMAIN}.MatMulBnb4",
    signature=FormalSignature.of(
        "A B absmax", K=None, N=None, block_size=None, quant_type=None, training_mode=0, transB=1
    ),
)
class MatMulBnb4:
    """`A @ dequantised(B)'` with 4-bit codes of bitsandbytes: FP4 (`quant_type` 0) or NF4 (1).

    Blocks run over all elements, row by row.
    """

    def composite(b, x, packed, scales, *, a):
        check_blocks("MatMulBnb4", 4, a.block_size)
        if a.quant_type not in (0, 1) or not a.K or not a.N or a.K < 1 or a.N < 1:
            raise Invalid(f"`MatMulBnb4` with quant_type={a.quant_type}, K={a.K} and N={a.N}", code="OCC0107")
        table = b.constant(np.array(_TABLES[a.quant_type], np.float32))
        return b.product_by_table(x, packed, scales, table, K=a.K, N=a.N, block=a.block_size, transposed=bool(a.transB))


ALL = (MatMulNBits, GatherBlockQuantized, ProductByTable, MatMulBnb4)
