"""The generation service: requests to prompts, settings and grammars, and tokens to events."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from occ.generation.batch_scheduler import BatchScheduler
from occ.generation.grammar import ANY_OBJECT, Grammar, Grammars
from occ.generation.language_model import LanguageModel
from occ.generation.requests import GenerationRequest, TokenLogprob
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.serve.openai.protocol import ChatRequest, Generation, Message, ResponseFormat, Sampled
from occ.serve.openai.tools import forced_call


@dataclass(frozen=True)
class Event:
    """An event of one choice, from a generation step."""

    index: int
    text: str
    logprobs: Sequence[TokenLogprob]
    ended: bool


class Service:
    """A language model that answers requests; all methods belong to the event loop's thread.

    Args:
        lm: the model; its folder has a tokenizer.
        parallel: texts generated at once.
        waiting: maximum waiting requests.
    """

    def __init__(self, lm: LanguageModel, parallel: int = 4, waiting: int | None = None) -> None:
        self.lm, self.scheduler = lm, BatchScheduler(lm, parallel, waiting)
        self._grammars: asyncio.Task[Grammars] | None = None

    def prepare_grammars(self) -> asyncio.Task[Grammars]:
        """Starts to read the vocabulary for grammars, in a thread: seconds for 262,144 words, in which others are served."""
        if self._grammars is None:
            self._grammars = asyncio.create_task(asyncio.to_thread(self._made_grammars))
            self._grammars.add_done_callback(lambda made: made.cancelled() or made.exception())  # told who asks for one
        return self._grammars

    async def grammars(self) -> Grammars:
        """Grammars for the tokenizer of the model.

        Raises:
            RunError: OCC0501 the grammar library is not installed, or does not support the tokenizer.
        """
        return await asyncio.shield(self.prepare_grammars())

    def _made_grammars(self) -> Grammars:
        words = next(o.shape[-1] for o in self.lm.session.outputs if o.name == "logits")
        assert self.lm.tokenizer is not None, "checked before the server starts"
        assert isinstance(words, int), "the head of a decoder is a constant"
        return Grammars(self.lm.tokenizer.source, words, self.lm.eos_ids)

    def request(
        self, prompt: str | Sequence[int], count: int | None, asked: Sampled, index: int = 0, *,
        stop: Sequence[str] = (), grammar: Grammar | None = None, top_logprobs: int | None = None,
        scores_prompt: bool = False,
    ) -> GenerationRequest:  # fmt: skip
        """A request for one text.

        Args:
            prompt: a text, or tokens.
            count: maximum new tokens; None for as many as fit.
            asked: sampling settings.
            index: of the choice, which has its own seed.
            stop, grammar, top_logprobs, scores_prompt: as of `LanguageModel.request`.

        Raises:
            RunError: OCC0501 the prompt is empty or too long, or a value is invalid.
        """
        seed = (uuid.uuid4().int if asked.seed is None else abs(asked.seed)) % (1 << 32) + index
        return self.lm.request(
            prompt, self.lm.capacity if count is None else count, seed=seed, stop=stop, texts=True, constraint=grammar,
            top_logprobs=top_logprobs, scores_prompt=scores_prompt, **asked.settings(),
        )  # fmt: skip

    async def grammar(self, asked: Generation) -> Grammar | None:
        """The grammar of one text of an answer.

        Raises:
            RunError: OCC0501 it is not supported.
        """
        if isinstance(asked, ChatRequest) and asked.tools and asked.tool_choice not in (None, "none", "auto"):
            name = None if isinstance(asked.tool_choice, str) else asked.tool_choice.function.name
            return (await self.grammars()).json_schema(forced_call([t.model_dump() for t in asked.tools], name))
        if asked.grammar is not None:
            return (await self.grammars()).context_free(asked.grammar)
        if asked.regex is not None:
            return (await self.grammars()).regular_expression(asked.regex)
        return await self.formatted(asked.response_format)

    async def formatted(self, form: ResponseFormat | None) -> Grammar | None:
        """The grammar of a text format."""
        match form:
            case ResponseFormat(type="json_object"):
                return (await self.grammars()).json_schema(ANY_OBJECT)
            case ResponseFormat(type="json_schema", json_schema=schema) if schema is not None:
                return (await self.grammars()).json_schema(schema.schema_)
            case _:
                return None

    def chat_prompt(self, asked: ChatRequest) -> list[int]:
        """The tokens of a conversation, including the offered tools.

        Raises:
            RunError: OCC0501 the model has no chat template, or it rejects the messages or does not support tools.
        """
        tools = [t.model_dump(exclude_none=True) for t in asked.tools or () if asked.tool_choice != "none"]
        if tools and self.lm.tokenizer is not None and "tools" not in self.lm.tokenizer.template:
            raise RunError("OCC0501", "the chat template of the model does not know `tools`", "ask without tools")
        return self.lm.tokens_of(
            self.lm.chat([_for_template(m) for m in asked.messages], tools=tools or None, **asked.chat_template_kwargs)
        )


def _for_template(message: Message) -> dict[str, Any]:
    """A message in the form for chat templates: parts joined, arguments of calls as objects."""
    made: dict[str, Any] = {"role": message.role, "content": plain(message.content)}
    made |= {k: v for k in ("name", "tool_call_id", "reasoning_content") if (v := getattr(message, k)) is not None}
    if message.tool_calls:
        calls = [c.model_dump() for c in message.tool_calls]
        for call in calls:
            try:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            except (ValueError, RecursionError):
                raise RunError("OCC0501", "the arguments of a tool call are not JSON", "pass an object") from None
        made["tool_calls"] = calls
    return made


def plain(content: Any) -> str:
    """The text of a message, which may be in parts, or null."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(p.text for p in content)


class Answer:
    """The texts of one HTTP request while they are generated: an asynchronous iterator of events.

    Args:
        service: generates the texts.
        requests: one per choice.

    Raises:
        QueueIsFull: the waiting queue is full.
    """

    def __init__(self, service: Service, requests: Sequence[GenerationRequest]) -> None:
        self.requests, self._scheduler = requests, service.scheduler
        self._index = {r: k for k, r in enumerate(requests)}
        self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[list[Event]]()
        service.scheduler.submit(requests, self._on_step)

    def _on_step(self, changed: Sequence[GenerationRequest]) -> None:
        """In the scheduler's thread: one call into the event loop per step, for any number of texts."""
        events: list[Event] = []
        for request in changed:
            noted, request.logprobs = request.logprobs, []
            events.append(Event(self._index[request], request.whole(), noted, request.ended))
        self._loop.call_soon_threadsafe(self._queue.put_nowait, events)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events; a finished one may hold an error.

        Raises:
            RunError: a token could not be chosen.
        """
        left = len(self.requests)
        while left:
            for event in await self._queue.get():
                if (error := self.requests[event.index].error) is not None:
                    raise error
                yield event
                left -= event.ended

    def close(self) -> None:
        """Cancel unfinished texts: their slots are free within a step."""
        for request in self.requests:
            self._scheduler.cancel(request)

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the prompts, each counted once for all of its choices, and of the generated texts."""
        prompts = {tuple(r.tokens[: r.prompt_length]) for r in self.requests}
        given, new = sum(map(len, prompts)), sum(len(r.new_tokens) for r in self.requests)
        return {"prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new}
