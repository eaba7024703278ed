"""A file of safetensors: tensors by name, as views of the file.

Source: https://huggingface.co/docs/safetensors (the header).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from occ.compiler.diagnostics import shorten
from occ.compiler.frontend.architectures.stored_weights import Stored

_FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class SafetensorsError(ValueError):
    """A file is damaged, or contains something other than floats."""


def read_tensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file, which are views of it.

    Raises:
        SafetensorsError: it is damaged, or contains something other than floats.
    """
    header, data = _header(path)
    return {name: _stored(path, name, info, data) for name, info in header.items() if name != "__metadata__"}


def _header(path: Path) -> tuple[Mapping[str, Any], np.ndarray]:
    """The header of a safetensors file: tensors with types, shapes and offsets, and where their bytes start."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise SafetensorsError("it needs the package `safetensors`; `pip install safetensors`") from None
    try:
        with safe_open(path, "np"):
            pass
    except (SafetensorError, OSError) as e:
        raise SafetensorsError(f"`{path.name}` is damaged: {e}") from None
    data = np.memmap(path, np.uint8, "r").view(np.ndarray)
    size = int.from_bytes(data[:8].tobytes(), "little")
    return json.loads(data[8 : 8 + size].tobytes()), data[8 + size :]


def _stored(path: Path, name: str, info: Mapping[str, Any], data: np.ndarray) -> Stored:
    if info["dtype"] not in _FLOATS:
        raise SafetensorsError(f"its tensor `{shorten(name)}` is of {info['dtype']}; f32, f16 and bf16 are supported")
    start, end = info["data_offsets"]
    shape, dtype = tuple(info["shape"]), _FLOATS[info["dtype"]]
    return Stored(shape, lambda: data[start:end].view(dtype).reshape(shape))
