"""A large vocabulary takes seconds to read for grammars: nobody else waits for that, and it is read once."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from openai_server import KEY, Served

import occ


def test_others_are_served_while_the_vocabulary_is_read(lm: occ.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request with a grammar stopped all others, and health checks, until it was read."""
    from occ.serve.openai import service
    from occ.serve.openai.app import ServerSettings, create_app

    go, made = threading.Event(), list[Any]()

    def slow(*given: Any) -> service.Grammars:
        go.wait(600)
        made.append(given)
        return plain(*given)

    plain = service.Grammars
    monkeypatch.setattr(service, "Grammars", slow)
    body = {"model": "m", "prompt": "a", "max_tokens": 5, "temperature": 0}
    with (
        closing(Served(create_app(ServerSettings("m", api_key=KEY), lambda: lm))) as server,
        ThreadPoolExecutor() as pool,
    ):
        server.wait()
        asks = [{"Content-Type": "application/json"}] * 2
        waiting = [
            pool.submit(server.ask, "POST", "/v1/completions", json.dumps(body | {"regex": "[0-9]{3}"}).encode(), **h)
            for h in asks
        ]
        status, _, _ = server.ask("POST", "/v1/completions", json.dumps(body).encode(), **asks[0])
        assert (status, server.ask("GET", "/health")[0], [w.done() for w in waiting]) == (200, 200, [False, False])
        go.set()
        for w in waiting:
            status, _, answer = w.result(300)
            assert status == 200
            assert json.loads(answer)["choices"][0]["text"].isdigit()
    assert len(made) == 1


def test_a_library_that_is_missing_is_an_error_of_requests_with_grammars_alone(
    lm: occ.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from occ.serve.openai import service
    from occ.serve.openai.app import ServerSettings, create_app

    def missing(*_: Any) -> None:
        raise occ.RunError("OCC0501", "grammars need the library `llguidance`", "pip install llguidance")

    monkeypatch.setattr(service, "Grammars", missing)
    body = {"model": "m", "prompt": "a", "max_tokens": 2}
    with closing(Served(create_app(ServerSettings("m", api_key=KEY), lambda: lm))) as server:
        server.wait()
        head = {"Content-Type": "application/json"}
        assert server.ask("POST", "/v1/completions", json.dumps(body).encode(), **head)[0] == 200
        status, _, answer = server.ask("POST", "/v1/completions", json.dumps(body | {"regex": "a"}).encode(), **head)
        assert (status, "pip install llguidance" in answer) == (400, True)
