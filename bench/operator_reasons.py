"""Why some operators are slower than in onnxruntime, for the page of `bench/operators.py`."""

from __future__ import annotations

from collections.abc import Mapping

_PLANES = "Channels are first in the model and last in the kernel. Between input and output alone, both copies count; a network has them at its ends."
_DEPTHWISE = "Planes with channels first. Networks have channels last, where the kernel is another one."
_LOADS = "Halide has no gather instruction: elements are loaded one at a time."
_TILES = "onnxruntime multiplies in AMX tiles on this machine, occ in vectors (VNNI). What tiles would take: docs/inner-loops.md."
_MEMORY = "The tensors are larger than the caches. Not looked into further."

# Name of a row -> why it is below 0.8 at medium or large size.
REASONS: Mapping[str, str] = {
    "DFT": "Of symbolic length, a convolution of twice the length with a chirp: any length takes about the same time.",
    "ms CDist": "Squares of differences are summed. onnxruntime takes a matrix product, which loses digits of close points.",
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul", "ms DynamicQuantizeMatMul"), _TILES),
    **dict.fromkeys(("Conv 1x1", "Conv 3x3 stride 2", "Conv 3x3 dilated", "Conv 7x7 of a picture"), _PLANES),
    **dict.fromkeys((f"Conv {k}x{k} by channel" for k in (3, 7, 31)), _DEPTHWISE),
    "GatherElements": "Indices are checked in a pass of their own: at large size memory counts, and they are read twice.",
    "GridSample linear": _LOADS,
    "TopK of a vocabulary": "Keys are written, and counted digit by digit; onnxruntime keeps a heap in one pass.",
    "TopK of all": f"Runs are merged by binary searches. {_LOADS}",
    "TopK of 100": "As for a vocabulary.",
    **dict.fromkeys(("MaxPool", "AveragePool"), "Of symbolic size, in half vectors, whose border is tested in each row."),
    **dict.fromkeys(("Transpose", "Transpose to channels last"), "Squares of 4x4 elements of any type: larger ones took longer."),
    "Compress": "The size of the result is known after the flags are counted: it has memory of its own, and a copy for each row.",
    **dict.fromkeys(("Tile", "Softmax", "SpaceToDepth", "ReduceSum of columns", "ReduceMean of columns"), _MEMORY),
    "ms QLinearGlobalAveragePool": "Not looked into.",
}  # fmt: skip
