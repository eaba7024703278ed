"""Routes of the OpenAI server: whole answers, or server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from occ.generation.requests import GenerationRequest
from occ.generation.tokenizer import Tokenizer
from occ.runtime.errors import RunError
from occ.serve.openai.answers import ChatForm, Choice, CompletionForm, Echo, Form, ResponseForm
from occ.serve.openai.metrics import Metrics
from occ.serve.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    Generation,
    JsonSchema,
    ResponseFormat,
    ResponseRequest,
)  # fmt: skip
from occ.serve.openai.service import Answer, Event, Service, plain
from occ.serve.openai.tools import ToolParser

_DEFAULT_TOKENS = 16  # default for a completion, as in OpenAI's API


class Answering:
    """Answers one HTTP request.

    Args:
        service: generates the texts.
        name: of the model.
        request: its connection tells when the client hangs up.
        metrics: what is counted.
    """

    def __init__(self, service: Service, name: str, request: Request, metrics: Metrics) -> None:
        self._service, self._name, self._request, self._metrics = service, name, request, metrics
        self._begun = time.perf_counter()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        assert self._service.lm.tokenizer is not None, "checked before the server starts"
        return self._service.lm.tokenizer

    def _decode(self, token: int) -> str:
        return self.tokenizer.token(token)

    async def completion(self, asked: CompletionRequest) -> Response:
        """POST /v1/completions."""
        count = _DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens
        prompts = [self._service.lm.tokens_of(p) for p in asked.prompts]
        if not prompts:
            raise RunError("OCC0501", "there is no prompt", "pass at least one")
        scores = asked.echo and asked.logprobs is not None
        requests = [await self._texts(p, count, asked, asked.logprobs, scores_prompt=scores) for p in prompts]
        each = [r for some in requests for r in some]
        firsts = [(self.tokenizer.decode(p), some[0]) for p, some in zip(prompts, requests, strict=True)]
        echo = [Echo(text, first) for text, first in firsts for _ in range(asked.n)] if asked.echo else []
        form = CompletionForm(self._name, self._decode, asked.logprobs, echo)
        return await self._answer(asked, [Choice(r) for r in each], form)

    async def chat(self, asked: ChatRequest) -> Response:
        """POST /v1/chat/completions."""
        count = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        top = (asked.top_logprobs or 0) if asked.logprobs else None
        requests = await self._texts(self._service.chat_prompt(asked), count, asked, top)
        names = [t.function.name for t in asked.tools or () if asked.tool_choice != "none"]
        choices = [Choice(r, ToolParser(names) if names else None) for r in requests]
        return await self._answer(asked, choices, ChatForm(self._name, self._decode, asked.logprobs))

    async def _texts(
        self,
        prompt: Sequence[int],
        count: int | None,
        asked: Generation,
        top: int | None,
        *,
        scores_prompt: bool = False,
    ) -> list[GenerationRequest]:
        """A request for each of the `n` choices; the first may score the prompt for all."""
        s, stop = self._service, asked.stops
        return [
            s.request(
                prompt,
                count,
                asked,
                k,
                stop=stop,
                grammar=await s.grammar(asked),
                top_logprobs=top,
                scores_prompt=scores_prompt and (k == 0 or count == 0),
            )
            for k in range(asked.n)
        ]

    async def _answer(self, asked: Generation, choices: Sequence[Choice], form: Form) -> Response:
        answer = Answer(self._service, [c.request for c in choices])
        if asked.stream:
            counts = asked.stream_options is not None and asked.stream_options.include_usage
            return _events(self._chunks(answer, choices, form, counts))
        if not await self._collected(answer, choices):
            return Response(status_code=499)  # nobody reads it
        return JSONResponse(form.whole(choices, answer.usage))

    async def _collected(self, answer: Answer, choices: Sequence[Choice]) -> bool:
        """Wait for a whole answer; False if the client hangs up, and it is cancelled."""
        gone = asyncio.ensure_future(_disconnected(self._request))
        done = asyncio.ensure_future(self._collect(answer, choices))
        try:
            await asyncio.wait({gone, done}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                return False
            done.result()
            return True
        finally:
            answer.close()
            for task in (gone, done):
                task.cancel()

    async def _collect(self, answer: Answer, choices: Sequence[Choice]) -> None:
        async for event in self._timed(answer):
            choices[event.index].push(event.text, event.logprobs, ended=event.ended)

    async def _timed(self, answer: Answer) -> AsyncIterator[Event]:
        """The events of an answer; the first is the first token."""
        first = True
        async for event in answer:
            if first:
                self._metrics.first.observe(time.perf_counter() - self._begun)
            first = False
            yield event

    async def _chunks(
        self, answer: Answer, choices: Sequence[Choice], form: Form, counts: bool
    ) -> AsyncIterator[dict[str, Any]]:
        try:
            # Probabilities of prompts are known with the first event of a choice.
            late = set(range(len(choices))) if isinstance(form, CompletionForm) and form.scores_prompts else set[int]()
            for k in range(len(choices)):
                if k not in late and (head := _head(form, k)) is not None:
                    yield head
            async for event in self._timed(answer):
                if event.index in late and (head := _head(form, event.index)) is not None:
                    late.remove(event.index)
                    yield head
                choice = choices[event.index]
                text = choice.push(event.text, event.logprobs, ended=event.ended)
                for chunk in _changes(form, event, choice, text):
                    yield chunk
            if counts:
                yield form.counts(answer.usage)
        finally:
            answer.close()

    async def response(self, asked: ResponseRequest) -> Response:
        """POST /v1/responses."""
        said = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
        if isinstance(asked.input, str):
            said.append({"role": "user", "content": asked.input})
        else:
            said += [{"role": m.role, "content": plain(m.content)} for m in asked.input]
        prompt = self._service.lm.tokens_of(self._service.lm.chat(said))
        f = asked.text.format
        schema = JsonSchema(name=f.name, schema=f.schema_) if f.type == "json_schema" else None
        grammar = await self._service.formatted(ResponseFormat(type=f.type, json_schema=schema))
        choice = Choice(self._service.request(prompt, asked.max_output_tokens, asked, grammar=grammar))
        answer, form = Answer(self._service, [choice.request]), ResponseForm(self._name, asked.instructions)
        if asked.stream:
            return _events(self._response_events(answer, choice, form), named=True)
        if not await self._collected(answer, [choice]):
            return Response(status_code=499)
        return JSONResponse(form.whole(choice.text, choice.finish_reason, answer.usage))

    async def _response_events(
        self, answer: Answer, choice: Choice, form: ResponseForm
    ) -> AsyncIterator[dict[str, Any]]:
        place = {"item_id": form.item, "output_index": 0, "content_index": 0}
        try:
            yield {"type": "response.created", "response": form.begun()}
            yield {"type": "response.in_progress", "response": form.begun()}
            item = form.message(None, "in_progress")
            yield {"type": "response.output_item.added", "output_index": 0, "item": item}
            yield {"type": "response.content_part.added", **place, "part": form.part("")}
            async for event in self._timed(answer):
                if text := choice.push(event.text, (), ended=event.ended):
                    yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
            whole = form.whole(choice.text, choice.finish_reason, answer.usage)
            yield {"type": "response.output_text.done", **place, "text": choice.text, "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": form.part(choice.text)}
            yield {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]}
            yield {"type": f"response.{whole['status']}", "response": whole}
        finally:
            answer.close()


def _head(form: Form, index: int) -> dict[str, Any] | None:
    """The first chunk of a choice in a stream."""
    if isinstance(form, ChatForm):
        return form.chunk(index, {"delta": {"role": "assistant", "content": ""}})
    if not isinstance(form, CompletionForm) or not form.echo:
        return None
    echo = form.echo[index]
    return form.chunk(index, {"text": echo.text}, form.next_logprobs(index, echo.request.prompt_logprobs))


def _changes(form: Form, event: Event, choice: Choice, text: str) -> Iterator[dict[str, Any]]:
    """The chunks of one event: its content, and the finish reason."""
    chat = isinstance(form, ChatForm)
    if isinstance(form, CompletionForm):
        logprobs = form.next_logprobs(event.index, event.logprobs)
    else:
        logprobs = form.logprobs(event.logprobs) if isinstance(form, ChatForm) else None
    if text or event.logprobs:
        yield form.chunk(event.index, {"delta": {"content": text}} if chat else {"text": text}, logprobs)
    if event.ended:
        if choice.calls:
            yield form.chunk(event.index, {"delta": {"tool_calls": ChatForm.calls(choice.calls, numbered=True)}})
        yield form.chunk(event.index, {"delta": {}} if chat else {"text": ""}, None, choice.finish_reason)


def _events(chunks: AsyncIterator[dict[str, Any]], *, named: bool = False) -> StreamingResponse:
    """Server-sent events; those of responses have names and numbers, others end with `[DONE]`."""

    async def lines() -> AsyncIterator[str]:
        try:
            number = 0
            async for chunk in chunks:
                if named:
                    yield f"event: {chunk['type']}\ndata: {json.dumps(chunk | {'sequence_number': number})}\n\n"
                else:
                    yield f"data: {json.dumps(chunk)}\n\n"
                number += 1
        except RunError as e:
            yield f"data: {json.dumps({'error': {'message': e.message, 'type': 'server_error', 'code': e.code}})}\n\n"
        finally:
            with suppress(RuntimeError):
                await chunks.aclose()  # pyright: ignore[reportAttributeAccessIssue] - they are a generator
        if not named:
            yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def _disconnected(request: Request) -> None:
    """Wait until the client hangs up; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
