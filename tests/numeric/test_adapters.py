"""LoRA adapters: a model to which one is added is that whose weights it was added to before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import PROMPT, config, weights, write_folder, write_gguf

import occ

MATRICES = {
    "llama": ("q_proj", "k_proj", "o_proj", "down_proj"),
    "gemma3": ("v_proj", "gate_proj"),
    "phi3": ("qkv_proj", "gate_up_proj"),
}


def write_adapter(folder: Path, name: str, rank: int = 4, **settings: Any) -> dict[str, np.ndarray]:
    """An adapter of random matrices; returns what it adds, by the names of transformers."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    rng, held, added = np.random.default_rng(6), {}, {}
    told = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 8,
        "bias": "none",
        "target_modules": list(MATRICES[name]),
        **settings,
    }
    for key, w in weights(config(name)).items():
        stem = key.removesuffix(".weight")
        if stem.split(".")[-1] not in MATRICES[name]:
            continue
        a, b = rng.normal(size=(rank, w.shape[1])) * 0.1, rng.normal(size=(w.shape[0], rank)) * 0.3
        held |= {
            f"base_model.model.{stem}.lora_{side}.weight": x.astype(np.float32) for side, x in (("A", a), ("B", b))
        }
        alpha = next(
            (v for n, v in told.get("alpha_pattern", {}).items() if stem.endswith(f".{n}")), told["lora_alpha"]
        )
        added[key] = b @ a * (alpha / (rank**0.5 if told.get("use_rslora") else rank))
    save_file(held, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return added


def logits(path: Path, adapter: Path | None = None) -> np.ndarray:
    lm = occ.LanguageModel(path, threads=1, capacity=64, target="cpu-jit", adapter=adapter)
    with lm.decoders.holding([]) as decoder:
        return decoder.continue_with(PROMPT)


def merged(folder: Path, name: str, added: dict[str, np.ndarray]) -> Path:
    """The model with the sums instead of its weights."""
    from safetensors.numpy import load_file, save_file

    folder.mkdir()
    write_folder(folder, name)
    held = load_file(folder / "model.safetensors")
    save_file({k: (w + added.get(k, 0)).astype(np.float32) for k, w in held.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "settings"),
    [("llama", {}), ("gemma3", {"use_rslora": True}), ("phi3", {"alpha_pattern": {"self_attn.qkv_proj": 2}})],
)
def test_a_model_with_an_adapter_is_the_merged_one(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    added = write_adapter(tmp_path / "a", name, **settings)
    (tmp_path / "m").mkdir()
    want = logits(merged(tmp_path / "merged", name, added))
    got = logits(write_folder(tmp_path / "m", name), tmp_path / "a")
    np.testing.assert_allclose(got, want, atol=1e-4 * float(np.ptp(want)))
    assert np.abs(want - logits(tmp_path / "m")).max() > 0.05 * np.ptp(want)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_adapters_are_added_to_gguf_files(kind: str, tmp_path: Path) -> None:
    """Rows that the file permutes are in the order of the adapter before that, and codes are widened."""
    added = write_adapter(tmp_path / "a", "llama")
    want = logits(merged(tmp_path / "merged", "llama", added))
    got = logits(write_gguf(tmp_path / "m.gguf", "llama", kind), tmp_path / "a")
    np.testing.assert_allclose(got, want, atol=(1e-4 if kind == "F32" else 3e-2) * float(np.ptp(want)))


def test_another_adapter_is_another_build(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", "llama")
    (tmp_path / "m").mkdir()
    write_folder(tmp_path / "m", "llama")
    first = logits(tmp_path / "m", tmp_path / "a")
    write_adapter(tmp_path / "a", "llama", lora_alpha=16)
    assert np.abs(first - logits(tmp_path / "m", tmp_path / "a")).max() > 0.01


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_dora": True}, "use_dora"), ({"bias": "all"}, "bias=all"), ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "not belong to a LoRA"), ({"lora_alpha": "much"}, "much"),
    ],
)  # fmt: skip
def test_what_cannot_be_added_is_named(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", "llama")
    told = json.loads((tmp_path / "a" / "adapter_config.json").read_text()) | settings
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(told))
    (tmp_path / "m").mkdir()
    with pytest.raises(occ.CompileError, match=rf"OCC0109[\s\S]*{said}"):
        logits(write_folder(tmp_path / "m", "llama"), tmp_path / "a")


def test_adapters_of_other_models_or_for_other_files(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    write_adapter(tmp_path / "a", "gemma3")
    (tmp_path / "m").mkdir()
    write_folder(tmp_path / "m", "llama")
    with pytest.raises(occ.CompileError, match="which the model"):
        logits(tmp_path / "m", tmp_path / "a")
    save_file(
        {"base_model.model.lm_head.lora_embedding_A": np.zeros((2, 2), np.float32)},
        tmp_path / "a" / "adapter_model.safetensors",
    )
    with pytest.raises(occ.CompileError, match="lora_embedding_A` is not known"):
        logits(tmp_path / "m", tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(occ.CompileError, match="damaged"):
        logits(tmp_path / "m", tmp_path / "a")
    with pytest.raises(occ.CompileError, match=r"adapter_config\.json"):
        logits(tmp_path / "m", tmp_path / "none")
    occ.build(tmp_path / "m" / "model.safetensors", "interp", out=tmp_path / "model.occ")
    with pytest.raises(occ.RunError, match="artifact"):
        occ.LanguageModel(tmp_path / "model.occ", adapter=tmp_path / "a")
    import onnx
    from decoders import decoder

    onnx.save(decoder(), tmp_path / "model.onnx")
    with pytest.raises(occ.CompileError, match="which is ONNX"):
        occ.LanguageModel(tmp_path / "model.onnx", adapter=tmp_path / "a")
