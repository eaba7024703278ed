"""Requests as clients really send them: nulls, answers that are given back, the only value of a field; and hostile ones."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from openai_server import EOS, MESSAGES, Served, openai

import occ
from occ.generation.tokenizer import TextStream
from occ.runtime.errors import RunError
from occ.serve.openai.app import ServerSettings, create_app

FIELDS = [
    "temperature", "top_p", "n", "seed", "stop", "stream", "stream_options", "presence_penalty", "frequency_penalty", "logit_bias",
    "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format", "max_completion_tokens", "audio",
    "functions", "function_call", "reasoning_effort", "modalities", "user", "verbosity", "web_search_options",
]  # fmt: skip


def test_null_is_what_is_not_given(client: Any) -> None:
    how = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
    got = client.chat.completions.create(**how, extra_body=dict.fromkeys(FIELDS))
    assert (len(got.choices), got.usage.completion_tokens <= 5) == (1, True)
    assert client.completions.create(model="tiny", prompt="a", n=None, best_of=None, echo=None, max_tokens=None).choices
    names = ["temperature", "instructions", "tools", "previous_response_id", "text", "reasoning", "truncation"]
    got = client.responses.create(model="tiny", input="a", max_output_tokens=2, extra_body=dict.fromkeys(names))
    assert got.usage.output_tokens <= 2
    with pytest.raises(openai.BadRequestError, match="prompt: Field required"):
        client.completions.create(model="tiny", prompt=None)


def test_answers_can_be_given_back(client: Any) -> None:
    """As objects of the client, and as all of their fields."""
    how = {"model": "tiny", "max_tokens": 3, "logit_bias": {EOS: -100}}
    answer = client.chat.completions.create(messages=MESSAGES, **how).choices[0].message
    for said in (answer, answer.model_dump(), {**answer.model_dump(), "annotations": []}):
        assert client.chat.completions.create(messages=[*MESSAGES, said, *MESSAGES], **how).choices
    first = client.responses.create(model="tiny", input="a", max_output_tokens=3)
    user = {"role": "user", "content": "b"}
    for said in (first.output, [x.model_dump() for x in first.output]):
        assert client.responses.create(model="tiny", input=[user, *said, user], max_output_tokens=3).output


def test_fields_that_clients_always_send_may_have_their_only_value(client: Any) -> None:
    only = {
        "tools": [],
        "include": [],
        "truncation": "disabled",
        "background": False,
        "tool_choice": "auto",
        "store": False,
    }
    how = {"model": "tiny", "input": "a", "max_output_tokens": 2}
    assert client.responses.create(**how, **only).output
    for name, value in (("truncation", "auto"), ("background", True), ("include", ["x"]), ("tools", [{"type": "mcp"}])):
        with pytest.raises(openai.BadRequestError, match=name):
            client.responses.create(**how, extra_body={name: value})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages.0.content.0"),
        ({"chat_template_kwargs": {"messages": []}}, "`chat_template_kwargs` has `messages`"),
        ({"chat_template_kwargs": {"self": 1}}, "`chat_template_kwargs` has `self`"),
        ({"logit_bias": {"5": float("nan")}}, "logit_bias.5"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"messages": []}, "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(served: Served, changed: dict[str, Any], named: str) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2} | changed).encode()
    status, _, answer = served.ask("POST", "/v1/chat/completions", body, **{"Content-Type": "application/json"})
    message = json.loads(answer)["error"]["message"]
    assert status == 400
    assert named in message
    assert "function-before" not in message


def test_an_input_of_no_messages_is_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="input"):
        client.responses.create(model="tiny", input=[])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_stop_texts_across_tokens_in_streams_of_several_choices(client: Any, size: int) -> None:
    """Tokens are bytes here, so that every stop text is in several of them."""
    how = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "seed": 3, "n": 3, "logprobs": True}
    how |= {"logit_bias": {EOS: -100} | dict.fromkeys(range(40, 50), 8)}
    free = client.chat.completions.create(**how).choices
    text = free[0].message.content
    stop = text[20 : 20 + size]
    whole = client.chat.completions.create(**how, stop=[stop, "never"]).choices
    assert whole[0].message.content == text[: text.index(stop)]
    assert whole[0].finish_reason == "stop"
    texts, reasons, counts = [""] * 3, [""] * 3, [0] * 3
    for chunk in client.chat.completions.create(**how, stop=[stop, "never"], stream=True):
        for c in chunk.choices:
            texts[c.index] += c.delta.content or ""
            reasons[c.index] = c.finish_reason or reasons[c.index]
            counts[c.index] += len(c.logprobs.content) if c.logprobs else 0
    assert texts == [c.message.content for c in whole]
    assert reasons == [c.finish_reason for c in whole]
    assert counts == [len(c.logprobs.content) for c in whole]


def test_stop_texts_are_found_as_by_looking_at_every_beginning(lm: occ.LanguageModel) -> None:
    rng = np.random.default_rng(0)
    tokenizer = lm.tokenizer
    assert tokenizer is not None
    for _ in range(300):
        text = "".join(rng.choice(list("ab"), 12))
        stops = ["".join(rng.choice(list("ab"), rng.integers(1, 6))) for _ in range(rng.integers(1, 3))]
        stream, got = TextStream(tokenizer, stops), ""
        for k, token in enumerate(tokenizer.encode(text)):
            got += stream.push(token)
            if stream.ended:
                break
            seen = text[: k + 1]
            held = [n for s in stops for n in range(1, len(s)) if seen.endswith(s[:n])]
            assert len(got) == len(seen) - max(held, default=0)
        got += stream.finish()
        seen = next((text[:k] for k in range(1, 13) if any(s in text[:k] for s in stops)), None)
        assert stream.ended == (seen is not None)
        assert got == (text if seen is None else seen[: min(seen.find(s) for s in stops if s in seen)])


def test_a_long_stop_text_stops_nobody_else(client: Any) -> None:
    """It took a minute a token."""
    how = {"model": "tiny", "prompt": "a", "max_tokens": 100, "temperature": 0}
    assert (
        client.completions.create(**how, stop="y" * 1_000_000).choices[0].text
        == client.completions.create(**how).choices[0].text
    )


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_larger_than_the_limit_are_refused(served: Served, chunked: bool) -> None:
    body: Any = b'{"prompt": "' + b"a" * (9 << 20) + b'"}'
    body = iter([body]) if chunked else body
    try:
        status, _, answer = served.ask("POST", "/v1/completions", body, **{"Content-Type": "application/json"})
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up while the rest was sent
    else:
        assert (status, "8 MiB" in json.loads(answer)["error"]["message"]) == (413, True)
    assert served.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"prompt": "a"}', "application/x-www-form-urlencoded", "Content-Type: application/json"),  # curl without -H
        (b'{"prompt": "a"', "application/json", "the body is not JSON: Expecting ',' delimiter (at character 14)"),
        (b"\xff\xfe", "application/json; charset=utf-8", "the body is not JSON"),
        (b'["a"]', "application/json", "valid dictionary"),
    ],
)
def test_bodies_that_are_no_objects_are_told_why(served: Served, body: bytes, kind: str, message: str) -> None:
    status, _, answer = served.ask("POST", "/v1/completions", body, **{"Content-Type": kind})
    assert status == 400
    assert message in json.loads(answer)["error"]["message"]


def test_a_server_ends_while_its_model_is_built() -> None:
    held = threading.Event()

    def load() -> occ.LanguageModel:
        held.wait(600)
        raise RunError("OCC0501", "it is too late")

    made = Served(create_app(ServerSettings("slow"), load))
    made.client.close()
    made.server.should_exit = True
    made.thread.join(60)
    ended = not made.thread.is_alive()
    held.set()
    assert ended
