"""`occ serve` of encoders of texts with OpenAI's client: `/v1/embeddings`, `/v1/rerank`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import WIDTH, WORDS, states, write_folder
from openai_server import KEY, Served

import occ

openai = pytest.importorskip("openai")


def served(model: Any, **settings: Any) -> Iterator[Served]:
    from occ.serve.openai.app import ServerSettings, create_app

    made = Served(create_app(ServerSettings("tiny", api_key=KEY, **settings), lambda: model))
    made.wait()
    yield made
    made.close()


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_folder(tmp_path_factory.mktemp("e") / "m", pooling={"pooling_mode_cls_token": True})
    yield from served(occ.EmbeddingModel(folder, threads=1, target="cpu-jit"))


@pytest.fixture(scope="module")
def reranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_folder(tmp_path_factory.mktemp("r") / "m", "logits")
    yield from served(occ.Reranker(folder, threads=1, target="cpu-jit"))


def unit(text: str) -> np.ndarray:
    x = states(text)[0]
    return x / np.linalg.norm(x)


def test_texts_and_tokens_one_or_several(embeddings: Served) -> None:
    """The client asks for base64 where nothing else is said, and reads it."""
    create, text, other = embeddings.client.embeddings.create, "the lens", "a b c"
    ids = [2, WORDS.index("the"), WORDS.index("lens"), 3]
    for given, want in (
        (text, [text]), ([text, other], [text, other]), (ids, [text]), ([ids, ids], [text, text]),
    ):  # fmt: skip
        for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64", "user": "somebody"}):
            made = create(model="tiny", input=given, **more)
            assert [d.index for d in made.data] == list(range(len(want)))
            got = [
                np.frombuffer(base64.b64decode(d.embedding), "<f4") if isinstance(d.embedding, str) else d.embedding
                for d in made.data
            ]
            np.testing.assert_allclose(got, [unit(t) for t in want], atol=2e-6)
            assert made.usage.prompt_tokens == made.usage.total_tokens == sum(len(t.split()) + 2 for t in want)


def test_vectors_are_cut_to_the_dimensions_that_are_asked_for(embeddings: Served) -> None:
    (made,) = embeddings.client.embeddings.create(model="tiny", input="a", dimensions=7).data
    want = states("a")[0][:7]
    np.testing.assert_allclose(made.embedding, want / np.linalg.norm(want), atol=2e-6)


def test_what_cannot_be_met_is_refused_by_name(embeddings: Served) -> None:
    for body, said in (
        ({"input": []}, "input"), ({"input": [[]]}, "0 tokens"), ({"input": "the " * 40}, "42 tokens"),
        ({"input": [len(WORDS)]}, f"token {len(WORDS)}"), ({"input": [-1]}, "token -1"), ({"input": 3}, "input"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions"), ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"), ({"input": "a", "pooling": "cls"}, "pooling"),
        ({}, "input"), ({"input": ["a"] * 2049}, "2049"), ({"input": "\ud800"}, "surrogate"),
    ):  # fmt: skip
        status, _, text = embeddings.ask(
            "POST", "/v1/embeddings", json.dumps(body).encode(), **{"Content-Type": "application/json"}
        )
        assert status == 400, (body, text)
        assert said in json.loads(text)["error"]["message"]
    for path, body in (
        ("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):  # fmt: skip
        status, _, text = embeddings.ask(
            "POST", path, json.dumps(body).encode(), **{"Content-Type": "application/json"}
        )
        assert (status, "embeddings" in json.loads(text)["error"]["message"]) == (400, True)


def test_documents_are_ranked(reranking: Served) -> None:
    documents = ["a", "the lens is clear", "x y z"]
    body = {"model": "tiny", "query": "the lens", "documents": documents, "top_n": 2, "return_documents": True}
    status, _, text = reranking.ask(
        "POST", "/v1/rerank", json.dumps(body).encode(), **{"Content-Type": "application/json"}
    )
    assert status == 200
    scores = [1 / (1 + np.exp(-states("the lens", d, "logits")[0])) for d in documents]
    best = np.argsort(-np.array(scores))[:2]
    got = json.loads(text)["results"]
    assert [r["index"] for r in got] == best.tolist()
    assert [r["document"]["text"] for r in got] == [documents[k] for k in best]
    np.testing.assert_allclose([r["relevance_score"] for r in got], [scores[k] for k in best], atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="rerank"):
        reranking.client.embeddings.create(model="tiny", input="a")


def test_several_clients_wait_for_each_other_or_are_told_to_come_again(tmp_path: Path) -> None:
    model = occ.EmbeddingModel(write_folder(tmp_path / "m"), threads=1, target="cpu-jit")
    for server in served(model, waiting=3):

        def ask(k: int, server: Served = server) -> Any:
            try:
                return server.client.embeddings.create(model="tiny", input=[f"a {'b ' * k}"] * 40).data[0].embedding
            except openai.RateLimitError:
                return None

        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(ask, range(12)))
        assert any(x is not None for x in found)
        for k, x in enumerate(found):
            if x is not None:
                want = states(f"a {'b ' * k}").mean(0)
                np.testing.assert_allclose(x, want / np.linalg.norm(want), atol=2e-6)
        assert server.ask("POST", "/tokenize", b'{"content": "a b"}', **{"Content-Type": "application/json"})[0] == 200


def test_folders_tell_what_is_served(tmp_path: Path) -> None:
    from occ.generation.embedding_folder import encoder_kind

    assert encoder_kind(write_folder(tmp_path / "e", pooling={"pooling_mode_cls_token": True})) == "embedding"
    ranker = write_folder(tmp_path / "r", "logits")
    (ranker / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"]}))
    assert encoder_kind(ranker) == "reranking"
    assert encoder_kind(tmp_path) == encoder_kind(tmp_path / "none.gguf") == ""


def test_exports_without_a_description_are_told_by_what_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """optimum's export for feature extraction has no modules.json. Its graph is read when it is opened, not before."""
    from occ.generation.embedding_folder import encoder_kind

    monkeypatch.setattr("occ.compiler.frontend.onnx.scan", None)
    for outputs, kind in (("last_hidden_state", "embedding"), ("sentence_embedding", "embedding"), ("logits", "")):
        assert encoder_kind(write_folder(tmp_path / outputs, outputs)) == kind

    for damage in (b"", b"\x3a\x05", b"PK"):
        (tmp_path / "logits" / "model.onnx").write_bytes(damage)
        assert encoder_kind(tmp_path / "logits") == ""
