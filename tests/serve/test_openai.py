"""`occ serve` of a language model with OpenAI's client: every field of the protocol works, or is refused by its name."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from openai_server import EOS, MESSAGES, Served, openai

import occ

# several texts, probabilities


def test_several_choices_and_prompts_in_one_request(lm: occ.LanguageModel, client: Any) -> None:
    how = {"model": "tiny", "max_tokens": 5, "seed": 4}
    got = client.completions.create(prompt=["ab", "c"], n=2, temperature=1.5, **how)
    assert [c.index for c in got.choices] == [0, 1, 2, 3]
    assert len({c.text for c in got.choices}) == 4
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (3, 20)
    tokens = client.completions.create(prompt=[[98, 99], [100]], temperature=0, **how)
    want = [lm.generate(p, 5, texts=True) for p in ([98, 99], [100])]
    assert [c.text for c in tokens.choices] == want
    streamed = ["", ""]
    for chunk in client.completions.create(prompt=[[98, 99], [100]], temperature=0, stream=True, **how):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == want
    echoed = client.completions.create(prompt="ab", temperature=0, echo=True, **how)
    assert echoed.choices[0].text == "ab" + lm.generate("ab", 5)


def test_probabilities_are_those_of_the_model(lm: occ.LanguageModel, client: Any) -> None:
    how = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    got = client.completions.create(prompt="ab", logprobs=3, **how).choices[0].logprobs
    decoder = lm.decoders.take([])
    logits = decoder.continue_with(lm.tokens_of("ab")).astype(np.float64)
    lm.decoders.give_back(decoder)
    norm = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
    np.testing.assert_allclose(got.token_logprobs[0], logits.max() - norm, atol=1e-5)
    assert [len(t) for t in got.top_logprobs] == [3] * 4
    assert got.text_offset == [sum(map(len, got.tokens[:k])) for k in range(4)]
    chat = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=2, model="tiny", max_tokens=3, temperature=0
    )
    for token in chat.choices[0].logprobs.content:
        assert token.logprob == token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert bytes(token.bytes).decode() == token.token
    assert len({t.token for t in chat.choices[0].logprobs.content[0].top_logprobs}) == 2
    chunks = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, model="tiny", max_tokens=3, temperature=0, stream=True
    )
    seen = [t.token for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert seen == [t.token for t in chat.choices[0].logprobs.content]


def test_settings_of_the_sampler_are_heeded(lm: occ.LanguageModel, client: Any) -> None:
    a, b = lm.tokens_of("ab")
    how = {"model": "tiny", "prompt": "ab", "max_tokens": 12}
    best = client.completions.create(temperature=0, **how).choices[0].text
    forced = client.completions.create(temperature=0, logit_bias={a: 100}, **how).choices[0].text
    assert forced == "a" * 12
    spread = client.completions.create(
        temperature=0, logit_bias={a: 50, b: 49}, frequency_penalty=2, **how
    ).choices[0].text  # fmt: skip
    assert {"a", "b"} <= set(spread)
    for only_one in ({"top_k": 1}, {"min_p": 1}):
        assert client.completions.create(temperature=2, extra_body=only_one, **how).choices[0].text == best


# grammars


def test_answers_follow_schemas_grammars_and_expressions(client: Any) -> None:
    how = {"model": "tiny", "messages": MESSAGES, "temperature": 1, "max_tokens": 200}
    schema = {
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 9}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    for seed in range(5):
        found = json.loads(
            client.chat.completions.create(response_format=form, seed=seed, **how).choices[0].message.content
        )
        assert found.keys() == {"a", "b"}
        assert 3 <= found["a"] <= 9
        assert found["b"] in ("x", "y")
    got = client.chat.completions.create(extra_body={"regex": "[a-c]{3}-[0-9]+;"}, **how).choices[0]
    assert re.fullmatch("[a-c]{3}-[0-9]+;", got.message.content)
    assert got.finish_reason == "stop"
    gbnf = 'root ::= "yes" | "no"'
    assert client.chat.completions.create(extra_body={"grammar": gbnf}, **how).choices[0].message.content in (
        "yes",
        "no",
    )


def test_random_schemas_give_valid_answers(client: Any) -> None:
    rng = random.Random(5)

    def schema(depth: int = 0) -> dict[str, Any]:
        kinds = ["boolean", "integer", "enum", "null"] + ["object", "array"] * (depth < 2)
        match rng.choice(kinds):
            case "enum":
                return {"enum": rng.sample(["red", "blue", 1, True, 'a"b'], 2)}
            case "integer":
                low = rng.randrange(-50, 50)
                return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(9)}
            case "object":
                names = rng.sample("pqrs", rng.randrange(1, 4))
                made = {n: schema(depth + 1) for n in names}
                return {"type": "object", "properties": made, "required": names, "additionalProperties": False}
            case "array":
                return {"type": "array", "items": schema(depth + 1), "minItems": 1, "maxItems": 2}
            case kind:
                return {"type": kind}

    for k in range(20):
        wanted = {"type": "object", "properties": {"v": schema()}, "required": ["v"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": wanted}}
        got = client.chat.completions.create(
            model="tiny", messages=MESSAGES, response_format=form, seed=k, max_tokens=200
        ).choices[0]  # fmt: skip
        assert fits(json.loads(got.message.content), wanted), (got.message.content, wanted)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits a schema of the kinds above."""
    if "enum" in schema:
        return any(value == e and type(value) is type(e) for e in schema["enum"])
    match schema["type"]:
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "boolean":
            return type(value) is bool
        case "null":
            return value is None
        case "array":
            return 1 <= len(value) <= 2 and all(fits(v, schema["items"]) for v in value)
        case _:
            return value.keys() == schema["properties"].keys() and all(
                fits(v, schema["properties"][k]) for k, v in value.items()
            )


