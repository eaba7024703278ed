"""Packs constant weights of contractions in panels, so that the innermost loop of a kernel streams them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from occ.compiler.ir.layout import Layout, pack, panels
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.value import Weight
from occ.compiler.passes.base import Context, Pass


@dataclass(frozen=True)
class LayoutWeights(Pass):
    """Gives the weights of Conv, MatMul and Gemm a panel layout, packed now.

    `Conv(%x, @w : f32[64,3,7,7])` --> `Conv(%x, @w.packed : f32[64,3,7,7]@Abcd32a)`
    """

    lanes: int = 16

    name: ClassVar[str] = "layout-weights"

    def run(self, m: Module, ctx: Context) -> bool:
        packed: dict[tuple[Weight, Layout], Weight] = {}
        for op in list(m.walk()):
            layout = weight_layout(op, self.lanes)
            if layout is None:
                continue
            w = op.operands[1]
            assert isinstance(w, Weight)
            if (w, layout) not in packed:
                packed[w, layout] = m.add_weight(f"{w.name}.packed", pack(w.data, layout), w.tensor.with_layout(layout))
            op.set_operand(1, packed[w, layout])
        m.drop_unused_weights()
        ctx.hits["layout-weights"] += len(packed)
        return bool(packed)


def weight_layout(op: Op, lanes: int) -> Layout | None:
    """The layout of the weight of an op: panels along the axis that only the weight has, or None."""
    w = op.operands[1] if len(op.operands) > 1 else None
    if not isinstance(w, Weight) or not w.tensor.layout.is_row_major or w.tensor.dtype.name not in ("f32", "f64"):
        return None
    rank = w.tensor.rank
    match op.name:
        case "Conv" if op.a.group == 1:
            axis = 0
        case "MatMul" if rank == 2:
            axis = 1
        case "Gemm":
            axis = 0 if op.a.transB else 1
        case _:
            return None
    width = panel_width(int(w.tensor.dims[axis]), lanes)  # pyright: ignore[reportArgumentType]
    return panels(rank, axis, width) if width else None


def panel_width(extent: int, lanes: int) -> int:
    """Two vectors, or three or one where the number of vectors is odd; 0 where panels would be mostly padding."""
    if extent < lanes // 2:
        return 0
    count = -(-extent // lanes)
    return lanes * next((k for k in (2, 3) if count % k == 0), 1)
