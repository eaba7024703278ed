"""Vectors of texts and scores of pairs: those of onnxruntime, pooled as sentence-transformers pools them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from encoders import LONGEST, WIDTH, states, write_folder

import occ

TEXTS = ["the lens is clear", "a", "", "x y z the a b c d e f", "the " * 40, "lens lens"]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "lasttoken": lambda x: x[-1],
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weightedmean": lambda x: (x * np.arange(1, len(x) + 1)[:, None]).sum(0) / np.arange(1, len(x) + 1).sum(),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_pooled_as_the_folder_says(way: str, tmp_path: Path) -> None:
    """Also in a batch, whose shorter texts are filled up; what is longer than the model takes is cut off."""
    key = {
        "weightedmean": "pooling_mode_weightedmean_tokens",
        "cls": "pooling_mode_cls_token",
        "mean": "pooling_mode_mean_tokens",
        "max": "pooling_mode_max_tokens",
    }
    folder = write_folder(
        tmp_path / "m", pooling={key.get(way, f"pooling_mode_{way}"): True, "word_embedding_dimension": WIDTH}
    )
    model = occ.EmbeddingModel(folder, threads=1, target="cpu-jit", batch_size=4)
    got = model.embed(TEXTS)
    assert got.dtype == np.float32
    for text, x in zip(TEXTS, got, strict=True):
        np.testing.assert_allclose(x, unit(WAYS[way](states(text))), atol=2e-6)
    np.testing.assert_allclose(model.embed(TEXTS[0]), got[0], atol=1e-6)


def test_the_mean_of_length_1_is_what_is_made_where_nothing_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    got = occ.embed(folder, TEXTS, threads=1, target="cpu")
    np.testing.assert_allclose(got, [unit(states(t).mean(0)) for t in TEXTS], atol=2e-6)
    plain = occ.embed(folder / "onnx" / "model.onnx", "a", threads=1, target="cpu", normalize=False, pooling="cls")
    np.testing.assert_allclose(plain, states("a")[0], atol=2e-6)


def test_several_poolings_layers_and_prompts(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    pooling = {"pooling_mode": ["cls", "mean"]}
    folder = write_folder(tmp_path / "m", pooling=pooling, normalize=False)
    weight, bias = np.random.default_rng(1).normal(size=(5, 2 * WIDTH)), np.arange(5.0)
    (folder / "2_Dense").mkdir()
    held = {"linear.weight": weight.astype(np.float32), "linear.bias": bias.astype(np.float32)}
    save_file(held, folder / "2_Dense" / "model.safetensors")
    dense = {"in_features": 2 * WIDTH, "out_features": 5, "activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the lens "}}))
    model = occ.EmbeddingModel(folder, threads=1, target="cpu-jit")
    for prompt, text in (("query", "the lens a b"), ("the lens ", "the lens a b"), ("", "a b")):
        x = states(text)
        want = np.tanh(weight @ np.concatenate([x[0], x.mean(0)]) + bias)
        np.testing.assert_allclose(model.embed("a b", prompt=prompt), want, atol=1e-5)


def test_vectors_that_the_model_pools_itself_are_taken(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", "last_hidden_state sentence_embedding")
    got = occ.embed(folder, TEXTS[:2], threads=1, target="cpu-jit")
    np.testing.assert_allclose(got, [unit(states(t, outputs="sentence_embedding")) for t in TEXTS[:2]], atol=2e-6)


def test_artifacts_are_opened(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    occ.build(folder / "onnx" / "model.onnx", "cpu-jit", out=folder / "model.occ")
    (folder / "onnx" / "model.onnx").unlink()
    np.testing.assert_allclose(occ.embed(folder, "a"), unit(states("a").mean(0)), atol=2e-6)


def test_pairs_are_scored(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", "logits")
    raw = occ.rerank(folder, "the lens", TEXTS, raw=True, threads=1, target="cpu-jit")
    np.testing.assert_allclose(raw, [states("the lens", t, "logits")[0] for t in TEXTS], atol=2e-6)
    np.testing.assert_allclose(
        occ.rerank(folder, "the lens", TEXTS, target="cpu-jit"), 1 / (1 + np.exp(-raw)), atol=1e-6
    )
    assert occ.rerank(folder, "the lens", [], target="cpu-jit").shape == (0,)


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", "logits")
    for act, said in (
        (lambda: occ.embed(folder, "a", target="cpu-jit"), "returns no vectors"),
        (lambda: occ.embed(tmp_path / "none", "a"), "does not exist"),
        (lambda: occ.embed(folder, "a", pooling="best"), "'best'"),
        (lambda: occ.embed(folder, "a", batch_size=0), "batch_size"),
        (lambda: occ.rerank(write_folder(tmp_path / "e"), "a", ["b"], target="cpu-jit"), "no `logits`"),
        (lambda: occ.embed(tmp_path / "e", "the " * 60, truncate=False, target="cpu-jit"), "62 tokens"),
    ):
        with pytest.raises(occ.RunError, match=said):
            act()
    model = onnx.load(folder / "onnx" / "model.onnx")
    model.graph.input[2].name = "pixel_values"
    for node in model.graph.node:
        node.input[:] = ["pixel_values" if i == "token_type_ids" else i for i in node.input]
    onnx.save(model, folder / "onnx" / "model.onnx")
    with pytest.raises(occ.RunError, match="takes `pixel_values`"):
        occ.embed(folder, "a", target="cpu-jit")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(occ.RunError, match=r"no tokenizer\.json"):
        occ.embed(folder, "a")


def test_modules_that_are_not_known_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", pooling={"pooling_mode_cls_token": True})
    for module, said in (
        ({"path": "3", "type": "sentence_transformers.models.CLIPModel"}, "`CLIPModel`"),
        ({"path": "../x", "type": "sentence_transformers.models.Pooling"}, "outside"),
        ({"path": "3", "type": "sentence_transformers.models.Dense"}, r"no model\.safetensors"),
        ("no", "cannot be read"),
    ):
        (folder / "modules.json").write_text(json.dumps([module]))
        with pytest.raises(occ.RunError, match=said):
            occ.EmbeddingModel(folder)
    (folder / "modules.json").unlink()
    for config, said in (
        ({"pooling_mode": "best"}, "`best`"),
        ({"pooling_mode_best": True}, "does not define the pooling"),
        ({"pooling_mode": "cls", "include_prompt": False}, "include_prompt"),
    ):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
        with pytest.raises(occ.RunError, match=said):
            occ.EmbeddingModel(folder)


def test_the_command(tmp_path: Path, occ_cli: Any) -> None:
    folder = write_folder(tmp_path / "m", pooling={"pooling_mode_cls_token": True})
    (tmp_path / "lines.txt").write_text("a\nthe lens is clear\n")
    done = occ_cli("embed", folder, "-t", "cpu-jit", "--text", "b", "--lines", tmp_path / "lines.txt")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [f["text"] for f in found] == ["b", "a", "the lens is clear"]
    np.testing.assert_allclose([f["embedding"] for f in found], [unit(states(f["text"])[0]) for f in found], atol=2e-6)
    occ_cli("embed", folder, "-t", "cpu-jit", "--text", "b", "-o", tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), [found[0]["embedding"]], atol=1e-7)
    ranker = write_folder(tmp_path / "r", "logits")
    done = occ_cli("embed", ranker, "-t", "cpu-jit", "--query", "the lens", "--text", "b")
    want = 1 / (1 + np.exp(-states("the lens", "b", "logits")[0]))
    assert json.loads(done.out)["score"] == pytest.approx(want, abs=1e-6)
    assert LONGEST > 20
