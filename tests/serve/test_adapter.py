"""`occ serve --adapter`: what is served is the model with the LoRA adapter."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from architectures import WORDS, config, weights, write_folder
from ports import free_port

import occ

tokenizers = pytest.importorskip("tokenizers")
numpy_files = pytest.importorskip("safetensors.numpy")
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance", reason="pip install llguidance: the server has grammars")


def folders(home: Path) -> tuple[Path, Path]:
    """A model of random weights whose words are letters, and an adapter of all its queries."""
    model, adapter = home / "m", home / "a"
    for folder in (model, adapter):
        folder.mkdir()
    write_folder(model, "llama")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{k}": k for k in range(WORDS)}, "w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(model / "tokenizer.json"))
    rng, held = np.random.default_rng(1), dict[str, np.ndarray]()
    for key, w in weights(config("llama")).items():
        if "q_proj" in key:
            stem = f"base_model.model.{key.removesuffix('.weight')}"
            held[f"{stem}.lora_A.weight"] = rng.normal(size=(2, w.shape[1])).astype(np.float32)
            held[f"{stem}.lora_B.weight"] = rng.normal(size=(w.shape[0], 2)).astype(np.float32)
    numpy_files.save_file(held, adapter / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    return model, adapter


def written(lm: occ.LanguageModel, prompt: list[int]) -> str:
    assert lm.tokenizer is not None
    return lm.tokenizer.decode(lm.generate(prompt, 12, temperature=0))


def test_the_server_adds_an_adapter(tmp_path: Path) -> None:
    model, adapter = folders(tmp_path)
    prompt = [3, 1, 4, 1, 5]
    want, plain = (written(occ.LanguageModel(model, 1, 64, adapter=a), prompt) for a in (adapter, None))
    assert want != plain
    port = free_port()
    given = [str(model), "--adapter", str(adapter), "--port", str(port), "--capacity", "64", "--threads", "1"]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "occ", "serve", *given], stderr=log)
    try:
        assert answered(server, port, prompt) == want, (tmp_path / "log").read_text()
    finally:
        server.terminate()
        server.wait(300)


def answered(server: subprocess.Popen[bytes], port: int, prompt: list[int]) -> str:
    """The continuation from a server, once it is ready."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(3000):
        assert server.poll() is None
        try:
            with urllib.request.urlopen(asked, timeout=300) as answer:
                return str(json.load(answer)["choices"][0]["text"])
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


def test_an_adapter_of_what_takes_none_is_refused(occ_cli, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    ran = occ_cli("serve", str(tmp_path / "m.onnx"), "--adapter", str(tmp_path))
    assert ran.code == 2
    assert "--adapter is for language models" in ran.err
