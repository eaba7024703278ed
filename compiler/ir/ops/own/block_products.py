"""Internal ops of block-quantised products: quantised activations times packed codes.

A row of activations becomes integers of 8, 16 or 24 bits of the largest element of each block, in digits of 8 bits. Weights keep
their codes, packed in panels of columns, so that four codes of a column are in each lane of a vector. The dequantised matrix
exists nowhere: a block is unpacked in registers, multiplied in i32, and scaled.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dim import ceildiv
from occ.compiler.ir.dtype import F32, I8, I16, I32, I64, U8
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.quantize import dequantized
from occ.compiler.ir.te.expr import Bitcast, Expr, binary, call, cast, literal, maximum, where
from occ.compiler.ir.te.function import Builder, Tensor

_LEAST = 1e-30  # largest element of a block: smaller ones are in fewer steps
FULL = {
    1: 127,
    2: 127 << 8,
    3: 127 << 16,
}  # the largest code, by the number of digits; there is room for the carry of each


def _blocks(t: Builder, x: Tensor, size: int) -> Tensor:
    """`f32[.., K]` in blocks, `[.., ceil(K/size), size]`, the last one filled up with zeros."""
    *rows, k = x.shape

    def element(*i):
        *row, b, j = i
        at = b * size + j
        value = cast(F32, x[(*row, at)])
        return value if k % size == 0 else where(at < k, value, literal(0, F32))

    return t.map((*rows, ceildiv(k, size), size), element, name="blocks")


@op("block_steps", own_attributes="size=int digits=int")
class BlockSteps:
    """The quantisation step of each block of `size` elements, f32 `[.., K]` --> `[.., blocks]`.

    The code `FULL` stands for the largest element.

    A block with an infinity has steps of infinity, one with NaN has NaN.
    """

    operands = ("x",)

    def body(t, x, *, a):
        parts = _blocks(t, x, a.size)

        def magnitude(
            *i,
        ):  # as bits, which are in the order of the numbers, NaN last; vectors compare integers in any order
            return binary("and", Bitcast(parts[i], I32), literal(0x7FFFFFFF, I32))

        top = t.reduce("max", parts.shape[:-1], [a.size], magnitude, name="top")
        return t.map(top.shape, lambda *i: maximum(Bitcast(top[i], F32), _LEAST) * (1 / FULL[a.digits]), name="steps")


@op("block_codes", own_attributes="size=int digits=int")
class BlockCodes:
    """The elements of each block in its steps, to nearest even: i8 `[.., digits, blocks, size]`, the lowest digit first.

    Digits are balanced, -128 to 127. In a block with infinities those are 1 or -1 and all else is 0.
    """

    operands = ("x", "steps")

    def body(t, x, steps, *, a):
        parts = _blocks(t, x, a.size)

        def whole(*i):
            value, step = parts[i], steps[i[:-1]]
            one = where(value < 0, literal(-1, F32), literal(1, F32))
            return call("nearest", where(call("isinf", value), one, value * (literal(1, F32) / step)))

        codes = t.map(parts.shape, whole, name="whole")

        def digit(*i):
            *row, d, b, j = i
            value: Expr = codes[(*row, b, j)]
            found = cast(I8, value)
            for k in range(1, a.digits):
                value = binary("floordiv", value - cast(I32, cast(I8, value)), literal(256, I32))
                found = where(d < k, found, cast(I8, value))
            return found

        *rows, blocks, size = parts.shape
        return t.map((*rows, a.digits, blocks, size), digit, name="codes")


@op("block_matmul", tags=("contraction",), own_attributes="n=int bits=int pairs=int?")
class BlockMatmul:
    """`x @ w` in f32 for `codes` and `steps` of `x` and a packed weight of `n` columns.

    `w` is u8 `[panels, blocks, words, columns, 4]`. Of codes of 4 bits, byte `[p, b, i, c, m]` holds elements `4*i + m` (low bits)
    and `4*words + 4*i + m` (high bits) of block b in column c of panel p; of 8 and 2 bits likewise. `scales` has an
    element for each column of a number of blocks, `[panels, blocks/r, columns]`, and so has `zeros`; without those codes are
    centred at `2**(bits - 1)`.

    With `pairs` even pairs of the products of a block are summed apart from odd ones, in i16 where that holds the sums (see
    `sums_fit`), and put together at its end: in the order of processors that add up two products a lane (`vpmaddubsw`,
    `vpmaddwd`).
    """

    operands = ("codes", "steps", "w", "scales", "zeros")

    def body(t, codes, steps, w, scales, zeros=None, *, a):
        *rows, digits, blocks, _ = codes.shape
        panels, _, words, width, four = w.shape
        centre, nd, ns = 1 << (a.bits - 1), len(rows), -(-blocks // scales.shape[1])
        each = 8 // a.bits

        def part(p, b, h, i, c, m):
            byte = w[p, b, i, c, m]
            return byte if each == 1 else binary("shr", byte, cast(U8, h * a.bits)) & ((1 << a.bits) - 1)

        parts = t.map((panels, blocks, each, words, width, four), part, name="parts")

        def product(*i, dtype=I32):
            *row, p, b, d, c, h, j, m = i
            return cast(dtype, parts[p, b, h, j, c, m]) * cast(dtype, codes[(*row, d, b, (h * words + j) * four + m)])

        narrow = I16 if sums_fit(a.bits, each * words * four) else I32

        def in_pairs(*i):
            *row, q, h, j, m = i
            return product(*row, h, j, q * 2 + m, dtype=narrow)

        # What the centre of the codes adds to the products of a block.
        total = t.sum(codes.shape[:-1], codes.shape[-1:], lambda *i: cast(I32, codes[i]) * centre, name="total")
        shape = (*rows, panels, blocks, digits, width)
        if getattr(a, "pairs", 0):
            pairs = t.sum((*shape, 2), (each, words, 2), in_pairs, name="pairs")
            dot = t.sum(shape, (2,), lambda *i: cast(I32, pairs[i]) if narrow is I16 else pairs[i], name="dot")
        else:
            dot = t.sum(shape, (each, words, four), product, name="dot")

        def joined(digit):
            """The digits as one number: exact but for one rounding of the first two, one of all."""
            high = digit(digits - 1) if digits == 1 else digit(digits - 1) * 256 + digit(digits - 2)
            value = cast(F32, high)
            return value if digits < 3 else value * 256.0 + cast(F32, digit(0))

        def in_f32(*i):
            return joined(lambda d: total[(*i[:-1], d, i[-1])])

        whole = None if zeros is None else t.map((*rows, blocks), in_f32, name="whole")

        def block(*i):
            *row, p, c, b = i
            at = (p, b // ns, c)
            value = joined(lambda d: dot[(*row, p, b, d, c)] - total[(*row, d, b)])
            if whole is not None and zeros is not None:  # how far the zero point is from the centre, in parts of that
                value = value + (literal(1, F32) - cast(F32, zeros[at]) * (1 / centre)) * whole[(*row, b)]
            return value * (cast(F32, scales[at]) * steps[(*row, b)])

        acc = t.sum((*rows, panels, width), [blocks], block, name="product")
        return t.map((*rows, a.n), lambda *i: acc[(*i[:nd], i[-1] // width, i[-1] % width)], name="columns")


def sums_fit(bits: int, size: int) -> bool:
    """Whether half of a block's products, with codes of `bits` bits, sum within i16."""
    return size // 2 * ((1 << bits) - 1) * 128 < 1 << 15


