"""Internal ops of block-quantised products: quantised activations times packed codes.

A row of activations becomes integers of 8, 16 or 24 bits relative to the largest element of each block, in 8-bit
digits. Weights keep their codes, packed in panels of columns, so that each lane of a vector has four codes of a column.
The dequantised matrix is never stored: a block is unpacked in registers, multiplied in i32, and scaled.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from occ.compiler.ir.dim import Dim, ceildiv, lower, upper
from occ.compiler.ir.dim import minimum as min_dim
from occ.compiler.ir.dtype import F32, I8, I16, I32, I64, U8
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.quantize import dequantized
from occ.compiler.ir.te.expr import Bitcast, Expr, binary, call, cast, literal, maximum, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.roles import UNPACKED

_LEAST = 1e-30  # minimum for a block's largest element: smaller ones use fewer steps
FULL = {
    1: 127,
    2: 127 << 8,
    3: 127 << 16,
}  # the largest code, by number of digits; leaves room for each digit's carry

# Rows up to which codes of several digits are multiplied: with more, unpacking weights to f32 is cheaper.
DIGIT_ROWS = 16


def _blocks(t: Builder, x: Tensor, size: int, most: int = 0) -> Tensor:
    """`f32[.., K]` in blocks, `[.., ceil(K/size), size]`, the last one filled up with zeros.

    Only of the first `most` rows if that is not 0.
    """
    *rows, k = x.shape
    rows = [*rows[:-1], min_dim(rows[-1], most)] if most else rows

    def element(*i):
        *row, b, j = i
        at = b * size + j
        value = cast(F32, x[(*row, at)])
        return value if k % size == 0 else where(at < k, value, literal(0, F32))

    return t.map((*rows, ceildiv(k, size), size), element, name="blocks")


@op("block_steps", own_attributes="size=int digits=int rows=int?")
class BlockSteps:
    """The quantisation step of each block of `size` elements, f32 `[.., K]` --> `[.., blocks]`.

    The code `FULL` represents the largest element.

    A block with an infinity has infinite steps, one with NaN has NaN. `rows` limits the rows that get steps.
    """

    operands = ("x",)

    def body(t, x, *, a):
        parts = _blocks(t, x, a.size, getattr(a, "rows", 0))

        def magnitude(
            *i,
        ):  # as bits, which sort like the numbers, with NaN last; vectors compare integers in any order
            return binary("and", Bitcast(parts[i], I32), literal(0x7FFFFFFF, I32))

        top = t.reduce("max", parts.shape[:-1], [a.size], magnitude, name="top")
        return t.map(top.shape, lambda *i: maximum(Bitcast(top[i], F32), _LEAST) * (1 / FULL[a.digits]), name="steps")


@op("block_codes", own_attributes="size=int digits=int rows=int?")
class BlockCodes:
    """The elements of each block in units of its step, rounded: i8 `[.., digits, blocks, size]`, lowest digit first.

    Rounding is to nearest, ties to even. Digits are balanced, -128 to 127. In a block with infinities those are 1 or -1
    and the rest is 0. `rows` limits the rows that get codes.
    """

    operands = ("x", "steps")

    def body(t, x, steps, *, a):
        parts = _blocks(t, x, a.size, getattr(a, "rows", 0))

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


@op("block_matmul", tags=("contraction",), own_attributes="n=int bits=int pairs=int? signed=int?")
class BlockMatmul:
    """`x @ w` in f32 for `codes` and `steps` of `x` and a packed weight of `n` columns.

    `w` is u8 `[panels, blocks, words, columns, 4]`. With 4-bit codes, byte `[p, b, i, c, m]` holds elements `4*i + m`
    (low bits) and `4*words + 4*i + m` (high bits) of block b in column c of panel p; 8 and 2 bits likewise. `scales`
    has an element per column and group of r blocks, `[panels, blocks/r, columns]`, and so has `zeros`; by default codes
    are centred at `2**(bits - 1)`.

    With `pairs`, even and odd pairs of a block's products are summed separately, in i16 if that is wide enough (see
    `sums_fit`), and combined at its end: the order of processors that add two products per lane (`vpmaddubsw`,
    `vpmaddwd`). With `signed`, codes less their centre are multiplied, as signed bytes: as NEON has it (`sdot`).

    With `x`, the activations themselves, more than `DIGIT_ROWS` rows are multiplied in f32 (`unpacked_block_matmul`);
    codes and steps then have at most that many rows.
    """

    operands = ("codes", "steps", "w", "scales", "zeros", "x")

    def body(t, codes, steps, w, scales, zeros=None, x=None, *, a):
        rows = codes.shape[:-3] if x is None else x.shape[:-1]
        width = w.shape[3]
        acc = _code_sum(t, codes, steps, (w, scales, zeros), rows, a)
        many = None if x is None else _unpacked_sum(t, x, w, scales, zeros, a.bits)

        def column(*i):
            at = (*i[:-1], i[-1] // width, i[-1] % width)
            return acc[at] if many is None else where(wrap(rows[-1]) <= DIGIT_ROWS, acc[at], many[at])

        return t.map((*rows, a.n), column, name="columns")


def _code_sum(
    t: Builder, codes: Tensor, steps: Tensor, weight: tuple[Tensor, Tensor, Tensor | None], rows: Sequence[Dim], a: Any
) -> Tensor:
    """`rows` of codes times the dequantised weight, in f32 `[.., panels, columns]`, block by block.

    Rows past those that have codes repeat the last one.
    """
    w, scales, zeros = weight
    coded, (digits, blocks, size) = tuple(codes.shape[:-3]), codes.shape[-3:]
    centre, nd, ns = 1 << (a.bits - 1), len(rows), -(-blocks // scales.shape[1])
    signed = bool(getattr(a, "signed", 0))

    def coded_row(row):
        return row if tuple(rows) == coded else (*row[:-1], minimum(row[-1], wrap(coded[-1] - 1)))

    def code(row, *i):
        return codes[(*coded_row(row), *i)]

    parts = _signed_codes(t, w, a)
    # The contribution of the codes' centre to the products of a block.
    total = t.sum((*rows, digits, blocks), [size], lambda *i: cast(I32, code(i[:nd], *i[nd:])) * centre, name="total")
    dot = _block_dots(t, parts, code, (*rows, w.shape[0], blocks, digits, w.shape[3]), a)

    def in_f32(*i):
        return _joined(digits, lambda d: total[(*i[:-1], d, i[-1])])

    whole = None if zeros is None else t.map((*rows, blocks), in_f32, name="whole")
    # Sums of one digit that are whole numbers of 24 bits lose nothing if the centre is left in.
    exact = digits == 1 and size * ((1 << a.bits) - 1) << 7 <= 1 << 24
    centred = not signed and not (exact and zeros is not None)

    def block(*i):
        *row, p, c, b = i
        at = (p, b // ns, c)
        value = _joined(digits, lambda d: dot[(*row, p, b, d, c)] - (total[(*row, d, b)] if centred else 0))
        if whole is not None and zeros is not None:  # the zero point, or its distance from the centre, relative to that
            point = cast(F32, zeros[at]) * (-1 / centre)
            value = value + (point if not centred and not signed else literal(1, F32) + point) * whole[(*row, b)]
        return value * (cast(F32, scales[at]) * steps[(*coded_row(row), b)])

    return t.sum((*rows, w.shape[0], w.shape[3]), [blocks], block, name="product")


def _signed_codes(t: Builder, w: Tensor, a: Any) -> Tensor:
    """Codes of a packed weight, `[panels, blocks, codes of a byte, words, columns, 4]`; less the centre if signed."""
    panels, blocks, words, width, four = w.shape
    each, centre = 8 // a.bits, 1 << (a.bits - 1)

    def part(p, b, h, i, c, m):
        code = _code(w[p, b, i, c, m], h, a.bits)
        if not getattr(a, "signed", 0):
            return code
        return cast(I8, binary("xor", code, literal(centre, U8))) if each == 1 else cast(I8, code) - centre

    return t.map((panels, blocks, each, words, width, four), part, name="parts")


def _block_dots(t: Builder, parts: Tensor, code: Callable[..., Expr], shape: Sequence[Dim], a: Any) -> Tensor:
    """Products of rows of codes with the blocks of a weight, of i32 `shape` [.., panels, blocks, digits, columns]."""
    _, _, each, words, _, four = parts.shape

    def product(*i, dtype=I32):
        *row, p, b, d, c, h, j, m = i
        return cast(dtype, parts[p, b, h, j, c, m]) * cast(dtype, code(row, d, b, (h * words + j) * four + m))

    if not getattr(a, "pairs", 0):
        return t.sum(shape, (each, words, four), product, name="dot")
    narrow = I16 if sums_fit(a.bits, each * words * four) else I32

    def in_pairs(*i):
        *row, q, h, j, m = i
        return product(*row, h, j, q * 2 + m, dtype=narrow)

    pairs = t.sum((*shape, 2), (each, words, 2), in_pairs, name="pairs")
    return t.sum(shape, (2,), lambda *i: cast(I32, pairs[i]) if narrow is I16 else pairs[i], name="dot")


def _code(byte: Expr, h: Any, bits: int) -> Expr:
    """The `h`-th of the codes of `bits` bits in a byte, lowest bits first."""
    return byte if bits == 8 else binary("shr", byte, cast(U8, h * bits)) & ((1 << bits) - 1)


def _joined(digits: int, digit: Callable[[int], Expr]) -> Expr:
    """Digits combined into one f32: exact except for one rounding of the first two digits and one of all."""
    high = digit(digits - 1) if digits == 1 else digit(digits - 1) * 256 + digit(digits - 2)
    value = cast(F32, high)
    return value if digits < 3 else value * 256.0 + cast(F32, digit(0))


def _unpacked_sum(t: Builder, x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None, bits: int) -> Tensor:
    """`f32[.., K]` times the dequantised weight, in f32 `[.., panels, columns]`, term by term."""
    panels, blocks, words, width, four = w.shape
    each, ns = 8 // bits, -(-blocks // scales.shape[1])
    parts = _blocks(t, x, each * words * four)

    def term(*i):
        *row, p, c, b, h, j, m = i
        byte, at = cast(I32, w[p, b, j, c, m]), (p, b // ns, c)
        code = byte if bits == 8 else binary("shr", byte, cast(I32, h * bits)) & ((1 << bits) - 1)
        zero = literal(1 << (bits - 1), I32) if zeros is None else zeros[at]
        return parts[(*row, b, (h * words + j) * four + m)] * dequantized(code, scales[at], zero, F32)

    return t.sum((*x.shape[:-1], panels, width), (blocks, each, words, four), term, name="unpacked", role=UNPACKED)


@op("unpacked_block_matmul", tags=("contraction",), own_attributes="n=int bits=int")
class UnpackedBlockMatmul:
    """`x @ w` in f32, for a packed weight of `n` columns as in `block_matmul`, unpacked to f32."""

    operands = ("x", "w", "scales", "zeros")

    def body(t, x, w, scales, zeros=None, *, a):
        width = w.shape[3]
        acc = _unpacked_sum(t, x, w, scales, zeros, a.bits)
        return t.map((*x.shape[:-1], a.n), lambda *i: acc[(*i[:-1], i[-1] // width, i[-1] % width)], name="columns")


def digits_for(rows: Dim) -> bool | None:
    """Whether codes of several digits are multiplied: False if there are too many rows, None if run time decides."""
    return True if upper(rows) <= DIGIT_ROWS else False if lower(rows) > DIGIT_ROWS else None


def sums_fit(bits: int, size: int) -> bool:
    """Whether half of a block's products, with codes of `bits` bits, sum within i16."""
    return size // 2 * ((1 << bits) - 1) * 128 < 1 << 15


@op("block_rows", own_attributes="n=int k=int bits=int")
class BlockRows:
    """Rows of the `n` by `k` matrix that a packed weight encodes, in f32: `[..]` --> `[.., k]`.

    Negative indices count from the end; those out of range yield zeros.
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
            code = _code(byte, k // part % (8 // a.bits), a.bits)
            zero = literal(1 << (a.bits - 1), U8) if zeros is None else zeros[panel, block // ns, column]
            value = dequantized(code, scales[panel, block // ns, column], zero, F32)
            return where((row >= 0) & (row < a.n), value, literal(0, F32))

        return t.map((*indices.shape, a.k), element, name="rows")


ALL = (BlockSteps, BlockCodes, BlockMatmul, UnpackedBlockMatmul, BlockRows)
