"""Products with block-quantised constants, in the form of the processor's byte instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import F32, DType
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.own.block_products import DIGIT_ROWS, digits_for
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass
from occ.runtime.mapped_arrays import release

_NAME = "com.microsoft.MatMulNBits"
_ROWS = "com.microsoft.GatherBlockQuantized"
_CHUNK = 32  # elements of a block multiplied before they are scaled: as many as registers hold codes for
_ROLES = ("codes", "scales", "zeros")
_PANELS = 64  # packed at a time
# Digits of activations by accuracy level: f32 has 24 bits, f16 and bf16 fewer than 16, and int8 has 8.
_DIGITS = {0: 3, 1: 3, 2: 2, 3: 2, 4: 1}
_PIECE = 1 << 20  # elements compared at a time
_Known = dict[tuple[Value, int, int, bool | None], tuple[Value, Value]]  # (x, chunk, digits, few rows) -> codes, steps
_Packed = dict[tuple[object, ...], Weight]  # (role, N, K, bits, block, weight) -> the same in panels


@dataclass(frozen=True)
class UseBlockProducts(Pass):
    """Makes products of codes of `MatMulNBits` with constant weights; products of the same activations share the codes.

    `accuracy_level` decides how many 8-bit digits activations get: 1 if int8 is allowed (4), 2 if f16 or bf16 is,
    otherwise 3, which is as exact as f32; more than 16 rows are then multiplied in f32, with weights unpacked a panel
    at a time. `-C precision=int8` allows one digit everywhere. An embedding that shares its bytes with the head (tied
    weights) gathers its rows from the panels.

    `%y = com.microsoft.MatMulNBits(%x, @w, @s)`
    --> `%t = block_steps(%x)  %c = block_codes(%x, %t)  %y = block_matmul(%c, %t, @w.panels, @s)`
    """

    lanes: int = 0  # columns of a panel; 0 means the i32 lanes of the target's vector
    rounded: bool = False  # whether int8 is allowed everywhere

    name: ClassVar[str] = "use-block-products"

    def run(self, m: Module, ctx: Context) -> bool:
        lanes = self.lanes or ctx.machine.lanes(32)
        rw, changes = Rewriter(m), 0
        packed: _Packed = {}
        heads: list[_Product] = []
        for func in m.funcs.values():
            known: _Known = {}
            for op in [op for op in func.body if op.name == _NAME and takes(op)]:
                digits = 1 if self.rounded else _DIGITS[op.a.accuracy_level]
                made = _Product(op, rw, lanes, digits, ctx.machine)
                made.replace(known, packed)
                heads.append(made)
                changes += 1
        for op in [op for func in m.funcs.values() for op in func.body if op.name == _ROWS]:
            head = next((h for h in heads if h.has_rows_of(op)), None)
            if head is not None:
                head.give_rows(op, packed)
                changes += 1
        erase_dead(m)
        m.drop_unused_weights()
        rw.hits["use-block-products"] += changes
        return finish(rw, ctx, changes)


def takes(op: Op) -> bool:
    """Whether a product's weight, scales and zero points are constants with blocks in order."""
    _, w, scales, zeros, groups, _ = (*op.operands, None, None, None)[:6]
    return groups is None and all(v is None or isinstance(v, Weight) for v in (w, scales, zeros))


