"""Rounds operands of products to bf16 or int8, for `-C precision`."""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np

from occ.compiler.ir.dtype import BF16, F32
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.typical_sizes import nominal_count
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.methods.int8.weight_codes import column_codes
from occ.runtime.dataclass import dataclass

# Multiplications per element of the left side and of the result; below this, rounding takes longer than it saves.
_REUSE = {"bf16": 6, "int8": 48}
_CHANNELS = 8  # with fewer, an input is not channels-last
_DEEPEST = 1 << 16  # terms of a sum of code products that fits in i32


@dataclass(frozen=True)
class RoundOperands(Pass):
    """Rounds the operands of MatMul, Gemm and Conv with constant f32 weights. Enabled by `-C precision`.

    To bf16, with f32 sums; or for MatMul and Gemm to 8-bit codes: 255 steps from the minimum to the maximum of a row,
    and multiples of a step per weight column. Codes that a model stored in 8 bits are recovered exactly.

    `%y = MatMul(%x, @w)` --> `%b = Cast(%x) {to=bf16}  %f = Cast(%b) {to=f32}  %y = MatMul(%f, @w.bf16)`, or
    `%r = row_range(%x)  %c = row_codes(%x, %r)  %s = MatMulInteger(%c, @w.i8)  %y = from_row_codes(%s, %r, @scale,
    @total)`
    """

    to: str = "bf16"  # or `int8`
    least: int = 1 << 18  # multiplications: smaller products take too little time to be worth the error

    reuse: int = 0  # multiplications per element of the left side and of the result; 0 means where it pays off

    name: ClassVar[str] = "round-operands"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, changes, reuse = Rewriter(m), 0, self.reuse or _REUSE[self.to]
        for func in m.funcs.values():
            rounding = (_ToBf16 if self.to == "bf16" else _ToCodes)(rw)
            for op in list(func.body):
                if _is_product(op, self.least, reuse) and rounding.takes(op):
                    w = op.operands[1]
                    rounding.product(op)
                    changes += 1
                    if isinstance(w, Weight):
                        m.release_weight(w)
        m.drop_unused_weights()
        rw.hits["round-operands"] += changes
        return finish(rw, ctx, changes)


class _ToBf16:
    """Rounds to bf16 in one function.

    Ops come in order, so what is rounded for one is available to the next.
    """

    def __init__(self, rw: Rewriter) -> None:
        self.rw = rw
        self._known: dict[Value, Value] = {}

    def takes(self, op: Op) -> bool:
        """Whether a product is to be rounded."""
        w = op.operands[1]
        return isinstance(w, Weight) and (
            op.matrix_product is not None or (op.a.group == 1 and w.data.shape[1] >= _CHANNELS)
        )

    def product(self, op: Op) -> None:
        """Round the operands of a product."""
        x, w = op.operands[:2]
        assert x is not None
        assert isinstance(w, Weight)
        if x not in self._known:
            b = self.rw.builder(op)
            self._known[x] = b.Cast(b.Cast(x, to=BF16), to=F32)
        if w not in self._known:
            self._known[w] = self.rw.module.add_weight(f"{w.name}.bf16", _rounded(w.data))
        self.rw.replace_operand(op, 0, self._known[x])
        self.rw.replace_operand(op, 1, self._known[w])


class _ToCodes:
    """Turns products into products of codes in one function."""

    def __init__(self, rw: Rewriter) -> None:
        self.rw = rw
        self._known: dict[Value, tuple[Value, Value]] = {}
        self._weights: dict[tuple[Value, bool], tuple[Weight, Weight, Weight]] = {}

    def takes(self, op: Op) -> bool:
        """Whether a product is to be computed on codes."""
        form, w = op.matrix_product, op.operands[1]
        if form is None or form.is_scaled or not isinstance(w, Weight) or _extents(op, w)[0] > _DEEPEST:
            return False
        return bool(np.isfinite(w.data).all())

    def product(self, op: Op) -> None:
        """Replace a product by a product of codes."""
        x, w = op.operands[:2]
        assert x is not None
        assert isinstance(w, Weight)
        b = self.rw.builder(op)
        if x not in self._known:
            between = b.row_range(x)
            self._known[x] = between, b.row_codes(x, between)
        between, codes = self._known[x]
        form, bias = op.matrix_product, (*op.operands, None)[2]
        key = w, form is not None and form.right_transposed
        if key not in self._weights:
            self._weights[key] = self._weight(w, turned=key[1])
        of_weight, scale, total = self._weights[key]
        made = b.from_row_codes(b.MatMulInteger(codes, of_weight), between, scale, total)
        self.rw.replace(op, [made if bias is None else b.Add(made, bias)])

    def _weight(self, w: Weight, *, turned: bool) -> tuple[Weight, Weight, Weight]:
        """The codes of a weight, their scales, and the sums of its columns."""
        codes, scale = column_codes(w.data.T if turned else w.data)
        total = (codes.sum(0, dtype=np.int64) * scale.astype(np.float64)).astype(np.float32)
        add, name = self.rw.module.add_weight, w.name
        return add(f"{name}.i8", codes), add(f"{name}.scale", scale), add(f"{name}.total", total)


def _is_product(op: Op, least: int, reuse: int) -> bool:
    """Whether an op multiplies f32 by a constant matrix or filters, with enough work to pay off; false once rounded."""
    form = op.matrix_product
    if form is None and op.name != "Conv":
        return False
    x, w = op.operands[:2]
    if not isinstance(w, Weight) or x is None or isinstance(x, Weight) or w.tensor.dtype != F32:
        return False
    if form is not None and (w.tensor.rank != 2 or x.tensor.rank < 2 or form.left_transposed):
        return False
    terms, columns = _extents(op, w)
    if is_rounded(x) is not None or terms * columns < reuse * (terms + columns):
        return False
    return nominal_count(op.result.tensor.dims) * terms >= least


def _extents(op: Op, w: Weight) -> tuple[int, int]:
    """The number of terms of each sum, and of columns of a weight."""
    form = op.matrix_product
    columns = w.data.shape[0 if form is None or form.right_transposed else -1]
    return w.data.size // max(columns, 1), columns


def is_rounded(x: Value | None) -> Value | None:
    """The bf16 value that an f32 value is a copy of, or None."""
    op = x.defining_op if x is not None else None
    if op is None or op.name != "Cast" or op.result.tensor.dtype != F32:
        return None
    return op.operands[0] if op.operands[0] is not None and op.operands[0].tensor.dtype == BF16 else None


def _rounded(data: np.ndarray) -> np.ndarray:
    """f32 data rounded to bf16, as f32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return data.astype(ml_dtypes.bfloat16).astype(np.float32)
