"""Folders of sentence-transformers: an ONNX model that maps texts to vectors, or pairs of texts to scores.

Source: the modules of sentence-transformers (`modules.json`, `1_Pooling/config.json`,
`config_sentence_transformers.json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.frontend.external import output_names
from occ.generation.folder import model_file, read_object
from occ.generation.names import LOGITS
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

# The setting of each method in `1_Pooling/config.json`; several are concatenated, in this order.
_POOLINGS = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
POOLINGS = tuple(_POOLINGS)
SENTENCES = ("sentence_embedding", "sentence_embeddings")  # outputs that are already pooled
TOKENS = ("last_hidden_state", "token_embeddings")
_ACTIVATIONS = {"Identity": lambda x: x, "Tanh": np.tanh, "ReLU": lambda x: np.maximum(x, 0)}


@dataclass(frozen=True)
class Dense:
    """A layer after pooling: `activation(x @ weight' + bias)`.

    Attributes:
        weight: f32 `[rows, columns]`.
        bias: f32 `[rows]`.
        activation: `Identity`, `Tanh` or `ReLU`.
    """

    weight: np.ndarray
    bias: np.ndarray
    activation: str

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Apply to vectors `[n, columns]`."""
        return _ACTIVATIONS[self.activation](x @ self.weight.T + self.bias)


@dataclass(frozen=True)
class EmbeddingFolder:
    """The configuration of an embedding model's folder.

    Attributes:
        model: the `.onnx` file or artifact.
        tokenizer: the path of `tokenizer.json`.
        pooling: how token vectors become one: one of `POOLINGS` or several.
        dense: the layers after that.
        normalize: whether vectors are normalised to length 1; None if unspecified.
        longest: maximum tokens of a text; None if unspecified.
        padding: the padding token.
        prompts: prefixes of texts, by the name of a task.
    """

    model: Path
    tokenizer: Path
    pooling: tuple[str, ...] = ("mean",)
    dense: tuple[Dense, ...] = ()
    normalize: bool | None = None
    longest: int | None = None
    padding: int = 0
    prompts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> EmbeddingFolder:
        """The folder `path`, or that of the file `path`, or the one above a folder `onnx`.

        Raises:
            RunError: OCC0501 there is no model or no tokenizer, a file cannot be read, or it names an unsupported
                module.
        """
        if not path.exists():
            raise RunError("OCC0501", f"`{path}` does not exist", "pass a folder with a model and its tokenizer")
        home = path if path.is_dir() else path.parent
        home = home.parent if home.name == "onnx" else home
        model = model_file(home, {}) if path.is_dir() else path
        if model.suffix in (".gguf", ".safetensors", ".json"):
            raise RunError(
                "OCC0501", f"`{model}` has weights but no graph, which is not supported for embedding models",
                "export it to ONNX: `optimum-cli export onnx`",
            )  # fmt: skip
        tokenizer = next((p for p in (home / "tokenizer.json", model.parent / "tokenizer.json") if p.exists()), None)
        if tokenizer is None:
            raise RunError("OCC0501", f"`{home}` has no tokenizer.json", "add the tokenizer of the model")
        config, words = read_object(home / "config.json"), read_object(home / "tokenizer_config.json")
        pooling, dense, normalize = _modules(home)
        padding = config.get("pad_token_id")
        prompts = read_object(home / "config_sentence_transformers.json").get("prompts")
        return cls(
            model, tokenizer, pooling, dense, normalize, _longest(home, config, words),
            padding if isinstance(padding, int) else 0, prompts if isinstance(prompts, dict) else {},
        )  # fmt: skip


def encoder_kind(path: Path) -> str:
    """The task of a folder's model: `embedding` or `reranking`; empty if it is not known to be a text encoder."""
    if not path.is_dir():
        return ""
    kinds = read_object(path / "config.json").get("architectures")
    if isinstance(kinds, list) and any(str(k).endswith("ForSequenceClassification") for k in kinds):
        return "reranking"
    told = any((path / name).exists() for name in ("modules.json", "1_Pooling"))
    return "embedding" if told or _returns_vectors(path) else ""


