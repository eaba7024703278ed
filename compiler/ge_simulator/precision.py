"""What precision a graph is computed in: the modes of `--precision_mode_v2`."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

# The operators that the matrix unit computes.
CUBE = frozenset(
    {
        "BatchMatMul", "BatchMatMulV2", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Einsum", "MatMulV2",
    }
)  # fmt: skip
_HALF_MAX = 65504.0
_HALF_CUBE = ("mixed_float16", "allow_fp32_to_fp16")  # modes in which the matrix unit gives half precision


@dataclass(frozen=True)
class Precision:
    """How FLOAT tensors are computed.

    Attributes:
        mode: `origin` (as the graph says), `fp16` (everything in half precision), `cube_fp16in_fp32out` (the operands
            of the matrix unit in half precision), `mixed_float16`, `mixed_bfloat16` and `allow_fp32_to_fp16` (operands
            and results of the matrix unit).
        saturate: values beyond the range of half precision become its greatest, as chips before the 910B do it;
            else infinite.
        half_cube: the matrix unit has no fp32, so that a node that keeps its precision has operands in half precision there.
    """

    mode: str = "origin"
    saturate: bool = False
    half_cube: bool = False

    def operand(self, kind: str, x: np.ndarray, kept: bool = False) -> np.ndarray:
        """An operand as an operator of type `kind` sees it; `kept` if it keeps the precision of the graph."""
        if x.dtype != np.float32 or (kind not in CUBE and self.mode != "fp16"):
            return x
        if kept and self.mode != "origin":
            return self.half(x) if self.half_cube and kind in CUBE else x
        if self.mode in ("fp16", "cube_fp16in_fp32out", *_HALF_CUBE):
            return self.half(x)
        return x.astype(ml_dtypes.bfloat16).astype(np.float32) if self.mode == "mixed_bfloat16" else x

    def result(self, kind: str, x: np.ndarray, kept: bool = False) -> np.ndarray:
        """A result as it is stored."""
        if x.dtype != np.float32 or kept:
            return x
        if self.mode == "fp16" or (self.mode in _HALF_CUBE and kind in CUBE):
            return self.half(x)
        if self.mode == "mixed_bfloat16" and kind in CUBE:
            return x.astype(ml_dtypes.bfloat16).astype(np.float32)
        return x

    def half(self, x: np.ndarray) -> np.ndarray:
        """f32 rounded to half precision."""
        wide = np.clip(x, -_HALF_MAX, _HALF_MAX) if self.saturate else x
        with np.errstate(over="ignore"):
            return wide.astype(np.float16).astype(np.float32)
