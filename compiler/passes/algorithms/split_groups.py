"""Convolutions of a few large groups as one convolution each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass, finish

_MOST_GROUPS = 8
_LEAST_CHANNELS = 8  # of a group, in and out: fewer do not fill a vector, and the window rule does as well


@dataclass(frozen=True)
class SplitGroups(Pass):
    """Gives every group of a grouped convolution its own weights, which then can be packed and tiled like any others.

    `%y = Conv(%x, @w) {group=2}` --> `%a = Slice(%x) %b = Slice(%x) %y = Concat(Conv(%a, @w0), Conv(%b, @w1))`
    """

    name: ClassVar[str] = "split-groups"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        split = 0
        for func in m.funcs.values():
            for op in list(func.body.body):
                if op.name == "Conv" and _worthwhile(op):
                    rw.replace(op, [_split(op, rw)])
                    split += 1
        m.drop_unused_weights()
        rw.hits["split-groups"] += split
        return finish(rw, ctx, split)


def _worthwhile(op: Op) -> bool:
    w = op.operands[1]
    bias = op.operands[2] if len(op.operands) > 2 else None
    groups = op.a.group
    if not isinstance(w, Weight) or not (bias is None or isinstance(bias, Weight)) or not 1 < groups <= _MOST_GROUPS:
        return False
    return min(w.data.shape[1], w.data.shape[0] // groups) >= _LEAST_CHANNELS


def _split(op: Op, rw: Rewriter) -> Value:
    x, w, bias = (*op.operands, None)[:3]
    assert isinstance(w, Weight)
    groups, each = op.a.group, w.data.shape[1]
    b = rw.builder(op)
    weights = np.split(w.data, groups)
    biases = np.split(bias.data, groups) if isinstance(bias, Weight) else [None] * groups
    attrs = {k: v for k, v in op.attrs.items() if k != "group"}
    parts: list[Value] = []
    for k in range(groups):
        start, end, axis = (b.constant(np.array([n], np.int64)) for n in (k * each, (k + 1) * each, 1))
        part = b.Slice(x, start, end, axis)
        known = None if biases[k] is None else b.constant(biases[k])
        parts.append(b.Conv(part, b.constant(np.ascontiguousarray(weights[k])), known, **attrs))
    return b.Concat(*parts, axis=1)