def _returns_vectors(home: Path) -> bool:
    """Whether the graph of a folder returns vectors by name, and no logits: few exports come with `modules.json`."""
    try:
        model = model_file(home, read_object(home / "genai_config.json").get("model", {}))
        if model.suffix != ".onnx":
            return False
        names = output_names(np.memmap(model, np.uint8, "r"))
    except (RunError, OSError, ValueError):  # said by whatever opens the folder
        return False
    return LOGITS not in names and not {*SENTENCES, *TOKENS}.isdisjoint(names)


def _modules(home: Path) -> tuple[tuple[str, ...], tuple[Dense, ...], bool | None]:
    """Pooling, subsequent layers, and normalisation, from `modules.json`."""
    listed = home / "modules.json"
    if not listed.exists():
        return _pooling(home / "1_Pooling"), (), None
    import json

    try:
        modules = [
            (str(m["type"]).rpartition(".")[2], home / str(m["path"])) for m in json.loads(listed.read_text("utf-8"))
        ]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RunError("OCC0501", f"`{listed}` cannot be read: {e}", "download the file again") from None
    pooling, dense, normalize = ("mean",), list[Dense](), False
    for kind, path in modules:
        if not path.resolve().is_relative_to(home.resolve()):
            raise RunError(
                "OCC0501", f"`{listed}` names `{path}`, which is outside of its folder", "download the files again"
            )
        if kind == "Pooling":
            pooling = _pooling(path)
        elif kind == "Dense":
            dense.append(_dense(path))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise RunError(
                "OCC0501", f"`{listed}` has the module `{kind:.60}`, which is not supported",
                "export the whole model to ONNX, with the output `sentence_embedding`",
            )  # fmt: skip
    return pooling, tuple(dense), normalize


def _pooling(path: Path) -> tuple[str, ...]:
    config = read_object(path / "config.json")
    named = config.get("pooling_mode")
    if isinstance(named, str):
        named = [named]
    found = tuple(named) if isinstance(named, list) else tuple(k for k, key in _POOLINGS.items() if config.get(key))
    if odd := [p for p in found if p not in _POOLINGS]:
        raise RunError("OCC0501", f"`{path}` pools by `{odd[0]!s:.40}`", f"known are {', '.join(POOLINGS)}")
    if config.get("include_prompt") is False:
        raise RunError(
            "OCC0501", f"`{path}` has include_prompt=false, which is not supported", "pass texts without a prompt"
        )
    if config and not found:
        raise RunError("OCC0501", f"`{path}` does not define the pooling", f"known are {', '.join(POOLINGS)}")
    return found or ("mean",)


def _dense(path: Path) -> Dense:
    config, file = read_object(path / "config.json"), path / "model.safetensors"
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in _ACTIVATIONS or not file.exists():
        why = f"the activation `{activation:.40}`" if file.exists() else "no model.safetensors"
        raise RunError("OCC0501", f"the layer `{path}` has {why}", "export the whole model to ONNX")
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ModuleNotFoundError:
        raise RunError("OCC0501", f"`{file}` needs the package `safetensors`", "pip install safetensors") from None
    try:
        held = load_file(file)
        weight = held["linear.weight"].astype(np.float32)
    except (SafetensorError, KeyError, OSError) as e:
        raise RunError("OCC0501", f"`{file}` cannot be read: {e}", "download the file again") from None
    bias = held.get("linear.bias", np.zeros(len(weight))).astype(np.float32)
    return Dense(weight, bias, activation)


def _longest(home: Path, config: Mapping[str, Any], words: Mapping[str, Any]) -> int | None:
    """Maximum tokens of a text: the folder's setting, or the limit of the tokenizer or model."""
    told: Any = read_object(home / "sentence_bert_config.json").get("max_seq_length")
    if isinstance(told, int) and told > 0:
        return told
    sizes = [words.get("model_max_length"), config.get("max_position_embeddings")]
    found = [int(n) for n in sizes if isinstance(n, (int, float)) and 0 < n < 1 << 30]
    return min(found, default=None)
