"""Small language models with random weights, as folders of transformers and as GGUF files, and what transformers writes with them.

`python tests/architectures.py` computes `tests/numeric/architectures.json` again; it needs torch and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
WORDS, COUNT = 60, 40
PROMPT = [int(t) for t in np.random.default_rng(2).integers(0, WORDS, 20)]
_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": WORDS, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "head_dim": 16,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_GEMMA = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "sliding_window": 8}
_LONG = {"type": "longrope", "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.5, 2.0, 3.0]}
# `config.json` of each, by a name.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-3.1": {"model_type": "llama", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
    "mistral": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1e6, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gemma": {"model_type": "gemma", **_GEMMA},
    "gemma2": {"model_type": "gemma2", "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0, "query_pre_attn_scalar": 32,
               **_GEMMA},
    "gemma3": {"model_type": "gemma3_text", "num_hidden_layers": 7, "query_pre_attn_scalar": 32, "rope_theta": 1e6,
               "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, **_GEMMA},
    "phi3": {"model_type": "phi3", "sliding_window": 8},
    "phi3-long": {"model_type": "phi3", "sliding_window": None, "original_max_position_embeddings": 16, "rope_scaling": _LONG,
                  "partial_rotary_factor": 0.375},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4, "sliding_window": None, "use_sliding_window": False},
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    """The `config.json` of a model."""
    made = _SMALL | CONFIGS[name]
    if made["model_type"] == "phi3":  # its heads follow from its width
        del made["head_dim"]
    return made


def _shapes(c: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights in transformers."""
    kind, width, inner = c["model_type"], c["hidden_size"], c["intermediate_size"]
    head = c.get("head_dim", width // c["num_attention_heads"])
    q, k = (c[n] * head for n in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", (c["vocab_size"], width)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if kind in ("gemma2", "gemma3_text") else []
    matrices = {"self_attn.o_proj": (width, q), "mlp.down_proj": (width, inner)}
    if kind == "phi3":
        matrices |= {"self_attn.qkv_proj": (q + 2 * k, width), "mlp.gate_up_proj": (2 * inner, width)}
    else:
        matrices |= {f"self_attn.{y}_proj": (rows, width) for y, rows in (("q", q), ("k", k), ("v", k))}
        matrices |= {f"mlp.{y}_proj": (inner, width) for y in ("gate", "up")}
    for n in range(c["num_hidden_layers"]):
        for name, shape in matrices.items():
            yield f"model.layers.{n}.{name}.weight", shape
            biased = c.get("attention_bias") if "attn" in name else c.get("mlp_bias")
            if biased or (kind == "qwen2" and name.split(".")[1] in ("q_proj", "k_proj", "v_proj")):
                yield f"model.layers.{n}.{name}.bias", shape[:1]
        for name in norms:
            yield f"model.layers.{n}.{name}.weight", (width,)
        for y in ("q", "k") if kind in ("qwen3", "gemma3_text") else ():
            yield f"model.layers.{n}.self_attn.{y}_norm.weight", (head,)
    yield "model.norm.weight", (width,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], width)


def weights(c: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random weights by their names in transformers, f32."""
    rng, gemma = np.random.default_rng(5), c["model_type"].startswith("gemma")

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.normal(size=shape)
        if len(shape) == 1:
            x = 0.2 * x + (1 if name.endswith("norm.weight") and not gemma else 0)
        elif "embed" not in name:
            x *= 1.5 * shape[-1] ** -0.5
        return x.astype(np.float32)

    return {name: drawn(name, shape) for name, shape in _shapes(c)}


def write_folder(
    folder: Path, name: str, *, dtype: Any = np.float32, rounded: Any = np.float32, shards: int = 1
) -> Path:
    """A model as transformers keeps it: `config.json` and safetensors, in one file or several.

    Args:
        folder: where to write it.
        name: of the model.
        dtype: of its weights.
        rounded: what they are rounded to before.
        shards: files that hold them.
    """
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(config(name)))
    held = {k: v.astype(rounded).astype(dtype) for k, v in weights(config(name)).items()}
    if shards == 1:
        save_file(held, folder / "model.safetensors")
        return folder
    names, places = list(held), {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        save_file({n: held[n] for n in names[k::shards]}, folder / file)
        places |= dict.fromkeys(names[k::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def write_gguf(
    path: Path, name: str, kind: str = "F32", tensors: dict[str, np.ndarray] | None = None,
    vocabulary: dict[str, str] | None = None, **changed: Any,
) -> Path:  # fmt: skip
    """A model as llama.cpp's converter writes it (`conversion/*.py`), by the writer of the package `gguf`.

    Args:
        path: of the file.
        name: of the model.
        kind: of its matrices, by ggml's name.
        tensors: by their names in the file; random ones if None.
        vocabulary: `model` and `pre` of a vocabulary of single letters, and `template` of chats; none if None.
        changed: values of its configuration.
    """
    import gguf

    c = config(name) | changed
    architecture = {"mistral": "llama", "gemma3_text": "gemma3"}.get(c["model_type"], c["model_type"])
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, c)
    if vocabulary is not None:
        writer.add_tokenizer_model(vocabulary["model"])
        writer.add_tokenizer_pre(vocabulary["pre"])
        writer.add_token_list([chr(ord("!") + k) for k in range(WORDS)])
        writer.add_token_merges(["! !"])
        writer.add_chat_template(vocabulary.get("template", ""))
    for ours, x in (_converted(c, architecture) if tensors is None else tensors).items():
        dtype = gguf.GGMLQuantizationType[kind if x.ndim == 2 else "F32"]
        writer.add_tensor(ours, _quantised(x, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantised(x: np.ndarray, kind: Any) -> np.ndarray:
    """Blocks of a matrix; those that the package cannot make hold random codes."""
    import gguf

    try:
        return gguf.quantize(x, kind)
    except NotImplementedError:
        size, bytes_ = gguf.GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(x.size)
        raw = rng.integers(0, 256, (x.size // size, bytes_), dtype=np.uint8)
        halves = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind.name]
        for at in halves:
            scale = rng.uniform(0.5, 1, len(raw)) * (2e-4 if kind.name != "Q6_K" else 3e-5)
            raw[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
        return raw.reshape(*x.shape[:-1], -1)


def _converted(c: dict[str, Any], architecture: str) -> dict[str, np.ndarray]:
    """Random weights by their names in GGUF, and with its numbers."""
    import gguf

    found: dict[str, np.ndarray] = {}
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture), 99)
    heads = {"q_proj": c["num_attention_heads"], "k_proj": c["num_key_value_heads"]}
    for theirs, x in (weights(c) | _frequencies(c)).items():
        if architecture in ("llama", "smollm3") and (h := heads.get(theirs.split(".")[-2])):  # LlamaModel.permute
            x = x.reshape(h, 2, len(x) // h // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        if architecture.startswith("gemma") and theirs.endswith("norm.weight"):
            x = x + 1
        found[names.get_name(theirs, try_suffixes=(".weight", ".bias")) or theirs] = x
    return found


def _write_metadata(w: Any, c: dict[str, Any]) -> None:
    import gguf

    head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(int(head * c.get("partial_rotary_factor", 1)))
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if c["model_type"] == "gemma2":
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    scaling = c.get("rope_scaling", {})
    if scaling.get("rope_type") in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        w.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("type") == "longrope":  # Phi3MiniModel.set_gguf_parameters
        scale = c["max_position_embeddings"] / c["original_max_position_embeddings"]
        w.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(c["original_max_position_embeddings"])) ** 0.5)
    if "original_max_position_embeddings" in scaling | c:
        w.add_rope_scaling_orig_ctx_len((scaling | c)["original_max_position_embeddings"])


def _frequencies(c: dict[str, Any]) -> dict[str, np.ndarray]:
    """Divisors of frequencies, which the converter computes from the configuration."""
    scaling = c.get("rope_scaling", {})
    if scaling.get("type") == "longrope":
        return {f"rope_factors_{k}.weight": np.array(scaling[f"{k}_factor"], np.float32) for k in ("short", "long")}
    if scaling.get("rope_type") != "llama3":
        return {}
    factors = []
    for k in range(0, c["head_dim"], 2):  # LlamaModel.generate_extra_tensors
        wave = 2 * np.pi * c["rope_theta"] ** (k / c["head_dim"])
        low, high = (scaling["original_max_position_embeddings"] / scaling[f"{y}_freq_factor"] for y in ("low", "high"))
        share = (low / wave * scaling["low_freq_factor"] - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"]
        )
        between = 1 / ((1 - share) / scaling["factor"] + share)
        factors.append(1 if wave < high else scaling["factor"] if wave > low else between)
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def reference(name: str) -> dict[str, list[float]]:
    """What transformers computes: logits after `PROMPT`, and the tokens that follow."""
    return json.loads((HERE / "numeric" / "architectures.json").read_text())[name]


def _computed(name: str) -> dict[str, list[float]]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    c = config(name)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**c), attn_implementation="eager").eval().float()
    missing, odd = model.load_state_dict({k: torch.tensor(v) for k, v in weights(c).items()}, strict=False)
    assert not odd, odd
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0, -1]
        tokens = model.generate(torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, pad_token_id=0)
    return {"logits": [round(float(x), 6) for x in logits], "tokens": tokens[0, len(PROMPT) :].tolist()}


if __name__ == "__main__":
    found = {name: _computed(name) for name in CONFIGS}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(x)}" for name, x in found.items())
    (HERE / "numeric" / "architectures.json").write_text(f"{{\n{lines}\n}}\n")
