"""What the mapping knows of the chips: what it must not ask of one."""

from __future__ import annotations

from dataclasses import dataclass

from occ.compiler.codegen_cann.graph.kernels import KernelTable


@dataclass(frozen=True)
class Chip:
    """What a chip lacks.

    Attributes:
        missing: element types, by GE's name, that it does not compute with.
        block_products: its matrix unit multiplies by weights of 4 bits with a scale for each block.
        steps: it has AscendQuant and AscendDequant with scales of 64 bits, which keep quantised products in the matrix unit.
        kernels: operators that stand for groups of others, which it has.
        attention: which kernel of attention it has, or empty; PromptFlashAttention goes with IncreFlashAttention.
        name: as tables of kernels have it.
        table: its kernels; None where any will do.
        dynamic: extents may be unknown, so that kernels of fixed extents alone do not serve.
        boxes: how many of a class its NonMaxSuppressionV7 selects at most; 0 where it has none.
    """

    missing: frozenset[str] = frozenset({"STRING"})
    block_products: bool = False
    steps: bool = False
    kernels: frozenset[str] = frozenset()
    attention: str = ""
    boxes: int = 0
    name: str = ""
    table: KernelTable | None = None
    dynamic: bool = False


_OLDER = frozenset({"STRING", "BF16"})
_ROWS = frozenset({"AddRmsNorm", "RmsNorm", "SwiGlu"})
CHIPS: dict[str, Chip] = {
    "ascend310": Chip(_OLDER), "ascend310p": Chip(_OLDER, steps=True, kernels=_ROWS, attention="PromptFlashAttention", boxes=700),
    "ascend910": Chip(_OLDER),
    "ascend910b": Chip(
        block_products=True, steps=True, kernels=_ROWS | {"RotaryPositionEmbedding", "UniqueWithCountsAndSorting"},
        attention="FusedInferAttentionScore", boxes=2**31 - 1,
    ),
}  # fmt: skip
# The largest sizes that kernels take: those of a convolution, operands of a Concat or results of a Split.
FILTER, STRIDE, PAD, DILATION = 255, 63, 255, 255
WINDOW = 255  # elements of a pooling window
OPERANDS = 63
PADDED = 8  # axes that PadV3 takes
# Precision modes in which the matrix unit has half precision, so that operators without a kernel for FLOAT work too.
HALF_MODES = frozenset({"fp16", "cube_fp16in_fp32out", "mixed_float16", "allow_fp32_to_fp16"})
