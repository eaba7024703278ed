"""Model folders of onnxruntime-genai, optimum, transformers.js and transformers; GGUF files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from occ.compiler.frontend.architectures.gguf_container import ContainerError, read_container
from occ.generation.gguf_vocabulary import end_tokens, special_tokens, tokenizer_json
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

# Locations of the model, best first; optimum splits some into a decoder for the prompt and one with a past.
_MODELS = (
    "model.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model_merged.onnx",
    "onnx/model.onnx",
    "model.occ",
    "model.safetensors",
    "model.safetensors.index.json",
)
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class Folder:
    """The configuration of a language model's folder.

    Attributes:
        model: the `.onnx` file, artifact or `.gguf` file.
        tokenizer: the path of `tokenizer.json`, or its text if it comes from a GGUF file; None if there is none.
        template: the chat template, in Jinja, or empty.
        special: texts of special tokens by name.
        eos_ids: tokens that end a text.
        context: maximum context length, or 0 if unspecified.
        head: head size, or 0 if unspecified.
        adapter: the folder of a LoRA adapter to merge into the weights, or None.
    """

    model: Path
    tokenizer: Path | str | None = None
    template: str = ""
    special: tuple[tuple[str, str], ...] = ()
    eos_ids: tuple[int, ...] = ()
    context: int = 0
    head: int = 0
    adapter: Path | None = None

    @classmethod
    def of(cls, path: Path) -> Folder:
        """The folder `path`, or that of the file `path`.

        Raises:
            RunError: OCC0501 there is no model, or several, or a file cannot be read.
        """
        if not path.exists():
            raise RunError("OCC0501", f"`{path}` does not exist", "pass a folder with a model, or an artifact")
        home = path if path.is_dir() and not (path / "manifest.json").exists() else path.parent
        if home == path and encoder_file(home) is not None:
            raise RunError(
                "OCC0501", f"`{path}` is an encoder-decoder, for `occ generate` and `occ transcribe`",
                "open it with `occ.LanguageModel` or `occ.Transcriber`",
            )  # fmt: skip
        genai, config = read_object(home / "genai_config.json").get("model", {}), read_object(home / "config.json")
        generation, words = read_object(home / "generation_config.json"), read_object(home / "tokenizer_config.json")
        model = model_file(home, genai) if home == path else path
        if model.suffix == ".gguf":
            return _of_gguf(model)
        file = home / "tokenizer.json"
        special = tuple((k, _text(words[k])) for k in _SPECIAL if words.get(k))
        ends = next((e for c in (generation, genai, config) if (e := _tokens(c.get("eos_token_id")))), ())
        context = genai.get("context_length") or config.get("max_position_embeddings") or 0
        head = int(genai.get("decoder", {}).get("head_size") or config.get("head_dim") or 0)
        return cls(model, file if file.exists() else None, _template(home, words), special, ends, int(context), head)


def encoder_file(home: Path) -> Path | None:
    """The encoder of an encoder-decoder in a folder, or None."""
    return next((p for n in ("encoder_model.onnx", "onnx/encoder_model.onnx") if (p := home / n).is_file()), None)


def has_encoder(home: Path) -> bool:
    """Whether a folder has an encoder, so that its model is an encoder-decoder."""
    return encoder_file(home) is not None


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        RunError: OCC0501 it is not an object.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise RunError("OCC0501", f"`{path}` cannot be read: {e}", "download the file again") from None
    if not isinstance(found, dict):
        raise RunError("OCC0501", f"`{path}` has no object", "download the file again")
    return found


def model_file(home: Path, genai: dict[str, Any]) -> Path:
    """The model in a folder.

    Raises:
        RunError: OCC0501 there is none, or several.
    """
    named = genai.get("decoder", {}).get("filename")
    for name in (*([named] if named else []), *_MODELS):
        if (home / name).exists():
            return home / name
    found = sorted([*home.glob("*.onnx"), *home.glob("onnx/*.onnx")]) or sorted(home.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    listed = f"several models: {', '.join(p.name for p in found)}" if found else "no model"
    raise RunError("OCC0501", f"`{home}` has {listed}", "pass the path of one model.onnx or .gguf file")


def _of_gguf(path: Path) -> Folder:
    """The configuration in a GGUF file; a `tokenizer.json` next to it takes precedence over its vocabulary.

    Raises:
        RunError: OCC0501 the file or its vocabulary cannot be read.
    """
    try:
        metadata = read_container(path).metadata
    except (OSError, ContainerError) as e:
        raise RunError("OCC0501", f"`{path}` cannot be read: {e}", "download the file again") from None
    if metadata.get("split.count", 1) not in (0, 1):
        raise RunError(
            "OCC0501", f"`{path}` is one of {metadata['split.count']} parts of a model",
            "join them: `llama-gguf-split --merge FIRST.gguf WHOLE.gguf`",
        )  # fmt: skip
    beside = path.parent / "tokenizer.json"
    tokenizer = beside if beside.exists() else tokenizer_json(metadata) or None
    context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    template = metadata.get("tokenizer.chat_template")
    return Folder(
        path, tokenizer, template if isinstance(template, str) else "", tuple(special_tokens(metadata).items()),
        end_tokens(metadata), context if isinstance(context, int) else 0,
    )  # fmt: skip


def _template(home: Path, words: dict[str, Any]) -> str:
    file = home / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    found = words.get("chat_template") or ""
    if isinstance(found, list):  # several by name
        found = next((x["template"] for x in found if x.get("name") == "default"), "")
    return found


def _text(token: Any) -> str:
    return token.get("content", "") if isinstance(token, dict) else str(token)


def _tokens(found: Any) -> tuple[int, ...]:
    if isinstance(found, int):
        return (found,)
    return tuple(found) if isinstance(found, Iterable) and not isinstance(found, str) else ()
