"""Draft tokens for speculative decoding: guesses of what follows, verified in one run of the model.

A draft is accepted up to the first token where the model chooses another, so texts are the model's own, except for
rounding: greedy ones, and sampled ones with the same seed. A rule-based draft has all its probability on one token, for
which rejection sampling (Leviathan et al., 2023, https://arxiv.org/abs/2211.17192) accepts a draw of the model that
equals it, and otherwise keeps the draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from occ.generation.decoder import Decoder, Decoders

_SIZES = (3, 2)  # lengths of the n-grams to look up, longest first; one token says too little about the next


class Drafts(Protocol):
    """A guesser of the next tokens of one text."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow these; the text only grows between two calls."""
        ...


class NgramDrafts:
    """What followed the previous occurrence of a text's last n-gram (prompt lookup decoding).

    It needs no run of a model, and guesses right where a text repeats its prompt: summaries, code, lists, edits.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # of each n-gram the position after its last occurrence
        self._known = 1  # positions whose preceding n-grams are recorded

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow; none if the last n-grams are new."""
        for place in range(self._known, len(tokens)):
            for n in _SIZES:
                if place >= n:
                    self._after[tuple(tokens[place - n : place])] = place
        self._known = max(self._known, len(tokens))
        last = (tuple(tokens[-n:]) for n in _SIZES if len(tokens) >= n)
        place = next((self._after[gram] for gram in last if gram in self._after), None)
        if place is None:
            return []
        found = list(tokens[place : place + count])
        while len(found) < count:  # it continues past the end of the text: a loop of that many tokens
            found.append(found[place - len(tokens)])
        return found


class ModelDrafts:
    """The most probable tokens of a smaller model with the same vocabulary.

    Args:
        decoders: of that model; for each text it caches what was generated last.
    """

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow; fewer if the smaller model has no room for more."""
        found: list[int] = []
        with self._decoders.holding(tokens) as decoder:
            count = min(count, decoder.capacity - len(tokens))
            while len(found) < count:
                found.append(_next(decoder, [*tokens, *found]))
        return found


def _next(decoder: Decoder, tokens: Sequence[int]) -> int:
    return int(decoder.continue_with(tokens).argmax())
