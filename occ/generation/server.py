"""An HTTP server for a language model, in the form of OpenAI's API: completions and chats, whole or as they are written.

It stands on FastAPI. Source of the fields: https://platform.openai.com/docs/api-reference (completions, chat).
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field, model_validator

from occ.compiler.diagnostics import CompileError
from occ.generation.language_model import LanguageModel
from occ.generation.shared import Shared
from occ.runtime.errors import RunError

_MOST_TOKENS = 16  # where a completion does not say, as in OpenAI's API
# Fields that would change the answer, and are not there: who asks for one is told so. By name, with the value that asks for nothing.
_REFUSED = {
    "best_of": 1, "echo": False, "frequency_penalty": 0, "functions": [], "logit_bias": {}, "logprobs": False,
    "presence_penalty": 0, "response_format": {"type": "text"}, "suffix": "", "tools": [], "top_logprobs": 0,
}  # fmt: skip


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Asked(BaseModel, extra="allow"):
    """What both kinds of requests have in common."""

    model: str = ""
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None

    @model_validator(mode="after")
    def _known(self) -> "_Asked":
        for name, value in (self.model_extra or {}).items():
            if name in _REFUSED and value is not None and value != _REFUSED[name]:
                raise ValueError(f"`{name}` is not there")
        return self


class _Completion(_Asked):
    prompt: str | list[int]


class _Chat(_Asked):
    messages: list[dict[str, Any]] = Field(min_length=1)


class _Text:
    """A text that is being written: its pieces, and why it ended."""

    def __init__(
        self, lm: LanguageModel, stream: Callable[..., Iterator[str]], ids: list[int], asked: _Asked, most: int
    ) -> None:
        self.given, self.count, self.most = len(ids), 0, min(most, lm.capacity - len(ids))
        self._ends, self._ended = set(lm.ends), False
        stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        seed = int(uuid.uuid4()) % (1 << 32) if asked.seed is None else abs(asked.seed)
        self._pieces = stream(
            ids, self.most, do_sample=asked.temperature > 0, temperature=asked.temperature or 1.0, top_p=asked.top_p, seed=seed,
            stop=stop, texts=True, watch=self._counted,
        )  # fmt: skip

    def _counted(self, token: int) -> None:
        self.count += 1
        self._ended = token in self._ends

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def close(self) -> None:
        self._pieces.close()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def reason(self) -> str:
        return "length" if self.count >= self.most and not self._ended else "stop"

    @property
    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.given, "completion_tokens": self.count, "total_tokens": self.given + self.count}


def app(lm: LanguageModel, name: str, parallel: int = 4) -> FastAPI:
    """The server as an ASGI application.

    Args:
        lm: the model; its folder has a tokenizer.
        name: how clients call the model.
        parallel: texts that are written at once, in one run of the model where it can do that, each in its own else; others wait.
    """
    made, free, stream = FastAPI(title="occ"), asyncio.Semaphore(parallel), _stream(lm, parallel)

    @made.exception_handler(RunError)
    async def refused(_: Request, e: RunError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        return _refusal(f"{e.message} ({e.help})" if e.help else e.message, e.code)

    @made.exception_handler(RequestValidationError)
    async def misread(_: Request, e: RequestValidationError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        first = e.errors()[0]
        return _refusal(f"{'.'.join(str(x) for x in first['loc'][1:])}: {first['msg']}".removeprefix(": "))

    @made.get("/v1/models")
    async def models() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "occ"}]}

    @made.post("/v1/completions")
    async def completions(asked: _Completion) -> Any:  # pyright: ignore[reportUnusedFunction]
        most = _MOST_TOKENS if asked.max_tokens is None else asked.max_tokens
        return await _answer(
            free, _Text(lm, stream, lm.tokens_of(asked.prompt), asked, most), asked, _Form("text_completion", name)
        )

    @made.post("/v1/chat/completions")
    async def chats(asked: _Chat) -> Any:  # pyright: ignore[reportUnusedFunction]
        ids = lm.tokens_of(
            lm.chat([{"role": m.get("role", ""), "content": _plain(m.get("content"))} for m in asked.messages])
        )
        most = asked.max_completion_tokens if asked.max_tokens is None else asked.max_tokens
        return await _answer(
            free,
            _Text(lm, stream, ids, asked, lm.capacity if most is None else most),
            asked,
            _Form("chat.completion", name),
        )

    return made


def _stream(lm: LanguageModel, parallel: int) -> Callable[..., Iterator[str]]:
    """What writes texts: in runs that they share, or each in its own."""
    with suppress(RunError, CompileError):
        return Shared(lm).stream if parallel > 1 else lm.stream
    return lm.stream


def _refusal(message: str, code: str | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": code}}, 400)


def _plain(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else []
    if not parts or any(not isinstance(p, dict) or p.get("type") != "text" for p in parts):
        raise RunError("OCC0501", "a message has another content than text", "give its text")
    return "".join(p.get("text", "") for p in parts)


class _Form:
    """How answers of one kind look."""

    def __init__(self, kind: str, model: str) -> None:
        self.chat = kind.startswith("chat")
        self.kind, self.model, self.time = kind, model, int(time.time())
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"

    def _answer(self, choice: dict[str, Any], reason: str | None, kind: str) -> dict[str, Any]:
        choices = [{"index": 0, **choice, "finish_reason": reason, "logprobs": None}]
        return {"id": self.id, "object": kind, "created": self.time, "model": self.model, "choices": choices}

    def whole(self, text: str, written: _Text) -> dict[str, Any]:
        choice = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return self._answer(choice, written.reason, self.kind) | {"usage": written.usage}

    def piece(self, text: str, reason: str | None = None, *, first: bool = False) -> str:
        delta = {"role": "assistant"} if first else {}
        choice = {"delta": delta | {"content": text}} if self.chat else {"text": text}
        return f"data: {json.dumps(self._answer(choice, reason, self._piece_kind))}\n\n"

    def counts(self, written: _Text) -> str:
        """The piece after the last one: what was used, and no choice."""
        made = self._answer({}, None, self._piece_kind) | {"choices": [], "usage": written.usage}
        return f"data: {json.dumps(made)}\n\n"

    @property
    def _piece_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else self.kind


async def _answer(free: asyncio.Semaphore, written: _Text, asked: _Asked, form: _Form) -> Any:
    if asked.stream:
        counts = asked.stream_options is not None and asked.stream_options.include_usage
        return StreamingResponse(_pieces(free, written, form, counts), media_type="text/event-stream")
    async with free:
        return form.whole("".join(await asyncio.to_thread(list, written)), written)


async def _pieces(free: asyncio.Semaphore, written: _Text, form: _Form, counts: bool) -> AsyncIterator[str]:
    """The pieces of a text; who hangs up ends it, and gives its cache back."""
    pieces, step, first = iter(written), None, True
    async with free:
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
                if (piece := await asyncio.shield(step)) is None:
                    break
                yield form.piece(piece, first=first)
                first = False
            yield form.piece("", written.reason, first=first)
            if counts:
                yield form.counts(written)
            yield "data: [DONE]\n\n"
        except RunError as e:
            yield f"data: {json.dumps({'error': {'message': e.message, 'code': e.code}})}\n\n"
        finally:
            with suppress(BaseException):
                if step is not None and not step.done():
                    await asyncio.shield(step)  # a step that runs is not interrupted
            written.close()
