"""Hyperparameters of a decoder from `config.json` of the transformers library.

Source: the configurations and models of transformers 4 and 5 (`src/transformers/models/*`), whose defaults are used if
files omit a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from occ.compiler.frontend.architectures import rope as ropes
from occ.compiler.frontend.architectures.description import PROJECTIONS, Decoder, Rope
from occ.compiler.frontend.architectures.stored_weights import Stored

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "smollm3")
_GEMMAS = ("gemma", "gemma2", "gemma3_text")
_POST_NORMS = ("gemma2", "gemma3_text")
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}  # fmt: skip
_OF_LAYERS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_OF_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class ConfigError(ValueError):
    """The configuration or the weights do not belong to a known decoder."""


class Config:
    """A model configuration of transformers (`config.json`).

    Args:
        values: of `config.json`.

    Raises:
        ConfigError: it has an unknown architecture, quantised weights, or is a vision model.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values, self.kind = values, str(values.get("model_type"))
        if "vision_config" in values or "audio_config" in values:
            raise ConfigError(f"`{self.kind:.40}` takes images or audio, which are not supported")
        if quantised := values.get("quantization_config"):
            method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
            raise ConfigError(f"its weights are quantised ({method!s:.40}); take those that are not, or a GGUF file")
        if self.kind not in MODEL_TYPES:
            raise ConfigError(f"its model_type is `{self.kind:.40}`")

    def _number(self, key: str, default: float | None = None, of: Mapping[str, Any] | None = None) -> float:
        found: Any = (self.values if of is None else of).get(key)
        found = default if found is None else found
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
            raise ConfigError(f"`{key}` of config.json " + ("is missing" if found is None else f"is {found!s:.40}"))
        return found

    def _size(self, key: str, default: float | None = None) -> int:
        found = self._number(key, default)
        if not 0 < found < 1 << 31 or found != int(found):
            raise ConfigError(f"`{key}` of config.json is {found}")
        return int(found)

    def decoder(self, weights: Mapping[str, Stored]) -> Decoder:
        """The description of the decoder that the configuration defines.

        Args:
            weights: by the names of transformers.

        Raises:
            ConfigError: something is missing, invalid, or not supported.
        """
        layers, width, heads = (self._size(k) for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
        if layers > len(weights):
            raise ConfigError(f"config.json declares {layers} layers, but there are {len(weights)} tensors")
        head = self._size("head_dim", 256 if self.kind in _GEMMAS else width // heads)
        activation = self.values.get("hidden_activation") or self.values.get("hidden_act") or "silu"
        activation = "gelu_pytorch_tanh" if self.kind in _GEMMAS and activation == "gelu" else activation
        if activation not in _ACTIVATIONS:
            raise ConfigError(f"its activation is `{activation!s:.40}`")
        gemma, tied = self.kind in _GEMMAS, self.values.get("tie_word_embeddings", self.kind in (*_GEMMAS, "smollm3"))
        local = self._local(layers)
        ropes_ = self._ropes(head)
        scale = self._number("query_pre_attn_scalar", 256) if self.kind in _POST_NORMS else head
        return Decoder(
            self.kind, layers, width, heads, self._size("num_key_value_heads", heads), head,
            self._size("intermediate_size"),
            self._size("vocab_size"), self._number("rms_norm_eps", 1e-6), ropes_[0], scale**-0.5,
            context=self._size("max_position_embeddings", 1 << 30), local_rope=ropes_[1],
            window=self._size("sliding_window") if local else 0, local=local, unrotated=self._unrotated(layers),
            attention_softcap=self._softcap("attn_logit_softcapping"),
            logit_softcap=self._softcap("final_logit_softcapping"),
            embedding_scale=math.sqrt(width) if gemma else 1.0, activation=_ACTIVATIONS[activation],
            post_norms=self.kind in _POST_NORMS, head_norms=self.kind in ("qwen3", "gemma3_text"),
            biases=frozenset(n for n in PROJECTIONS if f"model.layers.0.{_NAMES[n]}.bias" in weights),
            tied=bool(tied) or "lm_head.weight" not in weights,
        )  # fmt: skip

    def _softcap(self, key: str) -> float:
        return self._number(key, 0.0) if self.kind in _POST_NORMS else 0.0

    def _local(self, layers: int) -> frozenset[int]:
        """Layers with a window."""
        window, kinds = self.values.get("sliding_window"), self.values.get("layer_types")
        if not window or self.kind in ("llama", "gemma"):
            return frozenset()
        if isinstance(kinds, list):
            if len(kinds) < layers or set(kinds) - {"full_attention", "sliding_attention"}:
                raise ConfigError("its layer_types are not supported")
            return frozenset(k for k in range(layers) if kinds[k] == "sliding_attention")
        if self.kind in ("mistral", "phi3"):
            return frozenset(range(layers))
        if self.kind in _POST_NORMS:
            period = self._size("sliding_window_pattern", 2 if self.kind == "gemma2" else 6)
            return frozenset(k for k in range(layers) if (k + 1) % period)
        if not self.values.get("use_sliding_window"):
            return frozenset()
        return frozenset(range(self._size("max_window_layers", layers), layers))

    def _unrotated(self, layers: int) -> frozenset[int]:
        if self.kind != "smollm3":
            return frozenset()
        rotated = self.values.get("no_rope_layers")  # 0 if there is no rotation, despite its name
        if isinstance(rotated, list) and len(rotated) == layers:
            return frozenset(k for k in range(layers) if not rotated[k])
        period = self._size("no_rope_layer_interval", 4)
        return frozenset(k for k in range(layers) if not (k + 1) % period)

    def _ropes(self, head: int) -> tuple[Rope, Rope | None]:
        """Rotary embeddings of all layers, or of global and of local layers."""
        found = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(found, dict):
            raise ConfigError("`rope_parameters` of config.json is not an object")
        default = 1e6 if self.kind == "gemma3_text" else 10000.0
        base = self._number("rope_theta", default)
        if self.kind != "gemma3_text":
            return self._rope(found, base, head), None
        everywhere, nearby = (found.get(f"{k}_attention") for k in ("full", "sliding"))
        local = self._number("rope_local_base_freq", 10000.0)
        return self._rope(found if everywhere is None else everywhere, base, head), self._rope(
            nearby or {}, local, head
        )

    def _rope(self, found: Mapping[str, Any], base: float, head: int) -> Rope:
        base = self._number("rope_theta", base, found)
        share = self._number("partial_rotary_factor", self._number("partial_rotary_factor", 1.0), found)
        turned = int(head * share)
        if not 0 < turned <= head or turned % 2:
            raise ConfigError(f"{turned} elements of its heads are rotated, of {head}")
        rope, kind = ropes.plain(base, turned), found.get("rope_type", found.get("type", "default"))
        if kind in ("default", None):
            return rope
        if kind == "linear":
            return ropes.linear(rope, self._number("factor", None, found))
        context = self._size("max_position_embeddings")
        key = "original_max_position_embeddings"
        original = int(self._number(key, self._number(key, context), found))
        attention = self._number("attention_factor", 0.0, found) or None
        if kind == "llama3":
            low, high = (self._number(f"{k}_freq_factor", None, found) for k in ("low", "high"))
            return ropes.llama3(rope, self._number("factor", None, found), low, high, original)
        if kind == "yarn":
            fast, slow = (self._number(f"beta_{k}", d, found) for k, d in (("fast", 32), ("slow", 1)))
            return ropes.yarn(
                rope, base, self._number("factor", None, found), original, fast, slow, attention=attention
            )
        if kind in ("longrope", "su"):
            short, long = (self._factors(found.get(f"{k}_factor"), turned // 2) for k in ("short", "long"))
            stretched = self._number("factor", context / original, found) * original
            return ropes.longrope(rope, short, long, original, stretched, attention)
        raise ConfigError(f"it scales positions by `{kind!s:.40}`, which is not supported")

    def _factors(self, found: Any, count: int) -> np.ndarray:
        if not isinstance(found, list) or len(found) != count or not all(isinstance(x, (int, float)) for x in found):
            raise ConfigError(f"its factors of LongRoPE are not {count} numbers")
        return np.array(found, np.float32)


_NAMES = {theirs: ours for ours, theirs in _OF_LAYERS.items() if ours != "mlp.gate_up_proj"}


def renamed(weights: Mapping[str, Stored], kind: str, *, tied: bool) -> dict[str, Stored]:
    """Weights with GGUF's names and numbers, where Gemma's norms have 1 added."""
    parts = _OF_LAYERS | (_OF_POST_NORMS if kind in _POST_NORMS else {})
    found = dict[str, Stored]()
    for name, stored in weights.items():
        stem, _, ending = name.rpartition(".")
        if stem == "lm_head" and tied:
            continue
        if stem.startswith("model.layers."):
            layer, _, part = stem.removeprefix("model.layers.").partition(".")
            if part == "self_attn.rotary_emb":  # tables in old files
                continue
            ours = f"blk.{layer}.{parts[part]}.{ending}" if part in parts else name
        else:
            ours = f"{_OTHERS[stem]}.{ending}" if stem in _OTHERS else name
        is_norm = stem.endswith("norm")
        found[ours] = stored.plus(1.0) if kind in _GEMMAS and is_norm else stored
    return found
