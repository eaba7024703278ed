"""Converts block-quantised weights of ggml to the layout of MatMulNBits, without requantising.

Sources: ggml-common.h (`block_q4_0` and others), and the package `gguf`, which dequantises unsupported types. Numbers
equal ggml's to the bit if zero points are whole, and to a rounding of f32 if blocks have a minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from occ.compiler.frontend.architectures.gguf_container import Container, ContainerError, TensorInfo
from occ.compiler.frontend.architectures.stored_weights import Blocks, Stored

# Codes u8 of each element, the scale of a block, and its minimum or the code for zero.
Unpacked = tuple[np.ndarray, np.ndarray, np.ndarray | int]
_PARTS = 1 << 24  # elements unpacked at a time


def _half(raw: np.ndarray, at: int) -> np.ndarray:
    """The f16 at a byte of each block, f32 `[n, 1]`."""
    return raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """All low halves of bytes, then all high ones."""
    return np.concatenate([raw & 15, raw >> 4], -1)


def _fifth_bits(raw: np.ndarray) -> np.ndarray:
    """Bit 4 of each of 32 codes, from 4 bytes."""
    return np.unpackbits(raw, axis=-1, bitorder="little") << 4


def _q4_0(raw: np.ndarray) -> Unpacked:
    return _nibbles(raw[:, 2:]), _half(raw, 0), 8


def _q4_1(raw: np.ndarray) -> Unpacked:
    return _nibbles(raw[:, 4:]), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: np.ndarray) -> Unpacked:
    return _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6]), _half(raw, 0), 16


def _q5_1(raw: np.ndarray) -> Unpacked:
    return _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _half(raw, 0), _half(raw, 2)


def _q8_0(raw: np.ndarray) -> Unpacked:
    return raw[:, 2:] ^ 128, _half(raw, 0), 128


def _scales_of_k(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of each of 8 blocks, f32 `[n, 8]`."""
    from gguf.quants import Q4_K

    scale, least = Q4_K.get_scale_min(raw[:, 4:16].copy())
    return _half(raw, 0) * scale.astype(np.float32), -_half(raw, 2) * least.astype(np.float32)


def _q4_k(raw: np.ndarray) -> Unpacked:
    return _nibbles(raw[:, 16:].reshape(-1, 4, 32)), *_scales_of_k(raw)


def _q5_k(raw: np.ndarray) -> Unpacked:
    high = raw[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1  # of 32 positions in each of 8 blocks
    low = _nibbles(raw[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return low | high.swapaxes(1, 2) << 4, *_scales_of_k(raw)


def _q6_k(raw: np.ndarray) -> Unpacked:
    low = _nibbles(raw[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    return low | high.reshape(-1, 8, 32) << 4, _half(raw, 208) * raw[:, 192:208].view(np.int8), 32


_Unpack = Callable[[np.ndarray], Unpacked]
# By ggml's name: the unpacking function, bits of the stored codes, and codes per scale.
KEPT: dict[str, tuple[_Unpack, int, int]] = {
    "Q4_0": (_q4_0, 4, 32), "Q4_1": (_q4_1, 4, 32), "Q5_0": (_q5_0, 8, 32), "Q5_1": (_q5_1, 8, 32),
    "Q8_0": (_q8_0, 8, 32), "Q4_K": (_q4_k, 4, 32), "Q5_K": (_q5_k, 8, 32), "Q6_K": (_q6_k, 8, 16),
}  # fmt: skip
_FLOATS: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F64": np.float64,
}


def stored_tensors(file: Container) -> dict[str, Stored]:
    """The tensors of a file by name, each checked to be inside it.

    Raises:
        ContainerError: one is not, or has an unreadable type.
    """
    return {name: _stored(file, name, info) for name, info in file.tensors.items()}


def _stored(file: Container, name: str, info: TensorInfo) -> Stored:
    import gguf
    from gguf.quants import _type_traits as widened

    name = name[:80]
    try:
        kind = gguf.GGMLQuantizationType(info.kind)
    except ValueError:
        raise ContainerError(f"its tensor `{name}` has the type {info.kind}, which is not known") from None
    if kind.name not in KEPT and kind.name not in _FLOATS and kind not in widened:
        raise ContainerError(f"its tensor `{name}` has the type {kind.name}, which cannot be read")
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    *rows, columns = info.shape or (1,)
    if columns % elements:
        raise ContainerError(f"its tensor `{name}` has rows of {columns} elements, not of whole blocks of {elements}")
    count = int(np.prod([*rows, columns // elements], dtype=object))
    if info.start + count * size > len(file.data):
        raise ContainerError(
            f"it ends at byte {len(file.data)}, and its tensor `{name}` at {info.start + count * size}: the download "
            "may be incomplete"
        )
    data = file.data[info.start : info.start + count * size]
    return Stored(info.shape, lambda: _loaded(data, kind, info.shape))


def _loaded(data: np.ndarray, kind: Any, shape: tuple[int, ...]) -> np.ndarray | Blocks:
    import gguf

    if kind.name in _FLOATS:
        found = data.reshape(-1).view(_FLOATS[kind.name]).reshape(shape)
        return found.astype(np.float32) if kind.name == "F64" else found
    if kind.name in KEPT and len(shape) == 2:
        return _blocks(data, *KEPT[kind.name], shape, gguf.GGML_QUANT_SIZES[kind][1])
    return gguf.dequantize(data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]), kind).reshape(shape).astype(np.float32)


def _blocks(data: np.ndarray, unpack: _Unpack, bits: int, size: int, shape: tuple[int, ...], each: int) -> Blocks:
    """A matrix `[N, K]` in blocks of `each` bytes, converted a few rows at a time."""
    rows, columns = shape
    data, step = data.reshape(rows, -1), max(1, _PARTS // columns)
    parts = [data[k : k + step] for k in range(0, rows, step)]
    made = [_some_rows(part, unpack, bits, (columns // size, size), each) for part in parts]
    codes, scales = np.concatenate([c for c, _, _ in made]), np.concatenate([s for _, s, _ in made])
    zeros = [z for _, _, z in made if z is not None]
    return Blocks(bits, size, codes, scales, np.concatenate(zeros) if zeros else None)


def _some_rows(
    data: np.ndarray, unpack: _Unpack, bits: int, blocks: tuple[int, int], each: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes, scales and zero points of rows."""
    rows = len(data)
    codes, scales, base = unpack(np.ascontiguousarray(data).reshape(-1, each))
    codes, scales = codes.reshape(rows, *blocks), scales.reshape(rows, -1).astype(np.float32)
    zeros = None
    if isinstance(base, int):  # shifted to the zero point of MatMulNBits
        codes = codes + np.uint8((1 << (bits - 1)) - base)
    else:
        least = base.reshape(rows, -1)
        flat = scales == 0  # the whole block equals its minimum: one code, with that as its scale
        codes = np.where(flat[..., None], np.uint8(0), codes)
        zeros = np.where(flat, np.float32(-1), -least / np.where(flat, np.float32(1), scales))
        scales = np.where(flat, least, scales)
    if bits == 4:
        codes = codes[..., ::2] | codes[..., 1::2] << 4
    return codes, scales, zeros
