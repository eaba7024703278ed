"""occ bench --generate: figures of a small decoder next to onnxruntime, tokens first, and what goes wrong."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnx
import pytest
from building import mlp
from decoders import WORDS, decoder

from occ.compiler.objects.processors import PROCESSORS
from occ.generation import benchmark, peer_runtimes
from occ.generation.folder import Folder
from occ.generation.open import find_or_build
from occ.generation.peer_process import PeerProcess
from occ.generation.peer_runtimes import CannotGenerate

RUN = ("-t", "cpu-jit", "--threads", "1", "--rounds", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    onnx.save(decoder(), path / "model.onnx")
    return path


@pytest.fixture(autouse=True)
def kept(folder, monkeypatch) -> None:
    """Artifacts are kept for the tests of this file, so the decoder is built once."""
    monkeypatch.setenv("OCC_CACHE_DIR", str(folder / "cache"))
    monkeypatch.delenv("OCC_CACHE_ARTIFACTS", raising=False)


def test_it_times_prompts_and_tokens_beside_onnxruntime(folder, occ_cli) -> None:
    ran = occ_cli("bench", folder, "--generate", "12,5", "--against", "onnxruntime", *RUN, "--json")
    assert ran.code == 0, ran.err
    made = json.loads(ran.out)
    assert (made["threads"], made["prompt"], made["count"]) == (1, 12, 5)
    assert list(made["speeds"]) == ["occ", "onnxruntime"]
    for name, s in made["speeds"].items():
        assert s["prefill"] == pytest.approx(12 / s["first"]["ms"] * 1e3)
        assert s["decode"] == pytest.approx(1e3 / s["token"]["ms"])
        assert (s["alike"], s["distance"]) == (6, 0)
        assert s["memory"] > 1 << 20, name
    assert made["reasons"] == {}


def test_sampled_tokens_are_timed_after_greedy_ones_were_compared(folder, occ_cli) -> None:
    ran = occ_cli("bench", folder, "--generate", "12,5", "--sampled", "--against", "onnxruntime", *RUN, "--json")
    assert ran.code == 0, ran.err
    made = json.loads(ran.out)
    assert made["sampled"] is True
    assert [(s["alike"], s["distance"]) for s in made["speeds"].values()] == [(6, 0), (6, 0)]
    alone = occ_cli("bench", folder / "model.onnx", "--sampled")
    assert (alone.code, "--sampled needs --generate" in alone.err) == (2, True)


def test_runtimes_that_cannot_run_the_folder_are_named(folder, occ_cli, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", ModuleType("onnxruntime_genai"))  # as if it were installed
    ran = occ_cli("bench", folder, "--generate", "4,2", "--against", "onnxruntime-genai,onnxruntime", *RUN)
    assert ran.code == 0, ran.err
    head, ours, theirs, missing = ran.out.strip().splitlines()
    assert "prefill of 4 and decode of 2 tokens on 1 thread" in head
    assert ours.startswith("occ ")
    assert "3 of 3 tokens agree" in theirs
    assert missing.split(maxsplit=1) == ["onnxruntime-genai", "the folder has no genai_config.json"]


def test_a_runtime_of_gguf_files_needs_one(folder, occ_cli, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))  # as if it were installed
    ran = occ_cli("bench", folder, "--generate", "4,2", "--against", "llama.cpp", *RUN)
    assert ran.code == 0, ran.err
    assert ran.out.strip().splitlines()[-1].split(maxsplit=1) == ["llama.cpp", "it takes a .gguf file"]
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    ran = occ_cli("bench", folder, "--generate", "4,2", "--against", "llama.cpp", *RUN)
    assert (ran.code, "`pip install llama-cpp-python`" in ran.err) == (2, True)


def test_options_of_the_target_reach_the_build(folder, occ_cli) -> None:
    """They were refused, so that no other processor could be measured."""
    ran = occ_cli("bench", folder, "--generate", "4,2", "--against", "", *RUN, "--target-cpu", "x86-64-v2")
    assert ran.code == 0, ran.err
    made = find_or_build(Folder.of(folder), "cpu-jit", options={"halide.target": PROCESSORS["x86-64-v2"]})
    assert isinstance(made, Path)
    assert made != find_or_build(Folder.of(folder), "cpu-jit")
    ran = occ_cli("bench", folder, "--generate", "4,2", *RUN, "-C", "nonsense=1")
    assert (ran.code, "nonsense" in ran.err) == (2, True), ran.err


def test_runtimes_that_are_not_there_are_refused(folder, occ_cli, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)  # its import fails
    ran = occ_cli("bench", folder, "--generate", "4,2", "--against", "onnxruntime-genai", *RUN)
    assert ran.code == 2
    assert "--against onnxruntime-genai needs onnxruntime-genai: `pip install onnxruntime-genai`" in ran.err


def test_there_is_no_ratio_where_tokens_disagree(folder, tmp_path) -> None:
    made, artifact = benchmark.Comparison(1, 4, 8), find_or_build(Folder.of(folder), "cpu-jit")
    assert isinstance(artifact, Path)
    onnx.save(decoder(softcap=0.01), tmp_path / "other.onnx")  # attends to all tokens alike
    with (
        closing(PeerProcess("occ", artifact, 1, 16)) as ours,
        closing(PeerProcess("onnxruntime", tmp_path / "other.onnx", 1, 16)) as theirs,
    ):
        ids = [3, 1, 4, 1]
        greedy = {name: w.ask(ids=ids, count=8)["tokens"] for name, w in (("occ", ours), ("onnxruntime", theirs))}
        benchmark._measure(made, {"occ": ours, "onnxruntime": theirs}, ids, greedy, 1)
    assert made.speeds["occ"].distance == 0
    assert made.speeds["onnxruntime"].distance > benchmark.TOLERANCE
    assert "no comparison: its tokens are up to" in made.lines()[2]


def test_a_runtime_that_fails_after_its_first_text_is_named(folder, monkeypatch) -> None:
    """It ended the command with a traceback: onnxruntime-genai does not go back in caches of a window."""
    made, artifact = benchmark.Comparison(1, 4, 8), find_or_build(Folder.of(folder), "cpu-jit")
    assert isinstance(artifact, Path)
    with (
        closing(PeerProcess("occ", artifact, 1, 16)) as ours,
        closing(PeerProcess("occ", artifact, 1, 16)) as theirs,
    ):
        ids = [3, 1, 4, 1]
        greedy = {"occ": ours.ask(ids=ids, count=8)["tokens"]}
        monkeypatch.setattr(theirs, "ask", partial(_fail, "cannot rewind"))
        benchmark._measure(made, {"occ": ours, "onnxruntime": theirs}, ids, greedy, 2)
    assert list(made.speeds) == ["occ"]
    assert made.reasons == {"onnxruntime": "cannot rewind"}


def test_peers_with_a_sampler_of_their_own_sample_from_all_tokens(tmp_path, monkeypatch) -> None:
    """onnxruntime-genai sampled from the 50 most probable ones, as it does unless told otherwise."""
    said = []
    genai = SimpleNamespace(
        Config=lambda _: SimpleNamespace(overlay=lambda _: None), Model=lambda _: None, Generator=lambda *_: None,
        GeneratorParams=lambda _: SimpleNamespace(set_search_options=lambda **how: said.append(how)),
    )  # fmt: skip
    (tmp_path / "genai_config.json").write_text("{}")
    monkeypatch.setattr(peer_runtimes, "_imported", lambda *_: genai)
    peer_runtimes.GenaiRuntime(tmp_path / "model.onnx", 1, 16)
    assert {(how["do_sample"], how.get("top_k"), how.get("top_p")) for how in said} == {
        (False, None, None),
        (True, 0, 0.95),
    }


def _fail(why: str, **_: object) -> None:
    raise CannotGenerate(why)


def test_an_artifact_is_timed_too(folder, occ_cli) -> None:
    artifact = find_or_build(Folder.of(folder), "cpu-jit")
    ran = occ_cli("bench", artifact, "--generate", "3,2", "--against", "", *RUN)
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--generate", "12"], "takes two numbers of tokens"),
        (["--generate", "0,4"], "takes two numbers of tokens"),
        (["--generate", "4,4", "--against", "torch"], "--against takes onnxruntime-genai, onnxruntime, openvino"),
        (["--generate", "4,4", "--dim", "batch=2"], "--dim cannot be combined with --generate"),
        (["--generate", "4,4", "-t", "interp"], "not 'interp'"),
    ],
)
def test_options_that_make_no_sense_are_errors(folder, flags, said, occ_cli) -> None:
    ran = occ_cli("bench", folder, *flags)
    assert ran.code == 2
    assert said in ran.err


def test_what_is_no_language_model_is_one_error(tmp_path, occ_cli) -> None:
    onnx.save(mlp(), tmp_path / "net.onnx")
    (tmp_path / "short").mkdir()
    onnx.save(decoder(), tmp_path / "short" / "model.onnx")
    (tmp_path / "short" / "config.json").write_text(json.dumps({"max_position_embeddings": WORDS}))
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("net.onnx", "is not a decoder"),
        ("empty", "has no model"),
        ("none", "does not exist"),
        ("short", f"more than the model supports, {WORDS}"),
    ):
        ran = occ_cli("bench", tmp_path / name, "--generate", f"{WORDS},2", "-t", "cpu-jit")
        assert ran.code == 1
        assert ran.err.count("error[") == 1
        assert said in ran.err
        assert ran.out == ""
