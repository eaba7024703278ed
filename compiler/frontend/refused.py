"""Operators of com.microsoft that occ does not support, each with the reason."""

from __future__ import annotations

_GROUPED = "export the model with GroupQueryAttention"
_ALONE = "export encoder and decoder as models of their own, and search outside of them, as `occ generate` does"
_CODES = "quantise the model with MatMulNBits"
# Operator -> why, and what to do.
REFUSED = {
    f"com.microsoft.{name}": why
    for name, why in {
        "SparseAttention": ("it attends to blocks that a table of the file names", _GROUPED),
        "PagedAttention": ("it reads pages of caches that a server hands out", _GROUPED),
        "DecoderMaskedMultiHeadAttention": ("it reads caches by the beams of a search", _GROUPED),
        **dict.fromkeys(
            ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"),
            ("it runs the decoder that it holds in a search of its own", _ALONE),
        ),
        "MatMulFpQ4": ("its weight is in an order that onnxruntime keeps to itself", _CODES),
    }.items()
}