# tools

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
        "additionalProperties": False,
    }}} for name in ("add", "drop")
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_has_to_be_called_is_called(client: Any, stream: bool) -> None:
    how = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 150, "seed": 1}
    named = {"type": "function", "function": {"name": "drop"}}
    for choice, names in (("required", {"add", "drop"}), (named, {"drop"})):
        got = client.chat.completions.create(tool_choice=choice, stream=stream, **how)
        if stream:
            *chunks, last = list(got)
            (call,) = [c for x in chunks for c in x.choices[0].delta.tool_calls or ()]
            assert last.choices[0].finish_reason == "tool_calls"
        else:
            assert (got.choices[0].finish_reason, got.choices[0].message.content) == ("tool_calls", None)
            (call,) = got.choices[0].message.tool_calls
        assert call.function.name in names
        assert 0 <= json.loads(call.function.arguments)["n"] <= 9


def test_calls_are_found_as_models_write_them() -> None:
    from occ.serve.openai.tools import Call, ToolParser

    hermes = 'So: <tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>\n<tool_call>{"name": "drop", "arguments": "{}"}</tool_call>'
    for text, content, calls in (
        (hermes, "So: ", [Call("add", '{"n": 1}'), Call("drop", "{}")]),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {}}]', "", [Call("add", "{}")]),
        ('<|python_tag|>{"name": "add", "parameters": {"n": 2}}', "", [Call("add", '{"n": 2}')]),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
        ("a < b, <tool", "a < b, <tool", []),
        ('  {"broken": ', '  {"broken": ', []),
    ):
        for size in (1, 3, 100):
            parser, got = ToolParser(["add", "drop"]), ""
            for k in range(0, len(text), size):
                got += parser.push(text[k : k + size])
            rest, found = parser.finish()
            assert (got + rest, found) == (content, calls), (text, size)


def test_a_conversation_with_calls_and_null_contents_is_taken(client: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    talk = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    talk.append({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]})
    got = client.chat.completions.create(
        model="tiny", messages=talk, max_tokens=2, tools=TOOLS, tool_choice="auto", logit_bias={EOS: -100},
        extra_body={"chat_template_kwargs": {"shout": True}},
    )  # fmt: skip
    assert got.usage.completion_tokens == 2


# responses, other routes


def test_responses_whole_and_streamed(lm: occ.LanguageModel, client: Any) -> None:
    how = {"model": "tiny", "input": "hello", "instructions": "be brief", "max_output_tokens": 6, "temperature": 0}
    got = client.responses.create(**how)
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert got.output_text == lm.generate(lm.chat(said), 6, texts=True)
    assert (got.status, got.usage.output_tokens) == ("incomplete", 6)
    events = list(client.responses.create(stream=True, **how))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == got.output_text
    assert events[-1].response.output_text == got.output_text


def test_tokens_models_health_and_metrics(lm: occ.LanguageModel, served: Served) -> None:
    status, _, body = served.ask("POST", "/tokenize", b'{"content": "ab"}', **{"Content-Type": "application/json"})
    assert (status, json.loads(body)) == (200, {"tokens": lm.tokens_of("ab")})
    back = json.dumps({"tokens": lm.tokens_of("ab")}).encode()
    assert "ab" in served.ask("POST", "/detokenize", back, **{"Content-Type": "application/json"})[2]
    assert served.client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no model"):
        served.client.models.retrieve("other")
    before = served.metric("occ_generated_tokens_total")
    served.client.completions.create(model="tiny", prompt="a", max_tokens=7, temperature=0)
    assert served.metric("occ_generated_tokens_total") >= before + 7
    assert "occ_time_to_first_token_seconds_bucket" in served.ask("GET", "/metrics")[2]
    assert json.loads(served.ask("GET", "/nowhere")[2])["error"]["message"] == "Not Found"


def test_keys_and_pages(served: Served) -> None:
    status, _, body = served.ask("GET", "/v1/models", Authorization="Bearer another")
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    assert served.ask("GET", "/health", Authorization="")[0] == 200
    asked = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    assert served.ask("OPTIONS", "/v1/completions", **asked)[1]["access-control-allow-origin"] == "http://page.example"


def test_it_says_that_it_is_not_ready_and_why(lm: occ.LanguageModel) -> None:
    from occ.serve.openai.app import ServerSettings, create_app

    go, told = threading.Event(), list[Exception | None]()

    def slow() -> occ.LanguageModel:
        go.wait(600)
        raise occ.RunError("OCC0501", "there is no model")

    served = Served(create_app(ServerSettings("tiny"), slow, told.append))
    status, _, body = served.ask("GET", "/health")
    assert (status, json.loads(body)["status"]) == (503, "building")
    assert served.ask("GET", "/v1/models")[0] == 503
    go.set()
    while not told:
        time.sleep(0.01)
    assert json.loads(served.ask("GET", "/health")[2])["status"] == "failed"
    served.close()
