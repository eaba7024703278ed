"""Grouped convolutions of a few large groups, as one convolution for each group."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

_CONSTANT = {
    "Conv": (1, 2),
    "ConvInteger": (1, 3),
}  # operands with one part per group, which must be constant
MOST_GROUPS = 8
LEAST_CHANNELS = 8  # per group, in and out: fewer do not fill a vector, and the window rule is as fast


@dataclass(frozen=True)
class SplitGroups(Pass):
    """Splits a grouped convolution by group, so that each group's weights can be packed and tiled like any others.

    `%y = Conv(%x, @w) {group=2}` --> `%a = Slice(%x) %b = Slice(%x) %y = Concat(Conv(%a, @w0), Conv(%b, @w1))`
    """

    name: ClassVar[str] = "split-groups"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        split = 0
        for func in m.funcs.values():
            for op in list(func.body.body):
                if op.name in _CONSTANT and _worthwhile(op):
                    rw.replace(op, [_split(op, rw)])
                    split += 1
        m.drop_unused_weights()
        rw.hits["split-groups"] += split
        return finish(rw, ctx, split)


def _worthwhile(op: Op) -> bool:
    w = op.operands[1]
    parts = [op.operands[k] for k in _CONSTANT[op.name] if k < len(op.operands)]
    if not isinstance(w, Weight) or not all(v is None or isinstance(v, Weight) for v in parts):
        return False
    groups = op.a.group
    return 1 < groups <= MOST_GROUPS and min(w.data.shape[1], w.data.shape[0] // groups) >= LEAST_CHANNELS


def _split(op: Op, rw: Rewriter) -> Value:
    x, w = op.operands[:2]
    assert isinstance(w, Weight)
    groups, each = op.a.group, w.data.shape[1]
    b = rw.builder(op)
    attrs = {k: v for k, v in op.attrs.items() if k != "group"}
    made: list[Value] = []
    for k in range(groups):
        start, end, axis = (b.constant(np.array([n], np.int64)) for n in (k * each, (k + 1) * each, 1))
        rest = [_of_group(v, k, groups, b) if j in _CONSTANT[op.name] else v for j, v in enumerate(op.operands)]
        made.append(b.op(op.name, b.Slice(x, start, end, axis), *rest[1:], **attrs))
    return b.Concat(*made, axis=1)


def _of_group(v: Value | None, k: int, groups: int, b: GraphBuilder) -> Value | None:
    """The part of a constant that belongs to a group; a zero point of the whole tensor belongs to all."""
    if not isinstance(v, Weight) or v.data.size == 1:
        return v
    return b.constant(np.ascontiguousarray(np.split(v.data, groups)[k]))
