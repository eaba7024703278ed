"""Operators of com.microsoft on block-quantised weights: codes of 2, 4 or 8 bits, a scale and a zero point for each block.

Sources: the schemas of onnxruntime 1.31 (docs/ContribOperators.md) and what its CPU provider computes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.dtype import I32, I64, U8
from occ.compiler.ir.ops.contrib.operators import DOMAIN
from occ.compiler.ir.ops.movement import unflatten
from occ.compiler.ir.ops.quantize import dequantized
from occ.compiler.ir.ops.spec import FormalSignature, op
from occ.compiler.ir.shape import equal_dims, normalize_axis, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.conversion import FLOAT8
from occ.compiler.ir.te.expr import Expr, binary, cast, literal, where, wrap
from occ.compiler.ir.te.function import Tensor

_LEAST_BLOCK = 16
_LEVELS = range(5)  # of accuracy: unset, f32, f16, bf16, int8


def field(byte: Expr, k: Expr, bits: int) -> Expr:
    """Element `k` of its byte, which holds codes of `bits` from the low ones on."""
    if bits == 8:
        return byte
    return binary("shr", byte, cast(byte.dtype, k % (8 // bits) * bits)) & ((1 << bits) - 1)


def _check_blocks(name: str, bits: int, size: int | None, least: int = _LEAST_BLOCK) -> None:
    if bits not in (2, 4, 8):
        raise Invalid(f"`{name}` has codes of {bits} bits", code="OCC0107", help="2, 4 and 8 bits are defined")
    if size is None or size < least or size & (size - 1):
        raise Invalid(f"`{name}` has blocks of {size}", code="OCC0107", help="powers of two from 16 on are defined")


def _check_size(what: str, v: Tensor, *allowed: Sequence[int]) -> None:
    """That an operand has one of the shapes, or their elements in a row, as older files have it."""
    shapes = [tuple(s) for s in allowed]
    if v.shape not in [*shapes, *((int(product(s)),) for s in shapes)] and all(isinstance(n, int) for n in v.shape):
        wanted = " or ".join(show_shape(s) for s in shapes)
        raise Invalid(f"`MatMulNBits`: {what} has shape {show_shape(v.shape)}, not {wanted}")


def check_products(x: Tensor, operands: Sequence[Tensor | None], a) -> None:
    """That the attributes and operands of a `MatMulNBits` fit each other.

    Raises:
        Invalid: they do not, or the weight is in the order of a GPU.
    """
    packed, scales, zeros, groups, bias = operands
    bits, size = a.bits, a.block_size
    _check_blocks("MatMulNBits", bits, size)
    if a.weight_prepacked:
        raise Invalid(
            f"`MatMulNBits` with weight_prepacked={a.weight_prepacked} holds its weight in the order of a CUDA kernel",
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

    B is `[N, blocks, bytes]`, a block of K packed from the low bits on; each block has a scale and a zero point, in the
    same packing or as floats, `2**(bits - 1)` where there is none. `g_idx` names the block of each element of K.
    `accuracy_level` is what A may be rounded to: 4 allows int8, block by block; 0 and 1 allow nothing.
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
    """Gather of block-quantised data, dequantised: `(data - zero_point) * scale` of the rows that `indices` name.

    `data` is i4 or u4, u8 that holds codes of 2, 4 or 8 bits along its last axis, or a narrow float. Without zero points
    they are 0, for u8 `2**(bits - 1)`. Negative indices count from the end; those out of range give zeros.
    """

    def body(t, data, indices, scales, zeros=None, *, a):
        narrow = data.dtype.is_float
        if narrow:
            _check_narrow(data, zeros, a.block_size)
        else:
            _check_blocks("GatherBlockQuantized", a.bits, a.block_size)
        gathered = normalize_axis(a.gather_axis, data.rank, "GatherBlockQuantized")
        blocked = normalize_axis(a.quantize_axis, data.rank, "GatherBlockQuantized")
        bits = a.bits if data.dtype == U8 else 8
        each = 8 // bits
        shape = (*data.shape[:-1], data.shape[-1] * each)
        if data.dtype == U8 and (gathered != 0 or (each > 1 and blocked == 0)):
            raise Invalid("`GatherBlockQuantized`: u8 is gathered along axis 0, and its blocks lie along another one")
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
        _check_blocks("GatherBlockQuantized", 8, size)


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


ALL = (MatMulNBits, GatherBlockQuantized)
