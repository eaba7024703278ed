"""Draft tokens for speculative decoding: guesses of what follows, which one run of the model verifies.

A draft is accepted up to where the model chooses another token, so texts are those of the model alone, but for rounding: greedy
ones, and sampled ones with the same seed. A draft by a rule has all of its probability on one token, for which rejection sampling
(Leviathan et al., 2023, https://arxiv.org/abs/2211.17192) accepts what a draw of the model gives, and keeps the draw elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from occ.generation.decoder import Decoder, Decoders

_SIZES = (3, 2)  # tokens of the n-grams that are looked up, the longest first; one token says too little of the next


class Drafts(Protocol):
    """What guesses the next tokens of one text."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow these; the text only grows between two calls."""
        ...


class NgramDrafts:
    """What followed the last n-gram of a text where it stood before (prompt lookup decoding).

    It costs no run of a model, and guesses right where a text repeats its prompt: summaries, code, lists, changed texts.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # of each n-gram the place after its last occurrence
        self._known = 1  # places whose n-grams before them are noted

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """As `Drafts`; none where the last n-grams are new."""
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
        while len(found) < count:  # it goes on beyond the end of the text: a loop of so many tokens
            found.append(found[place - len(tokens)])
        return found


class ModelDrafts:
    """The most probable tokens of a smaller model with the same vocabulary.

    Args:
        decoders: of that model; of each text it holds what was written last.
    """

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """As `Drafts`; fewer where the smaller model has no room for more."""
        found: list[int] = []
        with self._decoders.holding(tokens) as decoder:
            count = min(count, decoder.capacity - len(tokens))
            while len(found) < count:
                found.append(_next(decoder, [*tokens, *found]))
        return found


def _next(decoder: Decoder, tokens: Sequence[int]) -> int:
    return int(decoder.continue_with(tokens).argmax())
