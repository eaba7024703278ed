"""Generation requests and batched decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from occ.generation.batch import Batch
from occ.generation.decoder import Decoder, Decoders
from occ.generation.drafts import Drafts
from occ.generation.names import KEY_BLOCK
from occ.generation.sampling import Sampler, Sampling
from occ.generation.tokenizer import TextStream
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError


class Constraint(Protocol):
    """The interface of a constraint: a mask over the next tokens, as from a grammar."""

    def allowed(self) -> np.ndarray:
        """The allowed next tokens, bool `[vocabulary]`."""
        ...

    def append(self, token: int) -> None:
        """Record a generated token."""
        ...


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its log-probability, and the most probable tokens with theirs; the first of a text has none."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Ending:
    """When a text ends, apart from its stop texts.

    Attributes:
        count: maximum new tokens.
        eos_ids: tokens that end a text.
    """

    count: int
    eos_ids: Collection[int] = ()


class GenerationRequest:
    """A text being generated: it receives the logits of a step and chooses the next token.

    Args:
        prompt: its tokens.
        ending: when it ends.
        sampler: chooses tokens.
        text: converts tokens to text and finds stop texts; None if neither is needed.
        as_text: whether pieces are texts; otherwise they are tokens.
        constraint: restricts the next tokens; None for none.
        top_logprobs: how many of the most probable tokens to record for each; None to record no probabilities.
        scores_prompt: whether to record the probabilities of the prompt's tokens too.

    Attributes:
        tokens: prompt and generated ones.
        ended: whether it is complete.
        finish_reason: `stop` after a token or text that ends texts, otherwise `length`.
        error: why it ended, if choosing a token failed.
        logprobs: of each new token, if requested.
        prompt_logprobs: of each token of the prompt, if requested.
        decoder: receives its cache when it leaves a batch.
        drafts: guesses following tokens, if a text has runs of its own; None for no guesses.
        draft_count: maximum number of guesses at a time.
        proposed, accepted: number of guessed tokens, and of correct ones.
        watch: called with each new token.
    """

    def __init__(
        self, prompt: Sequence[int], ending: Ending, sampler: Sampler | None = None, *, text: TextStream | None = None,
        as_text: bool = False, constraint: Constraint | None = None, top_logprobs: int | None = None,
        scores_prompt: bool = False,
    ) -> None:  # fmt: skip
        self.tokens, self.prompt_length = list(prompt), len(prompt)
        self.ended, self.scores_prompt = ending.count <= 0 and not scores_prompt, scores_prompt
        self.finish_reason: Literal["stop", "length"] = "length"
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs = [TokenLogprob(self.tokens[0], None, ())] if scores_prompt else []
        self.decoder: Decoder | None = None
        self.drafts: Drafts | None = None
        self.draft_count = self.proposed = self.accepted = 0
        self.watch: Callable[[int], None] | None = None
        self._ending, self._sampler = ending, sampler or Sampler(Sampling())
        self._text, self._as_text, self._constraint, self._top = text, as_text, constraint, top_logprobs
        self._pieces: list[Any] = []

    @property
    def new_tokens(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.prompt_length :]

    def take(self, logits: np.ndarray) -> None:
        """Choose the next token from logits f32 `[vocabulary]`, and check whether it is the last one."""
        if self._ending.count <= 0:  # only the prompt was asked for
            self.ended = True
            return
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

    def score(self, decoder: Decoder) -> np.ndarray | None:
        """Run some of the prompt, and record its probabilities; the next-token logits `[vocabulary]` at its end."""
        rows = decoder.score(self.tokens[len(decoder.tokens) :])
        first = len(decoder.tokens) - len(rows) + 1
        for token, logits in zip(self.tokens[first:], rows, strict=False):
            self.prompt_logprobs.append(_logprob(logits, token, self._top or 0))
        return rows[-1] if len(decoder.tokens) == len(self.tokens) else None

    def read_prompt(self, decoder: Decoder) -> np.ndarray:
        """Run the prompt; its next-token logits, f32 `[vocabulary]`."""
        if not self.scores_prompt:
            return decoder.continue_with(self.tokens)
        decoder.trim(0)
        while (logits := self.score(decoder)) is None:
            pass
        return logits

    def draft(self, held: int, capacity: int) -> list[int]:
        """Guessed next tokens for a run after `held` tokens in the caches, limited by their capacity and by the text.

        A run does not pass a multiple of `KEY_BLOCK`, so that its logits are those of single tokens.
        """
        room = min(capacity, held + KEY_BLOCK - held % KEY_BLOCK) - held - 1
        count = min(self.draft_count, room, self.prompt_length + self._ending.count - len(self.tokens) - 1)
        return [] if self.drafts is None or count < 1 else self.drafts.propose(self.tokens, count)

    def whole(self) -> Any:
        """Everything since the last call: a text, or a list of tokens."""
        return "".join(self.pieces()) if self._as_text else self.pieces()

    def pieces(self) -> list[Any]:
        """The texts or tokens since the last call."""
        found, self._pieces = self._pieces, []
        return found


def _logprob(logits: np.ndarray, token: int, count: int) -> TokenLogprob:
    """The model's own probabilities, before temperature, penalties and filters."""
    norm = float(logits.max()) + float(np.log(np.exp(logits - logits.max()).sum(dtype=np.float64)))
    best = np.argpartition(logits, -count)[-count:] if count else np.zeros(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprob(token, float(logits[token]) - norm, tuple((int(t), float(logits[t]) - norm) for t in best))


def generate_one(request: GenerationRequest, decoders: Decoders) -> Iterator[Any]:
    """The pieces of one text, as they are generated."""
    if request.ended:
        return
    with decoders.holding(request.tokens) as decoder:
        request.take(request.read_prompt(decoder))
        yield from request.pieces()
        while not request.ended:
            advance(request, decoder)
            yield from request.pieces()


def advance(request: GenerationRequest, decoder: Decoder) -> None:
    """Generate the next token of an unfinished text, and accept correct guesses with it."""
    drafts = request.draft(len(decoder.tokens), decoder.capacity)
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
    """The pieces of one text, as they are generated.

    Args:
        request: the text, unfinished.
        logits: its next-token logits, f32 `[vocabulary]`.
        append: appends tokens and returns the following logits.
    """
    while True:
        request.take(logits)
        yield from request.pieces()
        if request.ended:
            return
        logits = append(request.tokens[-1:])


class GenerationBatch:
    """Requests that generate a token each in every step.

    Args:
        batch: without sequences; None for models that cannot batch texts of different lengths: each text then has a run
            of its own in a step.

    Attributes:
        requests: those whose texts are being generated.
    """

    def __init__(self, batch: Batch | None) -> None:
        self._batch = batch
        self.requests: list[GenerationRequest] = []

    def add(self, request: GenerationRequest, decoder: Decoder) -> None:
        """Add a request whose tokens except the last are in a decoder's cache."""
        if self._batch is not None:
            self._batch.join(decoder)
        self.requests.append(request)

    def step(self) -> list[GenerationRequest]:
        """Generate a token for each text; finished ones leave, and are returned."""
        rows = None if self._batch is None else self._batch.append([r.tokens[-1] for r in self.requests])
        for k, request in enumerate(self.requests):
            try:
                if rows is not None:
                    request.take(rows[k])
                elif request.decoder is not None:
                    advance(request, request.decoder)
            except RunError as e:  # of one; the others continue
                request.error, request.ended = e, True
        ended = [r for r in self.requests if r.ended]
        for request in ended:
            self.remove(request)
        return ended

    def remove(self, request: GenerationRequest) -> None:
        """Remove a request; its decoder takes over its cache."""
        k = self.requests.index(request)
        del self.requests[k]
        if self._batch is not None:
            self._batch.leave(k, request.decoder, request.tokens)


def generate_batch(requests: Sequence[GenerationRequest], decoders: Decoders, batch: Batch, size: int) -> None:
    """Serve requests, at most `size` of them at a time.

    Raises:
        RunError: OCC0501 the model's logits are not numbers.
    """
    waiting, running = deque(r for r in requests if not r.ended), GenerationBatch(batch)
    while waiting or running.requests:
        if waiting and len(running.requests) < size:
            request = waiting.popleft()
            with decoders.holding(request.tokens) as decoder:
                request.take(request.read_prompt(decoder))
                if not request.ended:
                    running.add(request, decoder)
            continue
        for request in running.step():
            if request.error is not None:
                raise request.error
