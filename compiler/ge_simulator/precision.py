"""The precision modes of `atc --precision_mode_v2`, with the kernels that a chip has."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from occ.compiler.ge_simulator.kernel_table import Wanted, float_type, kernel
from occ.compiler.ge_simulator.reader import Node
from occ.runtime.dataclass import dataclass

# Operators of the matrix unit.
CUBE = frozenset(
    {
        "BatchMatMul", "BatchMatMulV2", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Einsum", "MatMulV2",
    }
)  # fmt: skip
# Operators whose types are essential: no mode changes them.
_EXACT = frozenset({"AscendAntiQuant", "AscendDequant", "AscendQuant", "Cast"})
_HALF_MAX = 65504.0
_FLOAT, _HALF, _WIDENED = ("FLOAT", "FLOAT"), ("FLOAT16", "FLOAT16"), ("FLOAT16", "FLOAT")
_VECTOR = (_FLOAT, _HALF)
# mode -> replacements for FLOAT, best first: in the matrix unit, elsewhere
_MODES = {
    "origin": ((_FLOAT,), (_FLOAT,)),
    "fp16": ((_HALF, _WIDENED, _FLOAT), (_HALF, _FLOAT)),
    "cube_fp16in_fp32out": ((_WIDENED, _FLOAT, _HALF), _VECTOR),
    "mixed_float16": ((_HALF, _WIDENED, _FLOAT), _VECTOR),
    "mixed_bfloat16": ((("BF16", "BF16"), ("BF16", "FLOAT"), _FLOAT), _VECTOR),
    "allow_fp32_to_fp16": ((_HALF, _WIDENED, _FLOAT), _VECTOR),
}
_KEPT = (_FLOAT, _WIDENED, _HALF)  # for `_keep_dtype`, or the most precise kernel


@dataclass(frozen=True)
class Computed:
    """The types in which a node computes what its graph calls FLOAT: operands, results; and its unit."""

    operands: str = "FLOAT"
    results: str = "FLOAT"
    unit: str = ""


@dataclass(frozen=True)
class Precision:
    """How FLOAT tensors are computed.

    Attributes:
        mode: `origin` (as in the graph), `fp16` (everything in half precision), `cube_fp16in_fp32out` (the operands of
            the matrix unit in half precision), `mixed_float16`, `mixed_bfloat16` and `allow_fp32_to_fp16` (operands and
            results of the matrix unit). If a chip lacks the kernel, modes other than `origin` use another one.
        chip: one of `kernel_table.CHIPS`, or empty for one that has every kernel.
        fixed: whether unknown extents are those of gears, known when kernels are chosen.
    """

    mode: str = "origin"
    chip: str = ""
    fixed: bool = False

    def computed(self, node: Node) -> Computed:
        """The types in which a node is computed, and the unit with the kernel.

        Raises:
            NoKernel: the chip has no kernel for it.
        """
        wanted = self._wanted(node)
        if not self.chip:
            return Computed(*wanted.pairs[0])
        found = kernel(node, self.chip, wanted, fixed=self.fixed)
        return Computed(found.operands, found.results, found.unit)

    def _wanted(self, node: Node) -> Wanted:
        """The kernels that a precision mode accepts for a node, best first."""
        cube, vector = _MODES[self.mode]
        name = float_type(node)
        if name in ("", "FLOAT16", "BF16") or node.type in _EXACT:  # FLOAT besides them is as in the graph
            raised = (_FLOAT,) if name and self.mode != "origin" and node.type not in _EXACT else ()
            return Wanted((_FLOAT, *raised), frozenset({"FLOAT"} if raised else ()))
        free = (
            frozenset()
            if self.mode == "origin"
            else frozenset({"FLOAT", "BF16" if "bfloat" in self.mode else "FLOAT16"})
        )
        if self.mode != "origin" and node.attrs.get("_keep_dtype", 0):
            return Wanted(_KEPT, free)
        return Wanted(cube if node.type in CUBE else vector, free)

    def rounded(self, x: np.ndarray, to: str) -> np.ndarray:
        """f32 rounded to a type in which a node computes; others unchanged."""
        if x.dtype != np.float32 or to == "FLOAT":
            return x
        return self.half(x) if to == "FLOAT16" else x.astype(ml_dtypes.bfloat16).astype(np.float32)

    def half(self, x: np.ndarray) -> np.ndarray:
        """f32 rounded to half precision; chips before the 910B saturate, others overflow."""
        wide = np.clip(x, -_HALF_MAX, _HALF_MAX) if self.chip not in ("", "910B") else x
        with np.errstate(over="ignore"):
            return wide.astype(np.float16).astype(np.float32)
