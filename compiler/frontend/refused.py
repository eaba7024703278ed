"""Operators of com.microsoft that occ does not support, each with the reason."""

from __future__ import annotations

_GROUPED = "export the model with GroupQueryAttention"
_ALONE = "export encoder and decoder as separate models, and run the search outside of them, as `occ generate` does"
_CODES = "quantise the model with MatMulNBits"
# Operator -> why, and what to do.
REFUSED = {
    f"com.microsoft.{name}": why
    for name, why in {
        "SparseAttention": ("it attends to blocks that a table in the file lists", _GROUPED),
        "PagedAttention": ("it reads cache pages that a server allocates", _GROUPED),
        "DecoderMaskedMultiHeadAttention": ("it reads caches in the order of a beam search", _GROUPED),
        **dict.fromkeys(
            ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"),
            ("it contains a decoder and runs its own search", _ALONE),
        ),
        "MatMulFpQ4": ("its weight is in a private layout of onnxruntime", _CODES),
    }.items()
}
