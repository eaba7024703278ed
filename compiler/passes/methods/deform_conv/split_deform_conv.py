"""Splits deformable convolutions into samples (im2col) and a 1x1 convolution."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.window import window_of
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class SplitDeformConv(Pass):
    """Splits a DeformConv into samples, vectorised along the channels, and a Conv over them.

    `%y = DeformConv(%x, @w, %o)` --> `%s = deform_samples(%x, %o)  %y = Conv(Transpose(Reshape(%s)), @w.columns)`
    """

    name: ClassVar[str] = "split-deform-conv"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        split = 0
        for op in list(m.walk()):
            if op.name == "DeformConv" and (parts := _parts(op)):
                rw.replace(op, [_split(op, parts, rw)])
                split += 1
        m.drop_unused_weights()
        rw.hits["split-deform-conv"] += split
        return finish(rw, ctx, split)


def _parts(op: Op) -> int:
    """The number of channel parts, each with whole groups of channels and of offsets.

    0 if the op stays as it is.
    """
    x, w = op.operands[:2]
    if x is None or not isinstance(w, Weight) or w.tensor.rank != 4 or x.tensor.dtype != F32:
        return 0
    groups, offsets, channels = op.a.group, op.a.offset_group, x.tensor.dims[1]
    parts = max(groups, offsets)
    fits = isinstance(channels, int) and parts % groups == 0 and parts % offsets == 0 and channels % parts == 0
    return parts if fits else 0


def _split(op: Op, parts: int, rw: Rewriter) -> Value:
    x, w, offset, bias, mask = (*op.operands, None, None)[:5]
    assert x is not None
    assert isinstance(w, Weight)
    a = op.a
    a.auto_pad = "NOTSET"
    win = window_of("DeformConv", x.tensor.dims[2:], w.data.shape[2:], a)
    b = rw.builder(op)
    samples = b.deform_samples(
        x, offset, mask, kernel=win.kernel, strides=win.strides, dilations=win.dilations,
        before=tuple(win.before), shape=tuple(win.out), parts=parts, offset_group=a.offset_group,
    )  # fmt: skip
    depth = prod(samples.tensor.dims[3:])
    columns = b.Reshape(samples, b.constant(np.array([0, 0, 0, depth], np.int64)))
    return b.Conv(
        b.Transpose(columns, perm=(0, 3, 1, 2)),
        b.constant(_columns(w.data, parts // a.group)),
        bias,
        group=a.group,
        kernel_shape=(1, 1),
    )


def _columns(w: np.ndarray, parts: int) -> np.ndarray:
    """[O, C, taps...] --> [O, parts*taps*(C/parts), 1, 1], as samples follow each other within a group."""
    filters, channels = w.shape[:2]
    taps = prod(w.shape[2:])
    cut = w.reshape(filters, parts, channels // parts, taps).swapaxes(2, 3)
    return np.ascontiguousarray(cut).reshape(filters, channels * taps, 1, 1)
