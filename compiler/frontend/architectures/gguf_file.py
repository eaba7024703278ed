"""A decoder in a GGUF file: its metadata and its tensors.

Sources: the keys of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and how llama.cpp uses them
(`src/models`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.frontend.architectures import rope as ropes
from occ.compiler.frontend.architectures.decoder_graph import decoder_model
from occ.compiler.frontend.architectures.description import PROJECTIONS, Decoder, Rope
from occ.compiler.frontend.architectures.ggml_blocks import stored_tensors
from occ.compiler.frontend.architectures.gguf_container import Container, ContainerError, read_container
from occ.compiler.frontend.architectures.lora import adapted
from occ.compiler.frontend.architectures.stored_weights import Stored, checked, deinterleaved_halves, floats, unfused
from occ.compiler.frontend.external import MappedModel

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "smollm3")
_INTERLEAVED = ("llama", "smollm3")  # architectures whose rows of queries and keys llama.cpp's converter permutes
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, whose scores have a scale of their own
_PERIOD = {"gemma2": 2, "gemma3": 6}  # period of layers, of which the last has global attention
_WINDOW = {
    "gemma2": 4096,
    "gemma3": 0,
    "phi3": 0,
}  # default window of local layers; others have none
_IGNORED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_gguf(path: Path, adapter: Path | None = None) -> tuple[ModelProto, MappedModel]:
    """The ONNX model of a decoder in a file, and the bytes of its weights.

    Args:
        path: of the file.
        adapter: the folder of a LoRA adapter to merge; the weights that it changes are widened to f32.

    Raises:
        CompileError: OCC0109 the file is damaged, or has an unknown architecture or type; OCC0604 the package `gguf` is
            not installed.
    """
    try:
        file = read_container(path)
        weights = stored_tensors(file)
        d = _Metadata(file, weights).decoder()
        weights = _named(d, weights)
    except ContainerError as e:
        raise _refused(path, str(e)) from None
    except ModuleNotFoundError:
        raise error("OCC0109", f"`{shorten(str(path))}` needs the package `gguf`", help="pip install gguf") from None
    if why := checked(weights, [*d.tensors()], _IGNORED):
        raise _refused(path, why)
    return decoder_model(d, weights if adapter is None else adapted(d, weights, adapter))


def _refused(path: Path, why: str) -> CompileError:
    known = (
        f"GGUF files of {', '.join(ARCHITECTURES)} are supported; export other models to ONNX, "
        "for example with `optimum-cli export onnx`"
    )
    return error("OCC0109", f"the GGUF file `{shorten(str(path))}` cannot be read: {why}", help=known)


class _Metadata:
    """The metadata of a decoder, by the keys of its architecture."""

    def __init__(self, file: Container, weights: Mapping[str, Stored]) -> None:
        self.values, self.weights = file.metadata, weights
        self.name = str(file.metadata.get("general.architecture", ""))
        if self.name not in ARCHITECTURES:
            raise ContainerError(f"its architecture is `{shorten(self.name)}`")

    def _number(self, key: str, default: float | None = None) -> float:
        """A number; for a per-layer list, the value that all layers share.

        Raises:
            ContainerError: there is none.
        """
        found: Any = self.values.get(f"{self.name}.{key}", default)
        if isinstance(found, list) and len(set(found)) == 1:
            found = found[0]
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
            why = "is missing" if found is None else f"is {found!s:.40}, which is not supported"
            raise ContainerError(f"its key `{self.name}.{key}` {why}")
        return found

    def _size(self, key: str, default: float | None = None) -> int:
        found = self._number(key, default)
        if not 0 < found < 1 << 31 or found != int(found):
            raise ContainerError(f"its key `{self.name}.{key}` is {found}")
        return int(found)

    def decoder(self) -> Decoder:
        """The description of the decoder that the file's keys define.

        Raises:
            ContainerError: a key is missing, invalid, or not supported.
        """
        if self._number("expert_count", 0):
            raise ContainerError("it has experts, which are not supported in GGUF files")
        layers, width, heads = (
            self._size("block_count"),
            self._size("embedding_length"),
            self._size("attention.head_count"),
        )
        if layers > len(self.weights):
            raise ContainerError(f"it declares {layers} layers, but has {len(self.weights)} tensors")
        embedding = self.weights.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ContainerError("it has no tensor `token_embd.weight`")
        head = self._size("attention.key_length", width // heads)
        if head != self._size("attention.value_length", head) or head % 2:
            raise ContainerError(f"its keys have {head} elements, its values a different number")
        gemma = self.name.startswith("gemma")
        window = int(self._number("attention.sliding_window", _WINDOW[self.name])) if self.name in _WINDOW else 0
        scale = (width // heads if layers == _LARGEST_GEMMA.get(self.name) else head) ** -0.5
        return Decoder(
            self.name, layers, width, heads, self._size("attention.head_count_kv", heads), head,
            self._size("feed_forward_length"), embedding.shape[0], self._number("attention.layer_norm_rms_epsilon"),
            self._rope(head), scale, context=self._size("context_length", 1 << 30), local_rope=self._local_rope(head),
            window=window, local=self._local(layers) if window else frozenset(),
            unrotated=frozenset(range(3, layers, 4)) if self.name == "smollm3" else frozenset(),
            attention_softcap=self._number("attn_logit_softcapping", 50.0) if self.name == "gemma2" else 0.0,
            logit_softcap=self._number("final_logit_softcapping", 30.0 if self.name == "gemma2" else 0.0) if gemma else 0.0,
            embedding_scale=math.sqrt(width) if gemma else 1.0, activation="gelu_tanh" if gemma else "silu",
            post_norms=self.name in ("gemma2", "gemma3"), head_norms=self.name in ("qwen3", "gemma3"),
            biases=frozenset(n for n in PROJECTIONS if f"blk.0.{n}.bias" in self.weights),
            tied="output.weight" not in self.weights,
        )  # fmt: skip

    def _local(self, layers: int) -> frozenset[int]:
        """Layers with a window."""
        pattern = self.values.get(f"{self.name}.attention.sliding_window_pattern")
        if isinstance(pattern, list) and len(pattern) == layers:
            return frozenset(k for k, local in enumerate(pattern) if local)
        period = self._size("attention.sliding_window_pattern", _PERIOD.get(self.name, layers + 1))
        return frozenset(k for k in range(layers) if k % period < period - 1)

    def _rope(self, head: int) -> Rope:
        turned, base = self._size("rope.dimension_count", head), self._number("rope.freq_base", 10000.0)
        if turned > head or turned % 2:
            raise ContainerError(f"{turned} elements of its heads are rotated, of {head}")
        rope, kind = ropes.plain(base, turned), self.values.get(f"{self.name}.rope.scaling.type", "none")
        attention = self._number("rope.scaling.attn_factor", 0.0) or None
        if "rope_factors_long.weight" in self.weights:
            short, long = (self._factors(f"rope_factors_{k}.weight", turned) for k in ("short", "long"))
            context = self._size("context_length")
            original = self._size("rope.scaling.original_context_length", context)
            return ropes.longrope(rope, short, long, original, context, attention)
        if "rope_freqs.weight" in self.weights:
            rope = ropes.divided(rope, self._factors("rope_freqs.weight", turned))
        factor = self._number("rope.scaling.factor", 0.0) or self._number("rope.scale_linear", 1.0)
        if kind == "yarn":
            original = self._size("rope.scaling.original_context_length")
            return ropes.yarn(rope, base, factor, original, 32, 1, sharper=attention)
        if kind not in ("none", "linear"):
            raise ContainerError(f"it scales positions by `{kind!s:.40}`, which is not supported")
        return ropes.linear(rope, factor) if factor != 1 else rope

    def _factors(self, name: str, turned: int) -> Any:
        found = self.weights[name]
        if found.shape != (turned // 2,):
            raise ContainerError(f"its tensor `{name}` has shape {list(found.shape)}, not [{turned // 2}]")
        return floats(found.load())

    def _local_rope(self, head: int) -> Rope | None:
        if self.name != "gemma3":
            return None
        return ropes.plain(self._number("rope.freq_base_swa", 10000.0), self._size("rope.dimension_count", head))


def _named(d: Decoder, weights: Mapping[str, Stored]) -> dict[str, Stored]:
    """Weights in the graph's form: fused ones split, interleaved rows reordered."""
    found = unfused(d, weights)
    for k in range(d.layers) if d.architecture in _INTERLEAVED else ():
        for y, heads in (("q", d.heads), ("k", d.groups)):
            for kind in ("weight", "bias"):
                name = f"blk.{k}.attn_{y}.{kind}"
                if name in found and found[name].shape[0] == heads * d.head:
                    found[name] = found[name].rows(deinterleaved_halves(heads, d.head))
    return found
