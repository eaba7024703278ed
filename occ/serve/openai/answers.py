"""Response bodies of OpenAI's API: completions, chats, responses, chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any

from occ.generation.requests import GenerationRequest, TokenLogprob
from occ.runtime.dataclass import dataclass
from occ.serve.openai.tools import Call, ToolParser

Decode = Callable[[int], str]  # the text of one token


@dataclass
class Choice:
    """One of the texts of an answer, as far as it is generated.

    Attributes:
        request: the request that generates it.
        parser: finds tool calls in it, if tools were offered.
        text: its content.
        calls: its tool calls.
        logprobs: of its tokens.
    """

    request: GenerationRequest
    parser: ToolParser | None = None
    text: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def push(self, text: str, logprobs: Sequence[TokenLogprob], *, ended: bool) -> str:
        """Add the output of a step; returns the new content."""
        self.logprobs += logprobs
        if self.parser is not None:
            text = self.parser.push(text)
            if ended:
                rest, self.calls = self.parser.finish()
                text += rest
        self.text += text
        return text

    @property
    def finish_reason(self) -> str:
        """The reason why it ended."""
        return "tool_calls" if self.calls else self.request.finish_reason


@dataclass(frozen=True)
class Echo:
    """The prompt of a choice, to prepend.

    Attributes:
        text: the prompt.
        request: the one that records its probabilities, if those are asked for: the first choice of the prompt.
    """

    text: str
    request: GenerationRequest


class Form:
    """The format of one kind of answer.

    Args:
        model: the name of the model.
        decode: the text of a token.
        prefix: of the identifier.
        kind: of the whole answer.
        chunk: of a piece of it.
    """

    def __init__(self, model: str, decode: Decode, prefix: str, kind: str, chunk: str) -> None:
        self._decode, self._kind, self._chunk = decode, kind, chunk
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[Choice], usage: dict[str, int]) -> dict[str, Any]:
        """The body of a complete (not streamed) answer."""
        made = [self._choice(k, c) for k, c in enumerate(choices)]
        return {**self._head, "object": self._kind, "choices": made, "usage": usage}

    def chunk(
        self, index: int, change: dict[str, Any], logprobs: Any = None, reason: str | None = None
    ) -> dict[str, Any]:
        """One event of a streamed answer."""
        choice = {"index": index, **change, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "object": self._chunk, "choices": [choice]}

    def counts(self, usage: dict[str, int]) -> dict[str, Any]:
        """The final piece: usage, and no choice."""
        return {**self._head, "object": self._chunk, "choices": [], "usage": usage}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError


class CompletionForm(Form):
    """Response bodies of /v1/completions.

    Args:
        top: whether and how many probable tokens to include.
        echo: the prompts, by choice, to prepend.
    """

    def __init__(self, model: str, decode: Decode, top: int | None, echo: Sequence[Echo]) -> None:
        super().__init__(model, decode, "cmpl", "text_completion", "text_completion")
        self._top, self.echo = top, echo
        self._at: dict[int, int] = {}  # of a choice, in a stream: the text offset of its next token

    @property
    def scores_prompts(self) -> bool:
        """Whether the tokens of prompts come with probabilities."""
        return self._top is not None and bool(self.echo)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text, before = (self.echo[index].text, self.echo[index].request.prompt_logprobs) if self.echo else ("", [])
        probabilities = self.logprobs([*before, *choice.logprobs])
        text += choice.text
        return {"index": index, "text": text, "logprobs": probabilities, "finish_reason": choice.finish_reason}

    def logprobs(self, found: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any] | None:
        """The `logprobs` field of some tokens, the first at a given text offset; None if not requested."""
        if self._top is None:
            return None
        tokens = [self._decode(t.token) for t in found]
        offsets = list(accumulate(map(len, tokens[:-1]), initial=offset)) if tokens else []
        top = [None if f.logprob is None else {self._decode(t): p for t, p in reversed(f.top)} for f in found]
        values = [f.logprob for f in found]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}

    def next_logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The `logprobs` field of the next tokens of a choice in a stream."""
        made = self.logprobs(found, self._at.get(index, 0))
        if made is not None:
            self._at[index] = self._at.get(index, 0) + sum(map(len, made["tokens"]))
        return made


class ChatForm(Form):
    """Response bodies of /v1/chat/completions.

    Args:
        asked: whether to include probabilities.
    """

    def __init__(self, model: str, decode: Decode, asked: bool) -> None:
        super().__init__(model, decode, "chatcmpl", "chat.completion", "chat.completion.chunk")
        self._asked = asked

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if choice.calls else "")}
        message["refusal"] = None
        if choice.calls:
            message["tool_calls"] = self.calls(choice.calls)
        probabilities = self.logprobs(choice.logprobs)
        return {"index": index, "message": message, "logprobs": probabilities, "finish_reason": choice.finish_reason}

    @staticmethod
    def calls(calls: Sequence[Call], *, numbered: bool = False) -> list[dict[str, Any]]:
        """Tool calls; numbered in streamed pieces."""
        made = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for c in calls
        ]
        return [{"index": k, **c} for k, c in enumerate(made)] if numbered else made

    def logprobs(self, found: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The `logprobs` field of some tokens; None if not requested."""
        if not self._asked:
            return None
        content = [
            {**self._named(f.token, f.logprob), "top_logprobs": [self._named(t, p) for t, p in f.top]} for f in found
        ]
        return {"content": content, "refusal": None}

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        text = self._decode(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class ResponseForm:
    """Response bodies of /v1/responses: one message of text."""

    def __init__(self, model: str, instructions: str | None) -> None:
        self._id, self.item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._head = {
            "id": self._id, "object": "response", "created_at": int(time.time()), "model": model, "error": None,
            "instructions": instructions, "metadata": {}, "parallel_tool_calls": True, "tool_choice": "none",
            "tools": [],
        }  # fmt: skip

    def begun(self) -> dict[str, Any]:
        """The response before there is text."""
        return {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}

    def whole(self, text: str, reason: str, usage: dict[str, int]) -> dict[str, Any]:
        """The response with its text."""
        cut = reason == "length"
        counts = {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip
        return {
            **self._head, "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self.message(text, "incomplete" if cut else "completed")], "usage": counts,
        }  # fmt: skip

    def message(self, text: str | None, status: str) -> dict[str, Any]:
        """The message, without content until there is some."""
        content = [] if text is None else [self.part(text)]
        return {"type": "message", "id": self.item, "role": "assistant", "status": status, "content": content}

    @staticmethod
    def part(text: str) -> dict[str, Any]:
        """The part that holds the text."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
