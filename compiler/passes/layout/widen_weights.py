"""Stores f16 weights of convolutions as f32 where arithmetic limits the kernel."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from occ.compiler.ir.access import reads
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.passes.base import Context, Pass
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class WidenWeights(Pass):
    """Stores f16 weights as f32 if convolutions read them again for many positions.

    Sums are f32 anyway, and every f16 is an f32: no value changes. The kernel would widen a weight for every tile of
    positions, two vectors per 14 multiply-adds. The constants take twice the space. Measured on Zen 4, 1x1 from 160 to
    960 channels at 7x7: 0.32 ms with f16, 0.27 ms with f32.

    `Conv(%x : f16[1,8,9,9], @w : f16[8,8,1,1])` --> `Conv(%x, @w.f32 : f32[8,8,1,1])`
    """

    least: int = 9  # positions of an image; with fewer, reading weights dominates

    name: ClassVar[str] = "widen-weights"

    def run(self, m: Module, ctx: Context) -> bool:
        wide = 0
        for w in list(m.weights.values()):
            if w.tensor.dtype.name != "f16" or not w.uses or not all(k == 1 and self._takes(op) for op, k in w.uses):
                continue
            m.exchange_weight(w, m.add_weight(f"{w.name}.f32", w.data.astype(np.float32)))
            wide += 1
        ctx.hits["widen-weights"] += wide
        return wide > 0

    def _takes(self, op: Op) -> bool:
        """Whether an op is a convolution with one group, of an image that is large enough."""
        x, w = op.inputs[0].tensor, op.inputs[1].tensor
        if "contraction" not in op.spec.tags or reads(op) != "channels" or w.dims[1] != x.dims[1]:
            return False
        return prod(nominal(n) for n in op.result.tensor.dims[2:]) >= self.least