class _Product:
    """One product on its way to codes."""

    def __init__(self, op: Op, rw: Rewriter, lanes: int, digits: int, machine: Machine) -> None:
        self.op, self.rw, self.lanes, self.digits = op, rw, lanes, digits
        self.given = [(role, w) for role, w in zip(_ROLES, op.operands[1:4], strict=False) if isinstance(w, Weight)]
        self.chunk = min(op.a.block_size, _CHUNK)
        self.how = {"signed": 1} if machine.signed_bytes else {"pairs": 1} if machine.int8_dot_width == 2 else {}
        self.blocks = max(-(-op.a.K // self.chunk), 2)
        self.panels = max(-(-op.a.N // lanes), 2)

    def replace(self, known: _Known, packed: _Packed) -> None:
        """Replace the op by products of codes; `known` and `packed` hold what others have made."""
        op, b = self.op, self.rw.builder(self.op)
        x, *_, bias = (*op.operands, None, None, None)[:6]
        assert x is not None
        several = self.digits == 3 and x.tensor.rank > 1 and op.a.N > 1  # a column alone has no panels
        few = digits_for(x.tensor.dims[-2]) if several else True
        margin = _margin(x.tensor.rank, self.blocks * self.chunk - op.a.K)
        wide = b.Pad(x, b.constant(margin)) if self.chunk >= op.a.K else x  # weights have at least two blocks
        if few is False:
            made = b.unpacked_block_matmul(wide, *self._weights(packed), n=op.a.N, bits=op.a.bits)
        else:
            weights: list[Value | None] = [*self._weights(packed)]
            more = [] if few else [*[None] * (3 - len(weights)), wide]
            made = b.block_matmul(
                *self._codes_of(x, wide, known, few), *weights, *more, n=op.a.N, bits=op.a.bits, **self.how
            )
        if bias is not None:
            made = b.Add(made, bias if bias.tensor.dtype == F32 else b.Cast(bias, to=F32))
        self.rw.replace(op, [_as(b, made, x.tensor.dtype)])

    def _codes_of(self, x: Value, wide: Value, known: _Known, few: bool | None) -> tuple[Value, Value]:
        """The codes of activations and their steps; only of the first rows if more are multiplied in f32."""
        key = (x, self.chunk, self.digits, few)
        if key not in known:
            b, how = self.rw.builder(self.op), {"size": self.chunk, "digits": self.digits}
            how |= {} if few else {"rows": DIGIT_ROWS}
            steps = b.block_steps(wide, **how)
            known[key] = (b.block_codes(wide, steps, **how), steps)
        return known[key]

    def has_rows_of(self, op: Op) -> bool:
        """Whether a gather reads rows of the matrix: its codes, scales and zero points are the same bytes."""
        a, (data, indices, *rest) = self.op.a, op.operands
        if not isinstance(data, Weight) or data.data.dtype != np.uint8 or data.data.ndim != 2 or indices is None:
            return False
        axes = (op.a.gather_axis % 2, op.a.quantize_axis % 2, op.a.bits, op.a.block_size)
        theirs = [data, *(v for v in rest if v is not None)]
        shape = (a.N, a.K * a.bits // 8)
        return axes == (0, 1, a.bits, a.block_size) and data.data.shape == shape and len(theirs) == len(self.given) and all(
            isinstance(v, Weight) and _same(v.data, w.data) for v, (_, w) in zip(theirs, self.given, strict=True)
        )  # fmt: skip

    def give_rows(self, op: Op, packed: _Packed) -> None:
        """Let a gather of the same bytes read the panels."""
        a, b, indices = self.op.a, self.rw.builder(op), op.operands[1]
        assert indices is not None
        made = b.block_rows(indices, *self._weights(packed), n=a.N, k=a.K, bits=a.bits)
        self.rw.replace(op, [_as(b, made, op.result.tensor.dtype)])

    def _weights(self, packed: _Packed) -> list[Weight]:
        """The packed codes, scales, and zero points if there are any."""
        pack = {"codes": self._codes, "scales": lambda v: self._columns(_shortest(v)), "zeros": self._points}
        shape = (self.op.a.N, self.op.a.K, self.op.a.bits, self.op.a.block_size)
        for role, w in self.given:
            if (role, *shape, w) not in packed:
                packed[role, *shape, w] = self.rw.module.add_weight(f"{w.name}.panels", pack[role](w.data))
                release([w.data])  # right away: the weights of a model may be most of its memory
        return [packed[role, *shape, w] for role, w in self.given]

    def _codes(self, data: np.ndarray) -> np.ndarray:
        """u8 `[N, blocks, bytes]` --> `[panels, chunks, words, columns, 4]`, some panels at a time."""
        a, bits, each = self.op.a, self.op.a.bits, 8 // self.op.a.bits
        words = self.chunk // each // 4
        made = np.zeros((self.panels, self.blocks, words, self.lanes, 4), np.uint8)
        data = data.reshape(a.N, -1)
        for first, codes in _pieces(data, self.lanes):
            flat = _unpacked(codes, bits)[:, : self.blocks * self.chunk]
            flat = np.pad(flat, [(0, -len(flat) % self.lanes), (0, self.blocks * self.chunk - flat.shape[1])])
            parts = flat.reshape(-1, self.lanes, self.blocks, each, words, 4)
            shifts = (bits * np.arange(each, dtype=np.uint8)).reshape(-1, 1, 1)
            joined = np.bitwise_or.reduce(parts << shifts, 3)
            made[first : first + len(joined)] = joined.transpose(0, 2, 3, 1, 4)
        return made

    def _columns(self, data: np.ndarray) -> np.ndarray:
        """One value per block and column, `[N, blocks]` or flattened --> `[panels, blocks, columns]`.

        How many chunks share a value follows from the counts; if the last block is too short for that, each chunk has
        its own.
        """
        per = max(self.op.a.block_size // self.chunk, 1)
        count = -(-self.blocks // per)
        data = data.reshape(self.op.a.N, -1)[:, :count]
        margins = [(0, self.panels * self.lanes - len(data)), (0, count - data.shape[1])]
        parts = np.pad(data, margins)
        if -(-self.blocks // count) != per:
            parts = np.repeat(parts, per, 1)[:, : self.blocks]
        parts = parts.reshape(self.panels, self.lanes, -1)
        return np.ascontiguousarray(parts.transpose(0, 2, 1))

    def _points(self, data: np.ndarray) -> np.ndarray:
        """Zero points, one per block and column: u8, or the narrowest exact floats."""
        if data.dtype != np.uint8:
            return self._columns(_shortest(data))
        a = self.op.a
        return self._columns(_unpacked(data.reshape(a.N, -1), a.bits)[:, : -(-a.K // a.block_size)])


def _as(b: GraphBuilder, x: Value, dtype: DType) -> Value:
    return x if x.tensor.dtype == dtype else b.Cast(x, to=dtype)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two constants are the same bytes, in any shape.

    Most often they are at the same place in the file.
    """
    x, y = a.reshape(-1), b.reshape(-1)
    if x.dtype != y.dtype or x.size != y.size:
        return False
    starts = range(0, 0 if x.ctypes.data == y.ctypes.data else x.size, _PIECE)
    return all(np.array_equal(x[k : k + _PIECE], y[k : k + _PIECE]) for k in starts)


def _pieces(data: np.ndarray, lanes: int) -> Iterator[tuple[int, np.ndarray]]:
    """Rows of some panels, and the index of the first panel."""
    for first in range(0, -(-len(data) // lanes), _PANELS):
        yield first, data[first * lanes : (first + _PANELS) * lanes]


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis, one per byte, low bits first."""
    each = 8 // bits
    parts = data[..., None] >> (bits * np.arange(each, dtype=np.uint8))
    return (parts & ((1 << bits) - 1)).astype(np.uint8).reshape(*data.shape[:-1], -1)


def _shortest(data: np.ndarray) -> np.ndarray:
    """Floats as f16 if all are exactly representable, else as f32."""
    if data.dtype == np.float16:
        return data
    wide = data.astype(np.float32)
    with np.errstate(over="ignore"):
        short = wide.astype(np.float16)
    return short if np.array_equal(short.astype(np.float32), wide) else wide


def _margin(rank: int, behind: int) -> np.ndarray:
    """The `pads` of a Pad that fills up the last axis."""
    return np.array([0] * (2 * rank - 1) + [behind], np.int64)
