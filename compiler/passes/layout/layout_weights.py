"""Lays constant weights out as the innermost loop of their kernel streams them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from occ.compiler.ir.layout import Layout, pack
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass

PACKED = ("f64", "f32", "f16", "bf16")  # element types with kernels that take panels


@dataclass(frozen=True)
class LayoutWeights(Pass):
    """Gives the weights of Conv, MatMul and Gemm a panel layout, packed now; depthwise ones put their channels last.

    `Conv(%x, @w : f32[64,3,7,7])` --> `Conv(%x, @w.packed : f32[64,3,7,7]@Acdb32a)`
    """

    lanes: int = 0  # of an f32 vector; 0 takes those of the target

    name: ClassVar[str] = "layout-weights"

    def run(self, m: Module, ctx: Context) -> bool:
        lanes = self.lanes or ctx.machine.lanes(32)
        packed: dict[tuple[str, Layout], Weight] = {}
        rw = Rewriter(m)
        for op in list(m.walk()):
            layout = weight_layout(op, lanes)
            if layout is None:
                continue
            w = op.operands[1]
            assert isinstance(w, Weight)
            if (w.name, layout) not in packed:
                packed[w.name, layout] = m.add_weight(
                    f"{w.name}.packed", pack(w.data, layout), w.tensor.with_layout(layout)
                )
            rw.replace_operand(op, 1, packed[w.name, layout])
            m.release_weight(w)
        m.drop_unused_weights()
        ctx.hits["layout-weights"] += len(packed)
        return bool(packed)


def weight_layout(op: Op, lanes: int) -> Layout | None:
    """The layout of the weight of an op: panels along the axis that only the weight has, or None."""
    x, w = (*op.operands, None, None)[:2]
    if not isinstance(w, Weight) or not w.tensor.layout.is_row_major:
        return None
    if op.name in ("conv_dot", "matmul_dot"):
        return _in_fours(op, w, lanes)
    if w.tensor.dtype.name not in PACKED:
        return None
    rank = w.tensor.rank
    match op.name:
        case "Conv" if op.a.group == 1:
            # Channels innermost for channels-last inputs; taps innermost where channels are few and lie apart.
            taps = tuple(range(2, rank))
            axis, order, least = 0, (0, *taps, 1) if _is_channels_last(x) else (0, 1, *taps), 2
            if any(w.tensor.dims[k] != 1 for k in taps):
                least = 8  # fewer channels do not fill a vector: those kernels run along rows
        case "Conv" if w.tensor.dims[1] == 1:
            return Layout((*range(1, rank), 0))
        case "winograd":
            axis, order, least = 2, (2, 0, 1), lanes
        case "strassen":
            return Layout((2, 0, 1), ((2, op.a.width),))
        case "MatMul" if rank == 2:
            axis, order, least = 1, (1, 0), lanes // 2
        case "Gemm":
            axis, least = 0 if op.a.transB else 1, lanes // 2
            order = (axis, 1 - axis)
        case _:
            return None
    width = panel_width(int(w.tensor.dims[axis]), lanes, least)  # pyright: ignore[reportArgumentType]
    return Layout(order, ((axis, width),)) if width else None


def _in_fours(op: Op, w: Weight, lanes: int) -> Layout:
    """Panels of fours of bytes or pairs of bf16, each of which is multiplied into a lane of 32 bits."""
    rank = w.tensor.rank
    if op.name == "conv_dot" and op.a.group != 1:
        return Layout((*range(1, rank), 0))
    axis, order, four = (0, (0, *range(3, rank), 1, 2), 2) if op.name == "conv_dot" else (2, (2, 0, 1), 1)
    width = panel_width(int(w.tensor.dims[axis]), lanes, 1)  # pyright: ignore[reportArgumentType]
    return Layout(order, ((axis, width), (four, int(w.tensor.dims[four]))))  # pyright: ignore[reportArgumentType]


def _is_channels_last(x: Value | None) -> bool:
    """Whether the kernel reads channels as contiguous memory: the value has them last, or a border is added first."""
    if x is None:
        return False
    wide = x.tensor.dims[1]
    return x.tensor.layout.is_permuted or not isinstance(wide, int) or wide >= 8


def panel_width(extent: int, lanes: int, least: int) -> int:
    """Two vectors, or three or one where the number of vectors is odd; 0 where panels would be mostly padding."""
    if extent < least:
        return 0
    while lanes >= 2 * max(extent, 4):
        lanes //= 2
    count = -(-extent // lanes)
    return lanes * next((k for k in (2, 3) if count % k == 0), 1)
