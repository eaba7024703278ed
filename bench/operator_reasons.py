"""Why some operators are slower than in onnxruntime, for the page of `bench/operators.py`."""

from __future__ import annotations

from collections.abc import Mapping

_PLANES = "Channels are first in the model and last in the kernel. Between input and output alone, both copies count; a network has them at its ends."
_LOADS = "Halide has no gather instruction: elements are loaded one at a time."
_MEMORY = "Tensors are larger than the second cache. Not looked into further."

# Name of a row -> why it is below 0.8 at medium or large size.
REASONS: Mapping[str, str] = {
    "DFT": "Of symbolic length, a convolution of twice the length with a chirp: any length takes about the same time.",
    "ms CDist": "The rows are loaded once for each tile of distances.",
    **dict.fromkeys(("Conv 3x3 stride 2", "Conv 3x3 dilated", "Conv 1x1"), _PLANES),
    **dict.fromkeys(("Cast float16 to f32", "DynamicQuantizeLinear", "ms QLinearSigmoid"), _MEMORY),
    "GatherElements": _LOADS,
    "TopK of a vocabulary": "Keys are written, and counted digit by digit; onnxruntime keeps a heap in one pass.",
    "TopK of 100": "As for a vocabulary.",
    "AveragePool": "Of symbolic size, in half vectors; each sum is divided by a number of taps.",
    "Compress": "Flags are counted first, and each row is a copy of its own, into memory for all rows.",
    "Attention": "Of symbolic length: keys are in chunks that fit any length.",
    "ms QLinearGlobalAveragePool": "Of symbolic size: codes become f32 before they are added, as an i32 might overflow.",
}  # fmt: skip

_IN_MEMORY = "Each step is a kernel of its own, with its result in memory."
_NO_BLOCKS = "Not profiled. It has no blocks for caches, and no Winograd."

_VECTORS = "onnxruntime multiplies in AMX tiles on this machine, `cpu-jit` in vectors (VNNI)."

# The same for the target cpu-jit.
OF_JIT: Mapping[str, str] = {
    "ms CDist": "A difference and a multiply-add for each term. onnxruntime takes a matrix product, which loses digits of close points.",
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul", "ms DynamicQuantizeMatMul"), _VECTORS),
    **dict.fromkeys(("Conv 3x3", "Conv 3x3 stride 2", "Conv 3x3 dilated", "Conv 7x7 of a picture"), _NO_BLOCKS),
    **dict.fromkeys(("MatMul", "Gemm"), "f16 weights are widened in the loop of the product, once for each tile of rows."),
    "ms MatMulNBits level 0": "The weights are unpacked to f32 in memory, transposed, and then multiplied: three kernels, of which the product takes half.",
    **dict.fromkeys(("Softmax", "LogSoftmax", "DynamicQuantizeLinear"), _IN_MEMORY),
    "ms QLinearSigmoid": "onnxruntime looks up a table of 256 results.",
    "Pow": "`powf` of the C library, element by element.",
    **dict.fromkeys(("GatherElements", "GridSample linear", "Resize linear by 2"), "Elements are loaded one at a time, and not gathered."),
    "Compress": REASONS["Compress"],
}  # fmt: skip
