"""What a server has to bear: each function asks a server for it, and returns what was seen."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.serving.client import Target
from tools.serving.schemas import random_schema

_JUNK: tuple[Any, ...] = (
    None, -1, 0, 1e300, 10**30, "", "x" * 3000, [], [[]], [None], {}, {"a": {}}, True, "\ud800", {"type": "json_schema"},
)  # fmt: skip
_FIELDS = (
    "model", "messages", "prompt", "input", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stream",
    "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "stream_options", "grammar", "regex",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "echo", "text", "chat_template_kwargs", "flavour",
)  # fmt: skip
_ROUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 2}),
    ("/tokenize", {"content": "a"}),
    ("/detokenize", {"tokens": [1]}),
)


def schemas(target: Target, count: int, seed: int, clients: int, tokens: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Ask for JSON of random schemas, and give those schemas and answers that do not fit.

    Args:
        target: the server.
        count: of schemas.
        seed: of chance.
        clients: that ask at once.
        tokens: of an answer, at most.
    """
    import jsonschema

    def one(k: int) -> tuple[dict[str, Any], str] | None:
        schema = random_schema(random.Random(f"{seed}/{k}"))
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        asked = {
            "messages": [{"role": "user", "content": f"Describe thing number {k} in JSON."}], "max_tokens": tokens, "seed": k,
            "temperature": 0.8 if k % 2 else 0.0, "response_format": form,
        }  # fmt: skip
        status, answer = target.ask("/v1/chat/completions", asked)
        if status != 200:
            return schema, answer
        (choice,) = json.loads(answer)["choices"]
        text = choice["message"]["content"]
        try:
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
                json.loads(text)
            )
        except (ValueError, jsonschema.ValidationError) as e:
            return schema, f"{choice['finish_reason']}: {text}: {str(e).splitlines()[0]}"
        return None

    with ThreadPoolExecutor(clients) as pool:
        yield from filter(None, pool.map(one, range(count)))


def malformed(target: Target, count: int, seed: int) -> tuple[Counter[int], list[tuple[bytes, str]]]:
    """Send bodies that make no sense; statuses, and the bodies that a 5xx or no answer came back for."""
    rng, seen, wrong = random.Random(seed), Counter[int](), list[tuple[bytes, str]]()
    for _ in range(count):
        path, body = _nonsense(rng)
        try:
            status, answer = target.ask(path, body)
        except Exception as e:  # whatever it is, there was no answer
            status, answer = 599, repr(e)
        seen[status] += 1
        if status >= 500:
            wrong.append((body, answer))
    return seen, wrong


def _nonsense(rng: random.Random) -> tuple[str, bytes]:
    path, valid = rng.choice(_ROUTES)
    made = valid | {rng.choice(_FIELDS): rng.choice(_JUNK) for _ in range(rng.randrange(1, 4))}
    body = json.dumps(made).encode()
    match rng.randrange(6):
        case 0:  # cut off
            return path, body[: rng.randrange(len(body))]
        case 1:  # bytes changed
            changed = bytearray(body)
            for _ in range(rng.randrange(1, 6)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            return path, bytes(changed)
        case 2:
            return path, rng.choice(
                (b"", b"null", b"[]", b'"x"', b"\0", b"[" * 100_000, b'{"a": NaN}', rng.randbytes(300))
            )
        case _:
            return path, body


def hang_ups(target: Target, count: int, seed: int) -> list[float]:
    """Hang up at random moments, streamed or not; steps of the model until the place was free, for each."""
    rng, steps = random.Random(seed), list[float]()
    for k in range(count):
        connection = target.connection()
        body = {"prompt": "Once upon a time", "max_tokens": 400, "stream": bool(k % 2), "temperature": 1.0}
        target.send(connection, "/v1/completions", body)
        time.sleep(rng.random() * 0.5)
        before = target.metric("occ_steps_total")
        connection.close()
        until = time.monotonic() + 60
        while target.metric("occ_requests_running") + target.metric("occ_requests_waiting"):
            if time.monotonic() > until:
                raise TimeoutError("a request of somebody who hung up is still served")
        steps.append(target.metric("occ_steps_total") - before)
    return steps


def memory(
    target: Target, pid: int, count: int, clients: int, tell: Callable[[int, float], None] = lambda *_: None
) -> list[float]:
    """MiB that a server has in memory after each tenth of many short requests of all kinds."""
    held = list[float]()
    for tenth in range(1, 11):
        _each(target, count // 10, clients, _short)
        held.append(resident(pid))
        tell(count * tenth // 10, held[-1])
    return held


def _short(k: int) -> tuple[str, dict[str, Any]]:
    """A short request: as text, chat, stream, with a grammar, several choices, or wrong."""
    path, body = _ROUTES[k % 2]
    extra: tuple[dict[str, Any], ...] = (
        {}, {"stream": True}, {"n": 2, "seed": k}, {"regex": "[ab]{1,2}"}, {"temperature": 0}, {"flavour": k}, {"logprobs": None},
    )  # fmt: skip
    return path, body | extra[k % len(extra)]


def resident(pid: int) -> float:
    """MiB of a process that are in memory."""
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _each(
    target: Target, count: int, clients: int, body: Callable[[int], tuple[str, dict[str, Any]]]
) -> list[tuple[float, str]]:
    """Seconds and answer of each of many requests, of clients that keep their connections."""
    left, lock, took = iter(range(count)), threading.Lock(), list[tuple[float, str]]()

    def client() -> None:
        connection = target.connection()
        while True:
            with lock:
                k = next(left, None)
            if k is None:
                connection.close()
                return
            start = time.perf_counter()
            _, answer = target.ask(*body(k), over=connection)
            took.append((time.perf_counter() - start, answer))

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client) for _ in range(clients)]:
            done.result()
    return took


def clients(target: Target, count: int, at_once: int, tokens: int) -> dict[str, float]:
    """Throughput and latencies of chats of different prompts; an answer may end before its limit of tokens, so they are counted."""
    prompts = [f"{k}. Write a story of {k + 2} animals that meet at a lake, with a happy end." for k in range(count)]

    def chat(k: int) -> tuple[str, dict[str, Any]]:
        messages = [{"role": "user", "content": prompts[k]}]
        return "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": 0}

    target.ask(*chat(0))
    start = time.perf_counter()
    done = _each(target, count, at_once, chat)
    seconds = time.perf_counter() - start
    took = sorted(s for s, _ in done)
    written = sum(json.loads(answer)["usage"]["completion_tokens"] for _, answer in done)
    return {
        "requests a second": count / seconds, "tokens a request": written / count, "tokens a second": written / seconds,
        "median seconds": statistics.median(took), "p99 seconds": took[min(len(took) - 1, int(len(took) * 0.99))],
    }  # fmt: skip
