"""Resize with its scales used exactly as the file stores them."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.resize_plan import EXACT
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class ExactFactors(Pass):
    """Uses the scales of Resize exactly as stored, for `-C resize=exact`.

    60 elements scaled by 1.3, which is 1.29999995 as f32, are then 77.

    `%y = Resize(%x, %roi, %scales)` --> `%y = exact_resize(%x, %roi, %scales)`
    """

    name: ClassVar[str] = "exact-factors"
    untyped: ClassVar[bool] = True

    def run(self, m: Module, ctx: Context) -> bool:
        rw, made = Rewriter(m), 0
        for op in list(m.walk()):
            if op.name == "Resize":
                types, names = [r.type for r in op.results], [r.name for r in op.results]
                rw.exchange(op, Op(EXACT, op.operands, vars(op.a), types, result_names=names, loc=op.loc))
                made += 1
        rw.hits[self.name] += made
        return finish(rw, ctx, made)
