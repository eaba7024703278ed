"""A decoder in a folder of the transformers library: `config.json`, and weights in safetensors, in one file or in several.

Source: https://huggingface.co/docs/safetensors (the header), `model.safetensors.index.json` as transformers writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto

from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.frontend.architectures.decoder_graph import decoder_model
from occ.compiler.frontend.architectures.stored import Stored, checked, unfused
from occ.compiler.frontend.architectures.transformers_config import MODEL_TYPES, Config, ConfigError, renamed
from occ.compiler.frontend.external import MappedModel

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def is_safetensors(path: Path) -> bool:
    """Whether a path is one that a folder of weights is opened by."""
    return path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json")


def read_safetensors(path: Path) -> tuple[ModelProto, MappedModel]:
    """The ONNX model of a decoder, and the bytes of its weights.

    Args:
        path: of `model.safetensors` or of the index, beside which the other files are.

    Raises:
        CompileError: OCC0109 a file is missing or damaged, or of an architecture that is not known, or the package `safetensors`
            is not installed.
    """
    try:
        config = Config(_object(path.parent / "config.json"))
        files = _shards(path)
        weights = {name: stored for file in files for name, stored in _tensors(file).items()}
        d = config.decoder(weights)
        weights = unfused(d, renamed(config, weights, tied=d.tied))
        if why := checked(weights, [*d.tensors()], ()):
            raise ConfigError(why)
    except ConfigError as e:
        raise _refused(path, str(e)) from None
    model, mapped = decoder_model(d, weights)
    mapped.files = frozenset({path.parent / "config.json", *files} - {path})
    return model, mapped


def _refused(path: Path, why: str) -> CompileError:
    return error(
        "OCC0109", f"the model of `{shorten(str(path))}` cannot be read: {why}",
        help=f"folders with weights of {', '.join(MODEL_TYPES)} are read; else export the model, such as with `optimum-cli export onnx`",
    )  # fmt: skip


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"`{path.name}` cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"`{path.name}` has no object")
    return found


def _shards(path: Path) -> list[Path]:
    """The files that hold the weights.

    Raises:
        ConfigError: the index names one that is not in its folder.
    """
    if path.suffix == ".safetensors":
        return [path]
    names = _object(path).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise ConfigError(f"`{path.name}` has no map of weights")
    found = sorted(set(names.values()))
    for name in found:
        if Path(name).name != name or not name.endswith(".safetensors") or not (path.parent / name).is_file():
            raise ConfigError(f"its part `{shorten(name)}` is missing")
    return [path.parent / name for name in found]


def _tensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file, which are views of it.

    Raises:
        ConfigError: it is damaged, or holds something else than floats.
    """
    header, data = _header(path)
    return {name: _stored(path, name, info, data) for name, info in header.items() if name != "__metadata__"}


def _header(path: Path) -> tuple[Mapping[str, Any], np.ndarray]:
    """The header of a safetensors file: tensors with types, shapes and offsets, and where their bytes begin."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ConfigError("it needs the package `safetensors`; `pip install safetensors`") from None
    try:
        with safe_open(path, "np"):
            pass
    except (SafetensorError, OSError) as e:
        raise ConfigError(f"`{path.name}` is damaged: {e}") from None
    data = np.memmap(path, np.uint8, "r").view(np.ndarray)
    size = int.from_bytes(data[:8].tobytes(), "little")
    return json.loads(data[8 : 8 + size].tobytes()), data[8 + size :]


def _stored(path: Path, name: str, info: Mapping[str, Any], data: np.ndarray) -> Stored:
    if info["dtype"] not in _FLOATS:
        raise ConfigError(f"its tensor `{shorten(name)}` is of {info['dtype']}, and f32, f16 and bf16 are read")
    start, end = info["data_offsets"]
    shape, dtype = tuple(info["shape"]), _FLOATS[info["dtype"]]
    return Stored(shape, lambda: data[start:end].view(dtype).reshape(shape))
