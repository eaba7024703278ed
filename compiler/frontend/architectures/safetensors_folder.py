"""A decoder in a folder of the transformers library: `config.json`, and weights in one or several safetensors files.

Source: https://huggingface.co/docs/safetensors (the header), `model.safetensors.index.json` as transformers writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onnx import ModelProto

from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.frontend.architectures.decoder_graph import decoder_model
from occ.compiler.frontend.architectures.lora import adapted
from occ.compiler.frontend.architectures.safetensors_file import SafetensorsError, read_tensors
from occ.compiler.frontend.architectures.stored_weights import checked, unfused
from occ.compiler.frontend.architectures.transformers_config import MODEL_TYPES, Config, ConfigError, renamed
from occ.compiler.frontend.external import MappedModel

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_safetensors(path: Path, adapter: Path | None = None) -> tuple[ModelProto, MappedModel]:
    """The ONNX model of a decoder, and the bytes of its weights.

    Args:
        path: of `model.safetensors` or of the index, next to which the other files are.
        adapter: the folder of a LoRA adapter to merge.

    Raises:
        CompileError: OCC0109 a file is missing or damaged, or has an unknown architecture, or the package `safetensors`
            is not installed.
    """
    try:
        config = Config(_object(path.parent / "config.json"))
        files = _shards(path)
        weights = {name: stored for file in files for name, stored in read_tensors(file).items()}
        d = config.decoder(weights)
        weights = unfused(d, renamed(weights, d.architecture, tied=d.tied))
        if why := checked(weights, [*d.tensors()], ()):
            raise ConfigError(why)
    except (ConfigError, SafetensorsError) as e:
        raise _refused(path, str(e)) from None
    model, mapped = decoder_model(d, weights if adapter is None else adapted(d, weights, adapter))
    mapped.files = frozenset({path.parent / "config.json", *files} - {path})
    return model, mapped


def _refused(path: Path, why: str) -> CompileError:
    return error(
        "OCC0109",
        f"the model of `{shorten(str(path))}` cannot be read: {why}",
        help=f"folders with weights of {', '.join(MODEL_TYPES)} are supported; export other models to ONNX, "
        "for example with `optimum-cli export onnx`",
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"`{path.name}` cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"`{path.name}` has no object")
    return found


def _shards(path: Path) -> list[Path]:
    """The files with the weights.

    Raises:
        ConfigError: the index names a file outside of its folder.
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
