"""Packs constant weights in the order in which kernels read them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import ClassVar

from occ.compiler.ir.access import reads
from occ.compiler.ir.build_te import typed_operands
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.layout import Layout, pack
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.base import Context, Pass
from occ.runtime.dataclass import dataclass

_LANES = 8  # f32 per vector of AVX2, which has 16 registers and multiply-adds
_PADDED = 64  # vectors of which one may be padding


@dataclass(frozen=True)
class LayoutWeights(Pass):
    """Packs weights at compile time in the layout of their operator: panels, or channels last for depthwise ones.

    A Gather of the same weight reads what is packed.

    `Conv(%x, @w : f32[64,3,7,7])` --> `Conv(%x, @w.packed : f32[64,3,7,7]@Acdb32a)`
    """

    lanes: int = 0  # f32 per vector; 0 means the target's
    products: bool = False  # only those of matrix products: convolutions take channels first
    threes: bool = False  # of these, panels of three vectors where four rows of them fill the registers

    name: ClassVar[str] = "layout-weights"

    def run(self, m: Module, ctx: Context) -> bool:
        lanes = self.lanes or ctx.machine.lanes(32)
        packed: dict[tuple[str, Layout], Weight] = {}
        rw = Rewriter(m)
        for op in list(m.walk()):
            layout = weight_layout(op, lanes)
            if layout is None or (self.products and reads(op) == "channels"):
                continue
            w = op.operands[1]
            assert isinstance(w, Weight)
            if self.threes and lanes == _LANES and op.spec.matrix_product is not None and w.tensor.dtype == F32:
                layout = _in_threes(layout, w, lanes)
            if (w.name, layout) not in packed:
                packed[w.name, layout] = m.add_weight(
                    f"{w.name}.packed", pack(w.data, layout), w.tensor.with_layout(layout)
                )
            rw.replace_operand(op, 1, packed[w.name, layout])
            for reader, k in [use for use in w.uses if "gather" in use[0].spec.tags and use[1] == 0]:
                rw.replace_operand(reader, k, packed[w.name, layout])
            m.release_weight(w)
        m.drop_unused_weights()
        ctx.hits["layout-weights"] += len(packed)
        return bool(packed)


def _in_threes(layout: Layout, w: Weight, lanes: int) -> Layout:
    """The layout with panels of three vectors, if these are at least three and little of them is padding.

    Four rows of three vectors fill 16 registers as six of two do, and divide the usual numbers of rows. For [576,
    1536], 8 rows take 0.90 of the time, 16 rows 0.87, 128 and 512 rows 0.95 to 0.97 (x86-64-v3).
    """
    ((axis, width),) = layout.tiles
    count = ceil(w.data.shape[axis] / lanes)
    padded = -count % 3 * _PADDED > count or width < lanes
    return layout if padded else replace(layout, tiles=((axis, 3 * lanes),))


def weight_layout(op: Op, lanes: int) -> Layout | None:
    """The layout that an operator wants for a constant second operand."""
    w = op.operands[1] if len(op.operands) > 1 else None
    if op.spec.weight is None or not isinstance(w, Weight) or not w.tensor.layout.is_row_major:
        return None
    return op.spec.weight(*typed_operands(op), a=op.a, lanes=lanes)
