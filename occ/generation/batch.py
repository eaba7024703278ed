"""A batch of sequences of different lengths that share a decoder's runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.generation.decoder import Decoder, memory
from occ.generation.names import IDS, LOGITS, STARTS
from occ.runtime.errors import RunError
from occ.runtime.session import Session

_SLACK = 64  # unused leading positions that make moving all sequences worthwhile


class Batch:
    """Sequences that end at the same position of their caches, each starting according to its length.

    A step appends to all caches at that position, and copies nothing. A sequence that joins has its caches copied so
    that they end with the others'; positions that no sequence needs are reclaimed from time to time.

    Args:
        session: of a decoder built for any number of sequences.
        capacity: maximum tokens per sequence.

    Raises:
        RunError: OCC0501 the decoder cannot mask what precedes a sequence.
    """

    def __init__(self, session: Session, capacity: int) -> None:
        if STARTS not in {i.name for i in session.inputs}:
            raise RunError(
                "OCC0501", "the decoder cannot continue texts of different lengths in one run: it has no caches, or "
                           "neither inputs `attention_mask` and `position_ids` nor GroupQueryAttention that rotates",
                "export it with these inputs, or use a batch size of 1",
            )  # fmt: skip
        self._session, self._room = session, capacity + max(_SLACK, capacity // 8)
        self._slots: list[int] = []  # of each sequence its row in the caches
        self._starts = np.zeros(0, np.int64)  # of each row, also of those without a sequence
        self._end = 0
        self._dtype, self._caches, self._states = memory(session, 0, 0)

    def __len__(self) -> int:
        return len(self._slots)

    def join(self, decoder: Decoder) -> None:
        """Add the contents of a decoder as the last sequence."""
        length = len(decoder.tokens)
        if len(self) == len(self._starts):
            self._resize(max(1, 2 * len(self)))
        if not self:
            self._end = 0
        if length > self._end:
            self._move(length - self._end)
        slot = min(set(range(len(self._starts))) - set(self._slots))
        decoder.hand_over(self._caches, self._states, self._end - length, slice(slot, slot + 1))
        self._slots.append(slot)
        self._starts[slot] = self._end - length

    def leave(self, k: int, decoder: Decoder | None = None, tokens: Sequence[int] = ()) -> None:
        """Remove the k-th sequence; a decoder takes over the cache of its `tokens`."""
        slot = self._slots.pop(k)
        if decoder is not None:
            start = int(self._starts[slot])
            decoder.take_over(tokens[: self._end - start], self._caches, self._states, start, slot)
        if 4 * len(self) <= len(self._starts):
            self._resize(2 * len(self))

    def append(self, tokens: Sequence[int]) -> np.ndarray:
        """Append a token to each sequence; returns next-token logits `[sequences, vocabulary]` in f32."""
        self._give_up()
        ids = np.zeros((len(self._starts), 1), self._dtype)
        ids[self._slots, 0] = tokens
        vacant = np.ones(len(self._starts), np.bool_)
        vacant[self._slots] = False
        self._starts[vacant] = self._end  # attends only to itself
        given = {s.past: s.held for s in self._states} | {c.past: c.rows[: self._end] for c in self._caches}
        found = self._session.run(
            given | {IDS: ids, STARTS: self._starts}, {c.present: c.rows[: self._end + 1] for c in self._caches}
        )
        for s in self._states:
            s.held = found[s.present]
        self._end += 1
        return found[LOGITS][self._slots, -1].astype(np.float32)

    def _resize(self, count: int) -> None:
        """Resize to the given number of rows, with the sequences in the first of them."""
        old_caches, old_states, starts = self._caches, self._states, self._starts[self._slots]
        _, self._caches, self._states = memory(self._session, self._room, count)
        used = slice(int(starts.min(initial=self._end)), self._end)
        for new, old in zip(self._caches, old_caches, strict=True):
            for k, slot in enumerate(self._slots):
                new.rows[used, k] = old.rows[used, slot]
        for new, old in zip(self._states, old_states, strict=True):
            new.held[: len(self)] = old.held[self._slots]
        self._slots = list(range(len(self)))
        self._starts = np.zeros(count, np.int64)
        self._starts[self._slots] = starts

    def _give_up(self) -> None:
        """Move the sequences to the beginning of the caches if that frees enough, or they are full."""
        first = int(self._starts[self._slots].min())
        if first >= max(_SLACK, self._end - first) or self._end == self._room:
            self._move(-first)

    def _move(self, by: int) -> None:
        """Move all sequences by a number of positions."""
        used = slice(int(self._starts[self._slots].min(initial=self._end)), self._end)
        for c in self._caches:
            c.rows[used.start + by : used.stop + by] = c.rows[used]
        self._starts += by
        self._end += by
