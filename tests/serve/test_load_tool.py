"""`python -m tools.serving`: a server under load, in small counts; and that answers to schemas come to an end."""

from __future__ import annotations

import http.client
import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from tools.serving import load
from tools.serving.client import Target
from tools.serving.schemas import _PATTERNS, random_schema

if TYPE_CHECKING:
    from openai_server import Served

jsonschema = pytest.importorskip("jsonschema")
FLAG = {
    "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"type": "null"}, "maxItems": 2}},
    "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip


@pytest.fixture
def target(served: Served) -> Target:
    from openai_server import KEY

    return Target.at(f"http://127.0.0.1:{served.port}", KEY)


def test_a_model_that_likes_newlines_still_ends_its_json(target: Target) -> None:
    """Where any number of spaces may stand between the parts of JSON, small models write them to the end."""
    blank = {str(t): 100 for t in json.loads(target.ask("/tokenize", rb'{"content": "\n \t"}')[1])["tokens"]}
    form = {"type": "json_schema", "json_schema": {"name": "flag", "schema": FLAG}}
    body = {"prompt": "a", "max_tokens": 200, "temperature": 0, "logit_bias": blank, "response_format": form}
    status, answer = target.ask("/v1/completions", body)
    assert status == 200, answer
    (choice,) = json.loads(answer)["choices"]
    assert choice["finish_reason"] == "stop", choice["text"]
    jsonschema.validate(json.loads(choice["text"]), FLAG)


def test_random_schemas_are_schemas() -> None:
    made = [random_schema(random.Random(k)) for k in range(200)]
    for schema in made:
        jsonschema.Draft202012Validator.check_schema(schema)
    assert len({json.dumps(s, sort_keys=True) for s in made}) > 190
    assert {"anyOf", "$ref", "enum", "const", "pattern", "format", "maxItems"} <= set(json.dumps(made).split('"'))
    assert not any("+" in p or "*" in p for p in _PATTERNS), "a small model may repeat a letter to the last token"


def test_answers_that_do_not_fit_are_found(target: Target) -> None:
    """The tiny model writes letters by chance: within 3 tokens no JSON ends."""
    wrong = list(load.schemas(target, 3, 0, 2, 3))
    assert len(wrong) == 3
    assert all("length" in answer for _, answer in wrong)


def test_nonsense_hang_ups_and_short_requests_are_borne(target: Target) -> None:
    seen, wrong = load.malformed(target, 60, 0)
    assert not wrong
    assert seen[400] > 40
    assert max(load.hang_ups(target, 3, 0)) < 200
    held = load.memory(target, os.getpid(), 40, 4)
    assert len(held) == 10
    timed = load.clients(target, 6, 3, 4)
    assert timed["p99 seconds"] >= timed["median seconds"] > 0


class _Brief(Target):
    """A server whose answers end after one token."""

    def ask(self, *_: Any, **__: Any) -> tuple[int, str]:
        return 200, '{"usage": {"completion_tokens": 1}}'

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("localhost")


def test_throughput_counts_the_tokens_that_were_written() -> None:
    timed = load.clients(_Brief("", "brief"), 6, 3, 32)
    assert timed["tokens a request"] == 1
    assert timed["tokens a second"] == timed["requests a second"]
