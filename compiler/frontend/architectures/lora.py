"""LoRA adapters as peft writes them, added to the weights of a decoder.

Source: Hu et al. 2021, `W + (alpha / r) B A`; the files of peft (`adapter_config.json`, `adapter_model.safetensors`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.frontend.architectures.description import Decoder
from occ.compiler.frontend.architectures.safetensors_file import SafetensorsError, read_tensors
from occ.compiler.frontend.architectures.stored_weights import Stored, floats, unfused
from occ.compiler.frontend.architectures.transformers_config import renamed

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PART = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_UNKNOWN = (
    "use_dora",
    "modules_to_save",
    "fan_in_fan_out",
    "lora_bias",
    "alora_invocation_tokens",
    "target_parameters",
)


def adapted(d: Decoder, weights: Mapping[str, Stored], adapter: Path) -> dict[str, Stored]:
    """The weights of a decoder with those of an adapter added, in f32.

    Args:
        d: the decoder.
        weights: by the names of GGUF.
        adapter: the folder of the adapter.

    Raises:
        CompileError: OCC0109 a file is missing or damaged, the adapter has other changes too, or belongs to another
            model.
    """
    changes = unfused(d, renamed(_changes(adapter), d.architecture, tied=False))
    made = dict(weights)
    for name, change in changes.items():
        base = weights.get(name)
        if base is None or base.shape != change.shape:
            there = "does not have" if base is None else f"has as {list(base.shape)}"
            raise _refused(adapter, f"it changes `{shorten(name)}` {list(change.shape)}, which the model {there}")
        made[name] = Stored(base.shape, lambda b=base, c=change: floats(b.load()) + floats(c.load()))
    return made


def _refused(adapter: Path, why: str) -> CompileError:
    return error(
        "OCC0109",
        f"the adapter `{shorten(str(adapter))}` cannot be added: {why}",
        help="pass the folder of a peft LoRA adapter for this model, or merge it: `model.merge_and_unload()`",
    )


def _changes(adapter: Path) -> dict[str, Stored]:
    """The change of each matrix, by its transformers name.

    Raises:
        CompileError: as `adapted`.
    """
    try:
        config = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
        tensors = read_tensors(adapter / WEIGHTS)
    except SafetensorsError as e:
        raise _refused(adapter, str(e)) from None
    except (OSError, ValueError, RecursionError) as e:
        raise _refused(adapter, f"`{CONFIG}` cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise _refused(adapter, f"`{CONFIG}` does not belong to a LoRA adapter")
    if odd := [k for k in _UNKNOWN if config.get(k)] or (
        [f"bias={config['bias']}"] if config.get("bias", "none") != "none" else []
    ):
        raise _refused(adapter, f"it has `{odd[0]!s:.60}`, which is not supported")
    sides: dict[str, dict[str, Stored]] = {}
    for name, stored in tensors.items():
        found = _PART.fullmatch(name)
        if found is None or len(stored.shape) != 2:
            raise _refused(adapter, f"its tensor `{shorten(name)}` is not known")
        sides.setdefault(found["module"], {})[found["side"]] = stored
    return {f"{module}.weight": _product(adapter, config, module, pair) for module, pair in sides.items()}


def _product(adapter: Path, config: Mapping[str, Any], module: str, pair: Mapping[str, Stored]) -> Stored:
    """`scale * B @ A` of a module."""
    if len(pair) != 2 or pair["A"].shape[0] != pair["B"].shape[1]:
        raise _refused(adapter, f"`{shorten(module)}` has no matching pair of matrices")
    rank = pair["A"].shape[0]
    alpha = _of_module(config.get("alpha_pattern"), module, config.get("lora_alpha", rank))
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha) or not rank:
        raise _refused(adapter, f"`lora_alpha` of `{shorten(module)}` is {alpha!s:.40}")
    scale = np.float32(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
    return Stored(
        (pair["B"].shape[0], pair["A"].shape[1]), lambda: floats(pair["B"].load()) @ floats(pair["A"].load()) * scale
    )


def _of_module(pattern: Any, module: str, default: Any) -> Any:
    """The value of the first matching suffix pattern of a module name, as in peft."""
    for name, value in pattern.items() if isinstance(pattern, dict) else ():
        if module == name or module.endswith(f".{name}"):
            return value
    return default
