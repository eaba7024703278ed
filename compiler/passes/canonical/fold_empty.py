"""Removes computations on tensors without elements."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class FoldEmpty(Pass):
    """Replaces values without elements by constants, and removes them from concatenations.

    For devices that cannot handle empty tensors: it removes the empty past from a decoder's first step.

    `%y = Concat(%past, %x)`, `%past: f32[0,4]` --> `%x`
    """

    name: ClassVar[str] = "fold-empty"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, changed = Rewriter(m), 0
        for func in m.funcs.values():
            for op in list(func.body):
                if op.name == "Concat":
                    changed += _without_empty_operands(op, rw)
                elif op.results and not op.regions and all(map(_is_empty, op.results)):
                    rw.replace(op, [_nothing(m, r) for r in op.results])
                    changed += 1
        m.drop_unused_weights()
        rw.hits["fold-empty"] += changed
        return finish(rw, ctx, changed)


def _is_empty(value: Value | None) -> bool:
    """Whether a value is known to have no elements; strings have no constants."""
    if value is None or not isinstance(value.type, TensorType) or not value.type.is_static:
        return False
    return 0 in value.type.static and value.type.dtype.kind != "s"


def _nothing(m: Module, value: Value) -> Weight:
    return m.add_weight(value.name, np.zeros(value.tensor.static, value.tensor.dtype.numpy))


def _without_empty_operands(op: Op, rw: Rewriter) -> bool:
    if _is_empty(op.result):
        rw.replace(op, [_nothing(rw.module, op.result)])
        return True
    kept = [v for v in op.inputs if not _is_empty(v)]
    if len(kept) == len(op.inputs):
        return False
    if len(kept) == 1 and kept[0].type == op.result.type:
        rw.replace(op, kept)
        return True
    rw.replace_operands(op, kept)
    return True
