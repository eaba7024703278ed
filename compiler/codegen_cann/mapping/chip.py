"""Limits of the chips that the mapping respects."""

from __future__ import annotations

from occ.compiler.codegen_cann.graph.kernels import KernelTable
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Chip:
    """Limitations of a chip.

    Attributes:
        missing: element types, by GE's name, that it does not compute with.
        block_products: whether its matrix unit multiplies 4-bit weights with a scale per block.
        ascend_quant: whether AscendQuant and AscendDequant keep quantised products in the matrix unit.
        attention: its attention kernel, or empty; PromptFlashAttention comes with IncreFlashAttention.
        table: its kernels; None means any.
        dynamic: whether extents may be unknown, which rules out kernels for fixed extents.
        boxes: the most per class that its NonMaxSuppressionV7 selects; 0 if it has none.
    """

    missing: frozenset[str] = frozenset({"STRING"})
    block_products: bool = False
    ascend_quant: bool = True
    attention: str = ""
    boxes: int = 0
    table: KernelTable | None = None
    dynamic: bool = False

    @property
    def wide_batches(self) -> bool:
        """Whether batched half-precision products with unknown extents have FLOAT sums."""
        rows = self.table.kernels("BatchMatMulV2") if self.table is not None else ()
        return any(k.dynamic and "FLOAT" in k.outputs[0].types for k in rows if k.unit == "AI Core" and k.outputs)

    def has(self, operator: str) -> bool:
        """Whether it has an AI Core kernel of an operator for unknown extents, if there may be such."""
        rows = self.table.kernels(operator) if self.table is not None else ()
        return any(k.unit == "AI Core" and (k.dynamic or not self.dynamic) for k in rows)


_OLDER = frozenset({"STRING", "BF16"})
_NEWER = Chip(
    block_products=True,
    attention="FusedInferAttentionScore",
    boxes=2**31 - 1,
)
CHIPS: dict[str, Chip] = {
    "ascend310": Chip(_OLDER, boxes=700),
    "ascend310b": Chip(_OLDER, boxes=700),
    "ascend310p": Chip(_OLDER, attention="PromptFlashAttention", boxes=700),
    "ascend910": Chip(_OLDER, boxes=700),
    "ascend910b": _NEWER,
    "ascend910_93": _NEWER,
}
# The largest sizes that kernels support: of a convolution, operands of a Concat or results of a Split.
FILTER, STRIDE, PAD, DILATION = 255, 63, 255, 255
WINDOW = 255  # elements of a pooling window
OPERANDS = 63
PADDED = 8  # axes that PadV3 supports
# Precision modes that allow half precision in the matrix unit, so that operators without FLOAT kernels work too.
HALF_MODES = frozenset({"fp16", "cube_fp16in_fp32out", "mixed_float16", "allow_fp32_to_fp16"})
HALF_RESULTS = HALF_MODES - {"cube_fp16in_fp32out"}  # those in which results of products are in half precision too