@op("block_rows", own_attributes="n=int k=int bits=int")
class BlockRows:
    """Rows of the `n` by `k` matrix that a packed weight encodes, in f32: `[..]` --> `[.., k]`.

    Negative indices count from the end; those out of range give zeros.
    """

    operands = ("indices", "w", "scales", "zeros")

    def body(t, indices, w, scales, zeros=None, *, a):
        _, blocks, words, width, four = w.shape
        part, ns = words * four, -(-blocks // scales.shape[1])

        def element(*i):
            *at, k = i
            asked = cast(I64, indices[tuple(at)])
            row = where(asked < 0, asked + a.n, asked)
            panel, column, block = row // width, row % width, k // (part * (8 // a.bits))
            byte = w[panel, block, k % part // four, column, k % four]
            shift = cast(U8, k // part % (8 // a.bits) * a.bits)
            code = byte if a.bits == 8 else binary("shr", byte, shift) & ((1 << a.bits) - 1)
            zero = literal(1 << (a.bits - 1), U8) if zeros is None else zeros[panel, block // ns, column]
            value = dequantized(code, scales[panel, block // ns, column], zero, F32)
            return where((row >= 0) & (row < a.n), value, literal(0, F32))

        return t.map((*indices.shape, a.k), element, name="rows")


ALL = (BlockSteps, BlockCodes, BlockMatmul, BlockRows)
