"""Rewrites small convolutions by Winograd's minimal filtering where it pays."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.ops.own.winograd import SIZE, SMALL, outputs_of, points_of, transformed_weight
from occ.compiler.ir.ops.window import window_of
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

LEAST_CHANNELS = 8  # and a vector, which the transforms fill
TAPS = (1, 3, 5)
_DTYPES = ("f32", "f16")  # bf16 has instructions that multiply twice as many on the processors that have it at all
_FEW_TILES, _LARGE = 4, 1 << 14  # tiles of 4x4 outputs in a plane, and channels times filters
_LEAST_GAIN = 1.5  # savings in multiplications: below this, the transforms cost as much, as if 5 of 8 outputs are kept


@dataclass(frozen=True)
class UseWinograd(Pass):
    """Replaces convolutions of stride 1 with three or five taps per axis and enough channels by `winograd`.

    Weights are transformed at compile time. They grow by 4 for 3x3, by 1.8 if planes are small and weights large, by
    1.44 for 5x5, by 2 and 1.2 if only one axis has taps, and f16 becomes f32. Measured against direct
    convolution on Zen 4: 3x3: 3.5x at 56x56, 2.8x at 14x14, 1.7x at 7x7; on Zen 5 from 16 channels to 64 at 55x55:
    2.3x, from 96 to 24 at 80x120: 2.9x. Channels need not fill vectors: from 17 to 16 at 56x56 1.7x, from 312 to 128 at
    32x32 3.4x (Zen 4), from 8 to 16 at 56x56 1.6x (the same, with AVX2).

    `%y = Conv(%x, @w : f32[64,64,3,3])` --> `%y = winograd(%x, @u : f32[36,64,64]) {kernel_shape=[3, 3]}`
    """

    name: ClassVar[str] = "use-winograd"

    def run(self, m: Module, ctx: Context) -> bool:
        lanes = ctx.machine.lanes(32)
        rw = Rewriter(m)
        made: dict[tuple[str, int], Weight] = {}
        used = 0
        for op in [op for func in m.funcs.values() for op in func.body.body]:
            if op.name == "Conv" and _pays(op, lanes):
                w = op.operands[1]
                assert isinstance(w, Weight)
                size = _size(op, w)
                if (w.name, size) not in made:
                    wide = w.data.astype(w.tensor.dtype.acc.numpy, copy=False)
                    made[w.name, size] = m.add_weight(f"{w.name}.winograd", transformed_weight(wide, size))
                x, _, bias = (*op.operands, None)[:3]
                taps, pads = w.data.shape[2:], _pads(op, w)
                rw.replace(op, [rw.builder(op).winograd(x, made[w.name, size], bias, kernel_shape=taps, pads=pads)])
                used += 1
                m.release_weight(w)
        m.drop_unused_weights()
        rw.hits["use-winograd"] += used
        return finish(rw, ctx, used)


def _pays(op: Op, lanes: int) -> bool:
    x, w, a = op.operands[0], op.operands[1], op.a
    if x is None or not isinstance(w, Weight) or w.tensor.dtype.name not in _DTYPES or w.tensor.rank != 4:
        return False
    plain = a.group == 1 and all(k == 1 for k in (*(a.strides or ()), *(a.dilations or ())))
    taps = w.data.shape[2:]
    if not plain or not {*taps} <= {*TAPS} or {*taps} == {1}:
        return False
    filters, channels = w.data.shape[:2]
    if min(filters, channels) < max(LEAST_CHANNELS, lanes):
        return False
    if not all(isinstance(p, int) and p >= 0 for p in _pads(op, w)):
        return False
    sizes = list(zip(op.result.tensor.dims[2:], taps, strict=True))
    tiles = all(k == 1 or not isinstance(n, int) or n > outputs_of(k) for n, k in sizes)  # two each way
    return tiles and prod(_gain(n, k) for n, k in sizes) >= _LEAST_GAIN


def _pads(op: Op, w: Weight) -> tuple[Dim, ...]:
    """The border of a convolution, by `pads` or by `auto_pad`."""
    x = op.operands[0]
    assert x is not None
    window = window_of(op.name, x.tensor.dims[2:], w.data.shape[2:], op.a)
    return (*window.before, *window.after)


def _size(op: Op, w: Weight) -> int:
    """The tile size of the input: small for a small plane with large weights.

    There, reading the weights takes longer than multiplying, and those of small tiles are less than half as large. Zen
    5, one thread, in whole networks: 512 to 512 at 7x7: 1.10 --> 0.64 ms, 192 to 320: 0.33 --> 0.16 ms.
    """
    sizes, (filters, channels, *taps) = op.result.tensor.dims[2:], w.data.shape
    tiles = prod(
        ceil(n / outputs_of(k)) if isinstance(n, int) else _FEW_TILES + 1 for n, k in zip(sizes, taps, strict=True)
    )
    return SMALL if taps == [3, 3] and tiles <= _FEW_TILES and filters * channels >= _LARGE else SIZE


def _gain(size: Dim, taps: int) -> float:
    """The ratio of multiplications of direct convolution to Winograd's along an axis."""
    tile = outputs_of(taps)
    waste = size / (ceil(size / tile) * tile) if isinstance(size, int) else 1
    return waste * tile * taps / points_of(taps)
