"""Texts that are being written: what they take of each step, and several that share their steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from occ.generation.batch import Batch
from occ.generation.decoder import Decoder, Decoders
from occ.generation.sampling import Sampler, Sampling
from occ.generation.text import TextStream
from occ.runtime.errors import RunError


class Writing:
    """A text: it takes the logits of a step and chooses the token that follows.

    Args:
        prompt: its tokens.
        count: new tokens, at the most.
        sampling: how they are chosen.
        seed: of chance.
        ends: tokens that end a text.
        watch: told of each token.
        written: what makes text of tokens, and finds stop texts; None if neither is asked for.
        as_text: whether pieces are texts; else they are tokens.

    Attributes:
        tokens: those of the prompt, and those after it.
        ended: whether no more follow.
        error: why it ended, if its tokens could not be chosen.
        decoder: takes back what is held of it where it leaves others.
    """

    error: Exception | None = None
    decoder: Decoder | None = None

    def __init__(
        self, prompt: Sequence[int], count: int, sampling: Sampling, seed: int, ends: Collection[int],
        watch: Callable[[int], None], written: TextStream | None, as_text: bool,
    ) -> None:  # fmt: skip
        self.tokens, self.ended = list(prompt), count <= 0
        self._end = len(prompt) + count
        self._sampler, self._ends, self._watch = Sampler(sampling, prompt, seed), ends, watch
        self._written, self._as_text = written, as_text
        self._pieces: list[Any] = []

    def take(self, logits: np.ndarray) -> None:
        """Choose the next token by the logits `[vocabulary]`, and see whether it is the last one."""
        token = self._sampler.choose(logits)
        self._sampler.append(token)
        self.tokens.append(token)
        self._watch(token)
        self.ended = token in self._ends or len(self.tokens) == self._end
        text = ""
        if self._written is not None:
            text = self._written.push(token)
            text += self._written.finish() if self.ended else ""
            self.ended |= self._written.ended
        if text or not self._as_text:
            self._pieces.append(text if self._as_text else token)

    def whole(self) -> Any:
        """All that was not asked for yet: a text, or a list of tokens."""
        return "".join(self.pieces()) if self._as_text else self.pieces()

    def pieces(self) -> list[Any]:
        """The texts or tokens that came since this was asked last."""
        found, self._pieces = self._pieces, []
        return found


def alone(writing: Writing, decoders: Decoders) -> Iterator[Any]:
    """The pieces of one text, as they come."""
    if writing.ended:
        return
    with decoders.holding(writing.tokens) as decoder:
        logits = decoder.continue_with(writing.tokens)
        while True:
            writing.take(logits)
            yield from writing.pieces()
            if writing.ended:
                return
            logits = decoder.append(writing.tokens[-1:])


class Together:
    """Texts that get a token each in every step.

    Args:
        batch: without sequences.

    Attributes:
        texts: those that are being written.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.texts: list[Writing] = []

    def add(self, writing: Writing, decoder: Decoder) -> None:
        """Let a text take part all of whose tokens but the last a decoder holds."""
        self._batch.join(decoder)
        self.texts.append(writing)

    def step(self) -> list[Writing]:
        """Give each text a token; those that have ended leave, and are returned."""
        rows = self._batch.append([w.tokens[-1] for w in self.texts])
        for writing, logits in zip(self.texts, rows, strict=True):
            try:
                writing.take(logits)
            except RunError as e:  # of one; the others go on
                writing.error, writing.ended = e, True
        ended = [w for w in self.texts if w.ended]
        for writing in ended:
            self.remove(writing)
        return ended

    def remove(self, writing: Writing) -> None:
        """Let a text go; its decoder takes back what is held of it."""
        k = self.texts.index(writing)
        del self.texts[k]
        self._batch.leave(k, writing.decoder, writing.tokens)


def together(writings: Sequence[Writing], decoders: Decoders, batch: Batch, most: int) -> None:
    """Write texts, `most` of them at a time.

    Raises:
        RunError: OCC0501 the model gave logits that are no numbers.
    """
    waiting, running = deque(w for w in writings if not w.ended), Together(batch)
    while waiting or running.texts:
        if waiting and len(running.texts) < most:
            writing = waiting.popleft()
            with decoders.holding(writing.tokens) as decoder:
                writing.take(decoder.continue_with(writing.tokens))
                if not writing.ended:
                    running.add(writing, decoder)
            continue
        for writing in running.step():
            if writing.error is not None:
                raise writing.error
