"""Operands of products in fewer bits than the model says, where the user asks for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import ml_dtypes
import numpy as np
from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import BF16, F32
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.te_inline import nominal

_CHANNELS = 8  # fewer of an input are not multiplied along channels


@dataclass(frozen=True)
class RoundOperands(Pass):
    """Rounds the operands of MatMul, Gemm and Conv with constant f32 weights to bf16; sums stay f32. Only with
    `-C precision=bf16`.

    `%y = MatMul(%x, @w)` --> `%b = Cast(%x) {to=bf16}  %f = Cast(%b) {to=f32}  %y = MatMul(%f, @w.rounded)`
    """

    to: str = ""  # `bf16`, or `f32` for nothing; empty takes what the option of the target says
    least: int = 1 << 18  # multiplications: smaller products take no time worth an error

    name: ClassVar[str] = "round-operands"

    def run(self, m: Module, ctx: Context) -> bool:
        if (self.to or ctx.options.get("precision")) != "bf16":
            return False
        rw, changes = Rewriter(m), 0
        weights: dict[str, Weight] = {}
        for func in m.funcs.values():
            rounding = _Rounding(rw, self.least, weights)
            changes += sum(rounding.op(op) for op in list(func.body))
        m.drop_unused_weights()
        rw.hits["round-operands"] += changes
        return finish(rw, ctx, changes)


@dataclass
class _Rounding:
    """The rounding of one function.

    Attributes:
        rw: changes the module.
        least: multiplications of a product.
        weights: rounded weights, by name of the weight.
        values: rounded values: several products read most of them.
    """

    rw: Rewriter
    least: int
    weights: dict[str, Weight]
    values: dict[Value, Value] = field(default_factory=dict)

    def op(self, op: Op) -> bool:
        """Round the operands of an op if it is a product that this is for; whether it was."""
        if not _is_product(op, self.least):
            return False
        x, w = op.operands[:2]
        assert x is not None
        assert isinstance(w, Weight)
        self.rw.set_operand(op, 0, self._value(x, op))
        self.rw.set_operand(op, 1, self._weight(w))
        if not w.uses:
            self.rw.module.weights.pop(w.name, None)  # at once: the weights of a model may be most of its memory
        return True

    def _value(self, x: Value, op: Op) -> Value:
        """A value, rounded at the first op that wants it so: ops stand in order."""
        if x not in self.values:
            b = self.rw.builder(op)
            self.values[x] = b.Cast(b.Cast(x, to=BF16), to=F32)
        return self.values[x]

    def _weight(self, w: Weight) -> Weight:
        if w.name not in self.weights:
            made = self.rw.module.add_weight(f"{w.name}.bf16", _rounded(w.data))
            self.weights[w.name] = self.weights[made.name] = made
        return self.weights[w.name]


def _is_product(op: Op, least: int) -> bool:
    """Whether an op multiplies f32 by a constant matrix, or filters, and long enough at that; once rounded, no more."""
    if op.name not in ("MatMul", "Gemm", "Conv"):
        return False
    x, w = op.operands[:2]
    if not isinstance(w, Weight) or x is None or isinstance(x, Weight) or w.tensor.dtype != F32:
        return False
    if is_rounded(x) is not None or _work(op, w) < least:
        return False
    if op.name == "Conv":
        return op.a.group == 1 and w.data.shape[1] >= _CHANNELS
    return w.tensor.rank == 2 and x.tensor.rank >= 2 and not (op.name == "Gemm" and op.a.transA)


def _work(op: Op, w: Weight) -> int:
    """Multiplications of a product, symbolic sizes at typical values."""
    columns = w.data.shape[0 if op.name == "Conv" or (op.name == "Gemm" and op.a.transB) else -1]
    return nominal(product(op.result.tensor.dims)) * (w.data.size // max(columns, 1))


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
