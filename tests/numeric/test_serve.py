"""`occ serve` with the client `openai`: whole and streamed answers, several clients at once, one that hangs up, bad requests."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from decoders import WORDS, decoder

import occ

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

TEMPLATE = "{% for m in messages %}w1 {{ m['content'] }} {% endfor %}w2"


def write_folder(path: Path) -> None:
    """A decoder whose words are `w0`, `w1`, ..."""
    onnx.save(decoder(), path / "model.onnx")
    words = tokenizers.models.WordLevel({f"w{k}": k for k in range(WORDS)}, unk_token="w0")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> occ.LanguageModel:
    path = tmp_path_factory.mktemp("served")
    write_folder(path)
    return occ.LanguageModel(path, threads=1, capacity=128, target="cpu-jit")


def health(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.fixture(scope="module")
def client(lm: occ.LanguageModel) -> Iterator[Any]:
    from occ.serve.openai.app import ServerSettings, create_app

    made = create_app(ServerSettings("tiny", parallel=2), lambda: lm)
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    (port,) = (s.getsockname()[1] for x in server.servers for s in x.sockets)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        while health(port) != 200:
            time.sleep(0.01)
        yield client
    server.should_exit = True
    thread.join(300)


def test_answers_are_what_the_model_writes(lm: occ.LanguageModel, client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    got = client.completions.create(model="tiny", prompt="w3 w1 w4", max_tokens=8, temperature=0)
    assert got.choices[0].text == lm.generate("w3 w1 w4", max_new_tokens=8)
    assert (got.choices[0].finish_reason, got.usage.prompt_tokens, got.usage.completion_tokens) == ("length", 3, 8)
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "w9 w9"}], max_tokens=5, temperature=0
    )
    assert chat.choices[0].message.content == lm.generate(lm.chat([{"content": "w9 w9"}]), max_new_tokens=5, texts=True)
    assert chat.usage.prompt_tokens == 4


def test_streams_give_the_same_text_in_pieces(client: Any) -> None:
    how = {"model": "tiny", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(prompt="w5", **how).choices[0].text
    pieces = [c.choices[0].text for c in client.completions.create(prompt="w5", stream=True, **how)]
    assert "".join(pieces) == whole
    assert len(pieces) > 3
    talk = client.chat.completions.create(messages=[{"role": "user", "content": "w5"}], stream=True, **how)
    reasons = [c.choices[0].finish_reason for c in talk]
    assert (reasons[-1], set(reasons[:-1])) == ("length", {None})


def test_a_stream_names_its_role_once_and_counts_where_asked(client: Any) -> None:
    how = {"model": "tiny", "max_tokens": 4, "temperature": 0, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(messages=[{"role": "user", "content": "w5"}], stream=True, **how)
    assert [c.choices[0].delta.role for c in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 3, 4)
    nothing = list(client.completions.create(prompt="w5", stream=True, **how | {"max_tokens": 0}))
    assert [c.choices[0].text for c in nothing[:-1]] == [""]
    assert nothing[-1].usage.completion_tokens == 0


def test_a_text_that_ends_with_its_last_token_has_stopped(
    lm: occ.LanguageModel, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lm.generate(lm.tokens_of("w5"), 1)
    monkeypatch.setattr(lm, "eos_ids", tuple(first))
    got = client.completions.create(model="tiny", prompt="w5", max_tokens=1, temperature=0)
    assert got.choices[0].finish_reason == "stop"


def test_stop_and_seed(client: Any) -> None:
    how = {"model": "tiny", "prompt": "w5", "max_tokens": 20}
    words = client.completions.create(temperature=0, **how).choices[0].text.split()
    stopped = client.completions.create(temperature=0, stop=[words[3]], **how).choices[0]
    assert stopped.text.split() == words[: words.index(words[3])]
    assert stopped.finish_reason == "stop"
    one, two = (client.completions.create(temperature=2, seed=3, **how).choices[0].text for _ in range(2))
    assert one == two


def test_clients_at_once_and_one_that_hangs_up(lm: occ.LanguageModel, client: Any) -> None:
    want = [lm.generate(f"w{k} w{k + 1}", max_new_tokens=30) for k in range(4)]
    got: dict[int, str] = {}

    def ask(k: int) -> None:
        got[k] = client.completions.create(
            model="tiny", prompt=f"w{k} w{k + 1}", max_tokens=30, temperature=0
        ).choices[0].text  # fmt: skip

    leaving = client.completions.create(model="tiny", prompt="w7", max_tokens=100, temperature=0, stream=True)
    next(iter(leaving))
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    leaving.close()
    for t in threads:
        t.join(300)
    assert [got.get(k) for k in range(4)] == want
    for _ in range(3):  # each of those who leave returns its place and its cache
        again = client.completions.create(model="tiny", prompt="w8", max_tokens=100, temperature=0, stream=True)
        next(iter(again))
        again.close()
    assert (
        client.completions.create(model="tiny", prompt="w1", max_tokens=2, temperature=0).usage.completion_tokens == 2
    )


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"prompt": ""}, "0 tokens"),
        ({"prompt": "w1 " * 200}, "200 tokens"),
        ({"prompt": [WORDS]}, f"token {WORDS}"),
        ({"prompt": "w1", "temperature": -1}, "temperature: "),
        ({"prompt": "w1", "n": 0}, "n: "),
        ({"prompt": "w1", "top_p": 0}, "top_p: "),
        ({"prompt": "w1", "logprobs": 30}, "logprobs"),
        ({"prompt": "w1", "best_of": 3}, "best_of"),
        ({"prompt": "w1", "suffix": "w2"}, "suffix"),
        ({"prompt": "w1", "extra_body": {"repeat_penalty": 1.5}}, "repeat_penalty"),
    ],
)
def test_bad_requests_are_answered(client: Any, bad: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as e:
        client.completions.create(model="tiny", **bad)
    assert said in e.value.body["message"]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]
    assert client.completions.create(model="tiny", prompt="w1", max_tokens=1, echo=False).usage.completion_tokens == 1


def test_texts_are_generated_each_in_its_own_run_where_the_model_does_not_compile_for_several(
    lm: occ.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    from occ.serve.openai.app import ServerSettings, create_app

    def refused() -> None:
        raise occ.CompileError([])

    monkeypatch.setattr(lm, "batch", refused)
    with TestClient(create_app(ServerSettings("tiny"), lambda: lm)) as client:
        while client.get("/health").status_code == 503:
            time.sleep(0.01)
        asked = {"model": "tiny", "prompt": "w3 w1 w4", "max_tokens": 8, "temperature": 0, "n": 2}
        answer = client.post("/v1/completions", json=asked).json()
    assert [c["text"] for c in answer["choices"]] == [lm.generate("w3 w1 w4", max_new_tokens=8)] * 2
