"""In-place updates of fixed-size KV caches."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import normalize_axis
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

_KEYS = 2  # the axis along which the caches of GroupQueryAttention grow


@dataclass(frozen=True)
class WriteInPlace(Pass):
    """Writes new entries directly into fixed-size caches: inputs that an output of the same type continues.

    If a caller passes the input and the output as one array, nothing is copied; with separate arrays the whole cache is
    copied first.

    `func(%past: f32[N,3,64,8]) { %present = TensorScatter(%past, %new, %at)  return %present }` -->
    `func(%past: f32[N,3,64,8]) { %present = write_into(%past, %new, %at) {axis=2, ..}  return %present }`
    """

    name: ClassVar[str] = "write-in-place"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, made = Rewriter(m), 0
        for op in list(m.main.body):
            if (found := _write(op)) is not None and _continues(op, m.main):
                new, starts, axis, circular, name = found
                b = rw.builder(op)
                rw.replace(op, [b.write_into(op.operands[0], new, starts, axis=axis, circular=circular, operator=name)])
                made += 1
        rw.hits[self.name] += made
        return finish(rw, ctx, made)


def _write(op: Op) -> tuple[Value | None, Value | None, int, bool, str] | None:
    """The update of an op's first operand: the data, the start, the axis, and whether it wraps."""
    if op.name == "TensorScatter":
        new, starts = (*op.operands[1:], None)[:2]
        axis = normalize_axis(op.a.axis, op.result.tensor.rank, op.name)
        return new, starts, axis, op.a.mode == "circular", op.name
    if op.name == "cache_append":
        return op.operands[1], op.operands[2], _KEYS, False, "GroupQueryAttention"
    return None


def _continues(op: Op, main: Func) -> bool:
    """Whether a result is the output that continues an input with no other reader."""
    past, results = op.operands[0], main.body.terminator.operands
    if past is None or past not in main.args or len(past.uses) != 1 or results.count(op.result) != 1:
        return False
    return past.type == op.result.type
