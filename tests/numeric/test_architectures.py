"""Models that come as weights without a graph: what transformers writes with them, from safetensors and from GGUF."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from architectures import CONFIGS, COUNT, PROMPT, reference, write_folder, write_gguf
from decoders import Reference

import occ
from occ.compiler.driver.source import load_module
from occ.compiler.frontend.onnx import read_file


def agree(lm: occ.LanguageModel, name: str) -> None:
    """Tokens are those of transformers, and logits but for the rounding of f32."""
    want = reference(name)
    with lm.decoders.holding([]) as decoder:
        logits = decoder.continue_with(PROMPT)
    np.testing.assert_allclose(logits, want["logits"], rtol=2e-4, atol=2e-4 * float(np.ptp(want["logits"])))
    assert lm.generate(PROMPT, COUNT) == want["tokens"]


@pytest.mark.parametrize("name", CONFIGS)
def test_folders_of_safetensors_give_what_transformers_gives(name: str, tmp_path: Path) -> None:
    agree(occ.LanguageModel(write_folder(tmp_path, name), threads=1, capacity=100, target="cpu-jit"), name)


# llama.cpp's files of Mistral do not have its window, and those of Gemma 2 and 3 do not have `query_pre_attn_scalar`.
IN_GGUF = {n: {} for n in CONFIGS if n != "mistral"}


@pytest.mark.parametrize("name", IN_GGUF)
def test_gguf_files_give_what_transformers_gives(name: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", name)
    agree(occ.LanguageModel(file, threads=1, capacity=100, target="cpu-jit"), name)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_halves_in_several_files_are_read(dtype: type, tmp_path: Path) -> None:
    """What is computed is that of the rounded weights in f32, as of a file that holds those in f32."""
    write_folder(tmp_path, "qwen2", dtype=dtype, shards=3)
    found = {p.name for p in load_module(tmp_path / "model.safetensors.index.json").files}
    assert found == {"config.json", *(f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3))}
    rounded = tmp_path / "f32"
    rounded.mkdir()
    write_folder(rounded, "qwen2", rounded=dtype)
    logits = []
    for folder in (tmp_path, rounded):
        lm = occ.LanguageModel(folder, threads=1, capacity=100, target="cpu-jit")
        with lm.decoders.holding([]) as decoder:
            logits.append(decoder.continue_with(PROMPT))
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_texts_of_unlike_lengths_are_continued_together(target: str, tmp_path: Path) -> None:
    lm = occ.LanguageModel(write_folder(tmp_path, "gemma3"), threads=1, capacity=100, target=target)
    prompts = [PROMPT, PROMPT[:5], [3]]
    assert lm.generate(prompts, 20) == [lm.generate(p, 20) for p in prompts]
    assert lm.generate(prompts, 20)[0] == reference("gemma3")["tokens"][:20]


def dequantised(path: Path) -> onnx.ModelProto:
    """The model of a file with f32 matrices, as the package `gguf` widens them, instead of codes."""
    import gguf

    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    other = path.with_suffix(".f32.gguf")
    write_gguf(other, "llama", tensors=tensors, **WIDE)
    return whole(other)


def whole(path: Path) -> onnx.ModelProto:
    """The model of a file, with its weights in the message."""
    model, mapped = read_file(path)
    for k, raw in mapped.raw.items():
        model.graph.initializer[k].raw_data = raw.tobytes()
    return model


WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": True}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"])
def test_quantised_files_give_what_their_values_give(kind: str, tmp_path: Path) -> None:
    """onnxruntime computes with the values that the package `gguf` widens; `cpu-jit` does not round activations."""
    file = write_gguf(tmp_path / "model.gguf", "llama", kind, **WIDE)
    want = Reference(dequantised(file)).logits(PROMPT)[-1]
    lm = occ.LanguageModel(file, threads=1, capacity=100, target="cpu-jit")
    with lm.decoders.holding([]) as decoder:
        got = decoder.continue_with(PROMPT)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.ptp(want)))
    kept = [n for n in whole(file).graph.node if n.op_type == "MatMulNBits"]
    assert len(kept) == (0 if "F" in kind else 2 * 7 + 1)
