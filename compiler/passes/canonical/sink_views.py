"""Moves Squeeze and Transpose below the elementwise ops that follow a convolution or product."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.access import access
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import normalize_axis
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

_VIEWS = ("Squeeze", "Transpose")


@dataclass(frozen=True)
class SinkViews(Pass):
    """Moves Squeeze and Transpose after a convolution or product below elementwise ops with constants.

    Those ops can then become its bias and part of its kernel. Keras exporters write a 1-D convolution as a 2-D one,
    squeeze the result, and then add the bias.

    `%s = Squeeze(%c, @axes)  %y = Add(%s, @b)` --> `%t = Add(%c, @b.1)  %y = Squeeze(%t, @axes)`
    """

    name: ClassVar[str] = "sink-views"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        # Results come after their operands, so one sweep moves a view below all ops that follow it.
        changes = sum(_sink(op, rw) for op in list(m.walk()))
        m.drop_unused_weights()
        return finish(rw, ctx, changes)


def _sink(op: Op, rw: Rewriter) -> bool:
    """Move the view that an elementwise op reads below the op; returns whether that was possible."""
    read = [v for v in op.inputs if not isinstance(v, Weight)]
    if len(read) != 1 or len(op.results) != 1 or op.regions or op.operands.count(read[0]) != 1:
        return False
    (viewed,) = read
    view = viewed.defining_op
    if view is None or view.name not in _VIEWS or len(viewed.uses) != 1:
        return False
    source = view.operands[0]
    if source is None or len(source.uses) != 1 or not _follows_product(source) or op.result.type != viewed.type:
        return False
    if not access(op).elementwise:
        return False
    moved: list[Value | None] = []
    b = rw.builder(op)
    for v in op.operands:
        if isinstance(v, Weight) and v.data.size != 1:
            before = _before(view, v.data, viewed.tensor.rank, source.tensor.rank)
            if before is None:
                return False
            moved.append(b.constant(np.ascontiguousarray(before)))
        else:
            moved.append(source if v is viewed else v)
    made = b.op(op.name, *moved, **op.attrs)
    assert made.defining_op is not None, "it is the result of an op"
    made.defining_op.loc = op.loc
    rw.replace(op, [b.op(view.name, made, *view.operands[1:], **view.attrs)])
    rw.erase(view)
    _sink(made.defining_op, rw)  # below the preceding view too
    return True


def _follows_product(x: Value) -> bool:
    """Whether a value comes from a convolution or product, possibly through elementwise ops and views."""
    op = x.defining_op
    while op is not None and "contraction" not in op.spec.tags:
        before = [v for v in op.inputs if not isinstance(v, Weight)]
        if len(before) != 1 or len(before[0].uses) != 1 or not (op.name in _VIEWS or access(op).elementwise):
            return False
        op = before[0].defining_op
    return op is not None


def _before(view: Op, data: np.ndarray, rank: int, source_rank: int) -> np.ndarray | None:
    """A constant reshaped to match the operand of a view instead of its result; None where the axes are unknown."""
    full = data.reshape((1,) * (rank - data.ndim) + data.shape)
    if view.name == "Transpose":
        perm = view.a.perm or tuple(range(rank))[::-1]
        return full.transpose(np.argsort(perm))
    axes = view.operands[1] if len(view.operands) > 1 else None
    if not isinstance(axes, Weight):
        return None
    squeezed = {normalize_axis(int(k), source_rank, "Squeeze") for k in axes.data.reshape(-1)}
    return np.expand_dims(full, tuple(sorted(squeezed)))
