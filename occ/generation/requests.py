"""Generation requests and batched decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from occ.generation.batch import Batch
from occ.generation.decoder import Decoder, Decoders
from occ.generation.drafts import Drafts
from occ.generation.sampling import Sampler, Sampling
from occ.generation.text import TextStream
from occ.runtime.errors import RunError


class Constraint(Protocol):
    """The interface of a constraint: a mask over the next tokens, as a grammar has."""

    def allowed(self) -> np.ndarray:
        """The tokens that may follow, bool `[vocabulary]`."""
        ...

    def append(self, token: int) -> None:
        """Take note of a token that was generated."""
        ...


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was generated, the logarithm of its probability, and the most probable tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Ending:
    """When a text ends, besides its stop texts.

    Attributes:
        count: new tokens, at most.
        eos_ids: tokens that end a text.
    """

    count: int
    eos_ids: Collection[int] = ()


class GenerationRequest:
    """A text that is being generated: it takes the logits of a step and chooses the token that follows.

    Args:
        prompt: its tokens.
        ending: when it ends.
        sampler: chooses tokens.
        text: makes text of tokens and finds stop texts; None if neither is asked for.
        as_text: whether pieces are texts; else they are tokens.
        constraint: lets only some tokens follow; None for all.
        top_logprobs: how many of the most probable tokens to note of each; None to note no probabilities.

    Attributes:
        tokens: those of the prompt, and those after it.
        ended: whether no more follow.
        finish_reason: why: `stop` after a token or a text that ends texts, else `length`.
        error: why it ended, if its tokens could not be chosen.
        logprobs: of each new token, where they are asked for.
        decoder: takes back what is cached of it where it leaves a batch.
        drafts: guesses tokens that follow, where a text has a run of its own; None to guess none.
        draft_count: how many at a time, at most.
        proposed, accepted: tokens that were guessed, and that were guessed right.
        watch: called with each new token.
    """

    def __init__(
        self, prompt: Sequence[int], ending: Ending, sampler: Sampler | None = None, *, text: TextStream | None = None,
        as_text: bool = False, constraint: Constraint | None = None, top_logprobs: int | None = None,
    ) -> None:  # fmt: skip
        self.tokens, self.prompt_length, self.ended = list(prompt), len(prompt), ending.count <= 0
        self.finish_reason: Literal["stop", "length"] = "length"
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprob] = []
        self.decoder: Decoder | None = None
        self.drafts: Drafts | None = None
        self.draft_count = self.proposed = self.accepted = 0
        self.watch: Callable[[int], None] | None = None
        self._ending, self._sampler = ending, sampler or Sampler(Sampling())
        self._text, self._as_text, self._constraint, self._top = text, as_text, constraint, top_logprobs
        self._pieces: list[Any] = []

    @property
    def new_tokens(self) -> list[int]:
        """The tokens that were generated."""
        return self.tokens[self.prompt_length :]

    def take(self, logits: np.ndarray) -> None:
        """Choose the next token by the logits f32 `[vocabulary]`, and see whether it is the last one."""
        token = self._sampler.choose(logits, None if self._constraint is None else self._constraint.allowed())
        self._sampler.append(token)
        self.tokens.append(token)
        if self.watch is not None:
            self.watch(token)
        if self._top is not None:
            self.logprobs.append(_logprob(logits, token, self._top))
        stopped = token in self._ending.eos_ids
        if self._constraint is not None and not stopped:
            self._constraint.append(token)
        self.ended = stopped or len(self.tokens) == self.prompt_length + self._ending.count
        text = ""
        if self._text is not None:
            text = self._text.push(token)
            text += self._text.finish() if self.ended else ""
            stopped |= self._text.ended
            self.ended |= self._text.ended
        self.finish_reason = "stop" if stopped else "length"
        if text or not self._as_text:
            self._pieces.append(text if self._as_text else token)

    def draft(self, room: int) -> list[int]:
        """Guessed tokens that follow, no more than a run and the text have room for."""
        count = min(self.draft_count, room, self.prompt_length + self._ending.count - len(self.tokens) - 1)
        return [] if self.drafts is None or count < 1 else self.drafts.propose(self.tokens, count)

    def whole(self) -> Any:
        """All that was not taken yet: a text, or a list of tokens."""
        return "".join(self.pieces()) if self._as_text else self.pieces()

    def pieces(self) -> list[Any]:
        """The texts or tokens that came since this was called last."""
        found, self._pieces = self._pieces, []
        return found


def _logprob(logits: np.ndarray, token: int, count: int) -> TokenLogprob:
    """The probabilities of the model itself, before temperature, penalties and filters."""
    norm = float(logits.max()) + float(np.log(np.exp(logits - logits.max()).sum(dtype=np.float64)))
    best = np.argpartition(logits, -count)[-count:] if count else np.zeros(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprob(token, float(logits[token]) - norm, tuple((int(t), float(logits[t]) - norm) for t in best))


def generate_one(request: GenerationRequest, decoders: Decoders) -> Iterator[Any]:
    """The pieces of one text, as they come."""
    if request.ended:
        return
    with decoders.holding(request.tokens) as decoder:
        request.take(decoder.continue_with(request.tokens))
        yield from request.pieces()
        while not request.ended:
            advance(request, decoder)
            yield from request.pieces()


def advance(request: GenerationRequest, decoder: Decoder) -> None:
    """Give a text that has not ended its next token, and those that were guessed right with it."""
    drafts = request.draft(decoder.capacity - len(decoder.tokens) - 1)
    rows = decoder.append_scored([request.tokens[-1], *drafts])
    request.proposed += len(drafts)
    for k, logits in enumerate(rows):
        request.take(logits)
        if request.ended or k == len(drafts) or request.tokens[-1] != drafts[k]:
            break
        request.accepted += 1
    if len(decoder.tokens) >= len(request.tokens):
        decoder.trim(len(request.tokens) - 1)


def continued(
    request: GenerationRequest, logits: np.ndarray, append: Callable[[Sequence[int]], np.ndarray]
) -> Iterator[Any]:
    """The pieces of one text, as they come.

    Args:
        request: the text, which has not ended.
        logits: what follows its tokens, f32 `[vocabulary]`.
        append: gives those of what follows further tokens.
    """
    while True:
        request.take(logits)
        yield from request.pieces()
        if request.ended:
            return
        logits = append(request.tokens[-1:])


class GenerationBatch:
    """Requests that get a token each in every step.

    Args:
        batch: without sequences; None for models that cannot continue texts of unlike lengths in one run: each text then
            has a run of its own in a step.

    Attributes:
        requests: those whose texts are being generated.
    """

    def __init__(self, batch: Batch | None) -> None:
        self._batch = batch
        self.requests: list[GenerationRequest] = []

    def add(self, request: GenerationRequest, decoder: Decoder) -> None:
        """Let a request take part all of whose tokens but the last a decoder holds."""
        if self._batch is not None:
            self._batch.join(decoder)
        self.requests.append(request)

    def step(self) -> list[GenerationRequest]:
        """Give each text a token; those that have ended leave, and are returned."""
        rows = None if self._batch is None else self._batch.append([r.tokens[-1] for r in self.requests])
        for k, request in enumerate(self.requests):
            try:
                if rows is not None:
                    request.take(rows[k])
                elif request.decoder is not None:
                    advance(request, request.decoder)
            except RunError as e:  # of one; the others go on
                request.error, request.ended = e, True
        ended = [r for r in self.requests if r.ended]
        for request in ended:
            self.remove(request)
        return ended

    def remove(self, request: GenerationRequest) -> None:
        """Let a request go; its decoder takes back what is cached of it."""
        k = self.requests.index(request)
        del self.requests[k]
        if self._batch is not None:
            self._batch.leave(k, request.decoder, request.tokens)


def generate_batch(requests: Sequence[GenerationRequest], decoders: Decoders, batch: Batch, size: int) -> None:
    """Serve requests, at most `size` of them at a time.

    Raises:
        RunError: OCC0501 the model gave logits that are no numbers.
    """
    waiting, running = deque(r for r in requests if not r.ended), GenerationBatch(batch)
    while waiting or running.requests:
        if waiting and len(running.requests) < size:
            request = waiting.popleft()
            with decoders.holding(request.tokens) as decoder:
                request.take(decoder.continue_with(request.tokens))
                if not request.ended:
                    running.add(request, decoder)
            continue
        for request in running.step():
            if request.error is not None:
                raise request.error
