"""`occ serve --draft`: guessed tokens are verified, answers are those of the model, and other models refuse it."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from openai_server import KEY, Served, write_folder
from ports import free_port
from test_adapter import answered

import occ

pytest.importorskip("uvicorn")
PROMPT = [5, 6, 7, 8] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    write_folder(path)
    return path


def test_drafts_of_a_server_change_no_answer_and_save_steps(folder: Path) -> None:
    from occ.serve.openai.app import ServerSettings, create_app

    how = {"threads": 1, "capacity": 200, "target": "cpu-jit"}
    want = occ.LanguageModel(folder, **how).generate(PROMPT, 60, texts=True)
    app = create_app(
        ServerSettings("m", parallel=4, api_key=KEY), lambda: occ.LanguageModel(folder, draft=folder, **how)
    )
    with closing(Served(app)) as server:
        server.wait()
        made = server.client.completions.create(model="m", prompt=PROMPT, max_tokens=60, temperature=0)
        assert made.choices[0].text == want
        assert server.metric("occ_generated_tokens_total") == made.usage.completion_tokens
        assert server.metric("occ_steps_total") < made.usage.completion_tokens - 1


def test_the_command_takes_drafts_and_options(folder: Path) -> None:
    want = occ.LanguageModel(folder, 1, 64, target="cpu-jit").generate(PROMPT, 12, texts=True)
    flags = ("--draft", "ngram", "--draft-tokens", "2", "-t", "cpu-jit", "-C", "optimize=1")
    port = free_port()
    command = [sys.executable, "-m", "occ", "serve", str(folder), "--port", str(port), "--capacity", "64", *flags]
    process = subprocess.Popen(command)
    try:
        assert answered(process, port, PROMPT) == want
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            assert re.search(r"^occ_generated_tokens_total 12", answer.read().decode(), re.M)
    finally:
        process.terminate()
        code = process.wait(300)
    assert code == 0  # a clean end


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--draft", "ngram"], "--draft is for language models"),
        (["--score-prompts"], "--score-prompts is for language models"),
    ],
)
def test_what_takes_no_drafts_refuses_them(flags: list[str], said: str, occ_cli, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    ran = occ_cli("serve", str(tmp_path / "m.onnx"), *flags)
    assert (ran.code, said in ran.err) == (2, True)


def test_options_are_not_for_an_artifact(occ_cli, tmp_path: Path) -> None:
    (tmp_path / "model.occ").write_bytes(b"PK")
    ran = occ_cli("generate", str(tmp_path / "model.occ"), "--tokens", "1", "-C", "cache=int8")
    assert ran.code == 1, ran.err
    assert "is an artifact, which is compiled already" in " ".join(ran.err.split())
