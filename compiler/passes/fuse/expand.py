"""Expands composite operators that the target does not take by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from occ.compiler.ir.builder import expand_composite
from occ.compiler.ir.deferred import is_deferred
from occ.compiler.ir.module import Module
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish


@dataclass(frozen=True)
class Expand(Pass):
    """Replaces composite operators by the named operators that they are made of.

    `%y = CastLike(%x, %like)` --> `%y = Cast(%x) {to=f32}`
    """

    name: ClassVar[str] = "expand"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        expanded = 0
        while composites := [
            op
            for f in m.funcs.values()
            for op in f.body.body
            if op.spec.composite is not None and not ctx.target.takes(op.name) and not is_deferred(op)
        ]:
            for op in composites:
                rw.replace(op, expand_composite(op, rw.builder(op), op.operands)[: len(op.results)])
            expanded += len(composites)
        rw.hits["expand"] += expanded
        return finish(rw, ctx, expanded)
