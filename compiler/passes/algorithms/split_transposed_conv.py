"""Transposed convolutions as ordinary ones: one per phase of the stride, interleaved."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import ClassVar

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import floordiv, lower
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.transposed_convolution import transposed_window
from occ.compiler.ir.ops.window import Window
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.te.function import Tensor
from occ.compiler.passes.algorithms.split_groups import LEAST_CHANNELS, MOST_GROUPS
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class SplitTransposedConv(Pass):
    """Rewrites a ConvTranspose of stride `s` as one Conv with `s` times the channels per axis.

    Output `s*q + f` is the sum over `t` of `x[q - t] * w[s*t + f]`: for each phase `f` a convolution with every s-th
    tap.

    Groups of many channels are split first, as `split-groups` does it.

    `%y = ConvTranspose(%x, @w) {strides=[2, 2]}` --> `%c = Conv(%x, @w.phases)  %y = interleave(%c) {strides=[2, 2]}`
    """

    name: ClassVar[str] = "split-transposed-conv"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        split = 0
        for op in list(m.walk()):
            if op.name == "ConvTranspose" and (window := _window(op)) is not None:
                rw.replace(op, [_split(op, window, rw)])
                split += 1
        m.drop_unused_weights()
        rw.hits["split-transposed-conv"] += split
        return finish(rw, ctx, split)


def _window(op: Op) -> Window | None:
    """The window if the op can be split: constant weight, no dilation or output padding."""
    x, w = op.operands[:2]
    bias = op.operands[2] if len(op.operands) > 2 else None
    if x is None or not isinstance(w, Weight) or not (bias is None or isinstance(bias, Weight)):
        return None
    window = transposed_window(Tensor("x", x.tensor), Tensor("w", w.tensor), op.a)
    inside = all(lower(n) >= 0 for n in (*window.before, *window.after))
    empty = any(n == 0 for n in window.out)  # no convolution has so few
    return window if inside and not empty and all(d == 1 for d in window.dilations) else None


def _split(op: Op, win: Window, rw: Rewriter) -> Value:
    """Groups of many channels are convolutions of their own, as `split-groups` has them: then phases are whole rows."""
    x, w, *rest = op.operands
    assert x is not None
    assert isinstance(w, Weight)
    bias = rest[0].data if rest and isinstance(rest[0], Weight) else None
    groups, b = op.a.group, rw.builder(op)
    each = w.data.shape[0] // groups
    if groups == 1 or groups > MOST_GROUPS or min(each, w.data.shape[1]) < LEAST_CHANNELS:
        return _phases(x, w.data, bias, groups, win, b)
    made: list[Value] = []
    for k, weight in enumerate(np.split(w.data, groups)):
        start, end, axis = (b.constant(np.array([n], np.int64)) for n in (k * each, (k + 1) * each, 1))
        own = None if bias is None else np.split(bias, groups)[k]
        made.append(_phases(b.Slice(x, start, end, axis), weight, own, 1, win, b))
    return b.Concat(*made, axis=1)


def _phases(x: Value, w: np.ndarray, bias: np.ndarray | None, groups: int, win: Window, b: GraphBuilder) -> Value:
    """The convolution, and its phases interleaved."""
    taps = [-(-k // s) for k, s in zip(win.kernel, win.strides, strict=True)]
    phases = prod(win.strides)
    weight = np.concatenate([_phase_weights(part, taps, win.strides) for part in np.split(w, groups)])
    # The grid of q that the output needs; the convolution is padded to produce exactly that many.
    grid = [floordiv(b + n - 1, s) + 1 for b, n, s in zip(win.before, win.out, win.strides, strict=True)]
    after = [q - n for q, n in zip(grid, x.tensor.dims[2:], strict=True)]
    pads = tuple([t - 1 for t in taps] + after)
    spread = None
    if bias is not None:
        spread = b.constant(np.concatenate([np.tile(part, phases) for part in np.split(bias, groups)]))
    in_groups = groups if groups > 1 else None
    conv = b.Conv(x, b.constant(weight), spread, pads=pads, kernel_shape=tuple(taps), group=in_groups)
    if phases == 1 and conv.tensor.dims[2:] == win.out and all(n == 0 for n in win.before):
        return conv
    return b.interleave(conv, strides=win.strides, before=tuple(win.before), shape=tuple(win.out), group=in_groups)


def _phase_weights(w: np.ndarray, taps: list[int], strides: tuple[int, ...]) -> np.ndarray:
    """[C, O, k...] --> [phases*O, C, taps...], the taps in the order of a convolution.

    Taps past the kernel are zero.
    """
    margins = [(0, 0), (0, 0)] + [(0, t * s - k) for t, s, k in zip(taps, strides, w.shape[2:], strict=True)]
    padded = np.pad(w, margins)
    parts: list[np.ndarray] = []
    for phase in product(*map(range, strides)):
        cut = padded[(slice(None), slice(None), *(slice(f, None, s) for f, s in zip(phase, strides, strict=True)))]
        parts.append(np.flip(cut, tuple(range(2, w.ndim))).swapaxes(0, 1))
    return np.ascontiguousarray(np.concatenate(parts))
