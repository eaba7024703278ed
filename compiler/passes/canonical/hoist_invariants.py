"""Loop-invariant states of Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """Turns loop states that the body returns unchanged into captured values.

    Exporters of while-loops carry weights along. They would be copied at every step and not recognised as constants.

    `%y, %v = Loop(%n, none, %x, @w) {body=@f, captures=0}` --> `%y = Loop(%n, none, %x, @w) {body=@f, captures=1}`
    """

    name: ClassVar[str] = "hoist-invariants"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        hoisted = 0
        for op in list(m.walk()):
            if op.name in ("Loop", "Scan"):
                hoisted += _hoist(op, m, rw)
        rw.hits["hoist-invariants"] += hoisted
        return finish(rw, ctx, hoisted)


def _hoist(op: Op, m: Module, rw: Rewriter) -> int:
    (func,) = m.called(op)
    # operands and arguments before the states; results of the body before them
    before, given = (2, 1) if op.name == "Loop" else (0, 0)
    states = len(op.operands) - before - op.attrs["captures"] - op.attrs.get("num_scan_inputs", 0)
    found = [k for k in range(states) if _is_invariant(op, func, k, before, given)]
    if not found:
        return 0
    for k in found:
        value = op.operands[before + k]
        assert value is not None, "it is invariant"
        rw.replace_value(op.results[k], value)
    moved = [before + k for k in found]
    rw.replace_operands(op, _to_end(op.operands, moved))
    func.body.args[:] = _to_end(func.args, moved)
    op.results = tuple(v for k, v in enumerate(op.results) if k not in found)
    end = func.body.terminator
    rw.replace_operands(end, [v for k, v in enumerate(end.operands) if k - given not in found])
    op.attrs["captures"] += len(found)
    if not op.results:  # it computes nothing any more
        rw.erase(op)
    return len(found)


def _is_invariant(op: Op, func: Func, k: int, before: int, given: int) -> bool:
    """Whether state `k` is returned unchanged, with the type that it has at the start."""
    start = op.operands[before + k]
    same = func.results[given + k] is func.args[before + k]
    return same and start is not None and start.type == op.results[k].type == func.args[before + k].type


def _to_end(items: Sequence[T], moved: Sequence[int]) -> list[T]:
    return [*(v for k, v in enumerate(items) if k not in moved), *(items[k] for k in moved)]
