"""`occ serve` under load: full queues, clients that hang up, and requests that make no sense."""

from __future__ import annotations

import http.client
import json
import random
import time
from typing import Any

import pytest
from openai_server import EOS, KEY, MESSAGES, Served, openai

import occ


def test_more_than_may_wait_are_told_to_come_later(lm: occ.LanguageModel) -> None:
    from occ.serve.openai.app import ServerSettings, create_app

    served = Served(create_app(ServerSettings("tiny", parallel=1, waiting=1), lambda: lm))
    served.wait()
    with pytest.raises(openai.RateLimitError, match="too many requests wait"):
        served.client.completions.create(model="tiny", prompt="a", n=3, max_tokens=100)
    for _ in range(5):  # who was refused takes no place
        got = served.client.completions.create(model="tiny", prompt="a", n=2, max_tokens=3, logit_bias={EOS: -100})
        assert got.usage.completion_tokens == 6
    served.close()


def test_who_hangs_up_frees_his_place(served: Served) -> None:
    """At random moments, streamed or not: nothing runs or waits shortly after, and the next client is served."""
    rng = random.Random(3)
    for k in range(50):
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 200, "stream": bool(k % 2), "n": rng.randrange(1, 5)}
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection.request("POST", "/v1/completions", json.dumps(body | {"logit_bias": {EOS: -100}}), headers)
        time.sleep(rng.random() * 0.02)
        connection.close()
    deadline = time.monotonic() + 60
    while served.metric("occ_requests_running") + served.metric("occ_requests_waiting"):
        assert time.monotonic() < deadline, "a request of somebody who hung up is still served"
        time.sleep(0.01)
    got = served.client.completions.create(model="tiny", prompt="a", max_tokens=2, temperature=0)
    assert got.usage.completion_tokens == 2


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_nonsense_is_answered_with_400_and_a_name(served: Served, path: str) -> None:
    rng = random.Random(path)
    valid: dict[str, Any] = {
        "completions": {"prompt": "a"}, "chat/completions": {"messages": MESSAGES}, "responses": {"input": "a"},
    }[path] | {"model": "tiny", ("max_output_tokens" if path == "responses" else "max_tokens"): 2}  # fmt: skip
    junk = [None, -1, 1e300, "", "\ud800", [], [[]], {}, {"a": {}}, True, [None], "x" * 3000, {"type": "json_schema"}]
    names = [
        *valid, "temperature", "top_p", "n", "seed", "stop", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice",
        "response_format", "stream_options", "grammar", "regex", "presence_penalty", "echo", "unknown", "text", "best_of",
    ]  # fmt: skip
    bodies = [
        json.dumps(valid | {rng.choice(names): rng.choice(junk) for _ in range(rng.randrange(1, 3))})
        for _ in range(120)
    ]
    bodies += ["", "{", "[" * 100_000, "null", "[]", '{"a": NaN}', '"x"', "\x00"]
    for body in bodies:
        status, _, answer = served.ask("POST", f"/v1/{path}", body.encode(), **{"Content-Type": "application/json"})
        assert status in (200, 400), (body[:200], status, answer[:300])
        if status == 400:
            assert json.loads(answer)["error"]["message"], body[:200]
    named = served.ask(
        "POST", f"/v1/{path}", json.dumps(valid | {"flavour": 1}).encode(), **{"Content-Type": "application/json"}
    )
    assert "flavour" in json.loads(named[2])["error"]["message"]
