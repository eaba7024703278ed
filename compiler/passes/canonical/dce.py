"""Dead code elimination."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.module import Module
from occ.compiler.ir.rewriter import erase_dead
from occ.compiler.passes.base import Context, Pass
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Dce(Pass):
    """Erases ops whose results nothing reads, and weights that no op reads."""

    name: ClassVar[str] = "dce"

    def run(self, m: Module, ctx: Context) -> bool:
        erased = erase_dead(m)
        ctx.hits["dce"] += erased
        return erased > 0
