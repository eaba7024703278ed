"""Growing KV caches: the sequence axis becomes outermost, so appending copies nothing."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import normalize_axis
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class GrowCaches(Pass):
    """Moves the growing axis of KV caches (inputs that an output continues) to the front.

    New entries then follow the old ones in memory. If a caller passes the input and the output as the beginning of one
    array, nothing is copied; with separate arrays the step works as before.

    `func(%past: f32[N,3,P,64]) { %present = Concat(%past, %new) {axis=2}  return %present : f32[N,3,P + S,64] }` -->
    `func(%past: f32[P,N,3,64]) { %t = Transpose(%new) {perm=[2,0,1,3]}  %present = append(%t, %past)
    return %present : f32[P + S,N,3,64] }`, and other readers of `%past` and `%present` transpose them back.
    """

    name: ClassVar[str] = "grow-caches"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, grown = Rewriter(m), 0
        for op in list(m.main.body):
            if op.name == "Concat" and (past := _cache(op, m.main)) is not None:
                _grow(op, past, m.main, rw)
                grown += 1
        rw.hits["grow-caches"] += grown
        return finish(rw, ctx, grown)


def _cache(op: Op, main: Func) -> Value | None:
    """The input that an output continues, where an inner axis grows."""
    past, *new = op.operands
    inputs, results = main.args, main.body.terminator.operands
    if past not in inputs or len(new) != 1 or new[0] is None or results.count(op.result) != 1 or past in results:
        return None
    return past if normalize_axis(op.a.axis, op.result.tensor.rank, op.name) else None


def _grow(op: Op, past: Value, main: Func, rw: Rewriter) -> None:
    rank = op.result.tensor.rank
    axis = normalize_axis(op.a.axis, rank, op.name)
    first = (axis, *(k for k in range(rank) if k != axis))
    back = tuple(first.index(k) for k in range(rank))
    new, name = op.operands[1], op.result.name
    old_type = past.tensor
    past.type = type(old_type)(old_type.dtype, tuple(old_type.dims[k] for k in first))
    b = rw.builder(op)
    readers = [use for use in past.uses if use[0] is not op]
    if readers:
        head = main.body.first
        assert head is not None
        again = rw.builder(head).Transpose(past, perm=back)
        for user, k in readers:
            rw.replace_operand(user, k, again)
    present = b.append(b.Transpose(new, perm=first), past)
    end = main.body.terminator
    k = end.operands.index(op.result)
    rw.replace_operand(end, k, present)
    rw.replace(op, [b.Transpose(present, perm=back)])
    present.name = name
