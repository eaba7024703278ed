"""Propagates constants into control flow, and removes repeated or unused captures."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class PropagateConstants(Pass):
    """Moves captured constants into functions, and drops captures that they do not read.

    `%y = Loop(%n, none, %x, @w) {body=@f, captures=1}` --> `%y = Loop(%n, none, %x) {body=@f, captures=0}`
    """

    name: ClassVar[str] = "propagate-constants"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        dropped = 0
        for op in list(m.walk()):  # outer before inner, so that a constant sinks through all of them
            if op.attrs.get("captures"):
                dropped += _drop_captures(op, m, rw)
        rw.hits["propagate-constants"] += dropped
        return finish(rw, ctx, dropped)


def _drop_captures(op: Op, m: Module, rw: Rewriter) -> int:
    """Each function has one caller, so its arguments are exactly what that caller passes."""
    funcs = list(m.called(op))
    n = op.attrs["captures"]
    first = len(op.operands) - n
    kept = list(range(n))
    for k in range(n):
        value = op.operands[first + k]
        for f in funcs:
            arg = f.args[len(f.args) - n + k]
            if isinstance(value, Weight):
                arg.replace_uses(value)
        if not any(f.args[len(f.args) - n + k].uses for f in funcs):
            kept.remove(k)
    if len(kept) == n:
        return 0
    for f in funcs:
        captured = f.args[len(f.args) - n :]
        f.body.args[:] = [*f.args[: len(f.args) - n], *(captured[k] for k in kept)]
    rw.replace_operands(op, [*op.operands[:first], *(op.operands[first + k] for k in kept)])
    op.attrs["captures"] = len(kept)
    return n - len(kept)
