"""A decoder and its KV cache: tokens in, next-token logits out."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from occ.generation.decode_step import LEAST, DecodeStep
from occ.generation.names import IDS, KEY_BLOCK, LOGITS, STARTS, is_cache, presents_of
from occ.runtime.buffers import aligned_zeros
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.session import Engine, Session
from occ.runtime.signature import numpy_dtype

# Prompt tokens per run (prefill chunk), up to half as many more: SmolLM2 in four bits reads 512 tokens 1.08 to 1.16
# times as fast in two runs as in one, in f32 1.05 to 1.07 times (one thread of a Zen 4), because more of the
# activations between two products stay in the caches; 2,048 tokens take 41 MiB less.
PREFILL_CHUNK = 256


@dataclass
class State:
    """A fixed-size recurrent state: an input that summarises the preceding tokens, and the output that continues it.

    Attributes:
        past, present: their names.
        held: the value for the next run, zeros before the first token.
    """

    past: str
    present: str
    held: np.ndarray


@dataclass
class Cache:
    """A growing cache: an input with results for the preceding tokens, and the output that continues it.

    Attributes:
        past, present: their names.
        rows: its memory, a row per token.
    """

    past: str
    present: str
    rows: np.ndarray


class Decoder:
    """One sequence of a model built with `caches=growing`. A step appends to the caches, and copies nothing.

    Args:
        session: of a decoder; it may be shared.
        capacity: maximum tokens in the caches.

    Attributes:
        tokens: those in the caches.

    Raises:
        RunError: OCC0501 the session's decoder was not built for this.
    """

    def __init__(self, session: Session, capacity: int) -> None:
        self.session, self.capacity = session, capacity
        self.tokens: list[int] = []
        self._ids, self._caches, self._states = memory(session, capacity)
        self._starts = {STARTS: np.zeros(1, np.int64)} if STARTS in {i.name for i in session.inputs} else {}
        self._bound: tuple[Engine, DecodeStep | None] | None = None
        self._scored = 1 if self._states else KEY_BLOCK  # tokens at a time, until a run returns the logits of fewer

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Append tokens; returns the next-token logits `[vocabulary]` after the last of them, in f32.

        Raises:
            RunError: OCC0501 there is no token, or not enough room.
        """
        return self._append(ids)[-1].astype(np.float32)

    def append_scored(self, ids: Sequence[int]) -> np.ndarray:
        """Append tokens in one run; returns the next-token logits `[tokens, vocabulary]` after each of them, in f32.

        The next run may overwrite them.

        Raises:
            RunError: as `append`; the model was built for the logits of fewer tokens.
        """
        found = self._append(ids)
        if len(found) < len(ids):
            raise RunError(
                "OCC0501",
                f"the model returns the logits of {len(found)} tokens, not of {len(ids)}",
                "build it with drafts",
            )
        return found[-len(ids) :].astype(np.float32, copy=False)

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Append the first of some tokens, as many as one run returns the logits of; those after each of them.

        Returns:
            f32 `[tokens, vocabulary]`, equal to those of single tokens: a run does not pass a multiple of `KEY_BLOCK`.

        Raises:
            RunError: as `append`.
        """
        done = len(self.tokens)
        part = ids[: min(self._scored, KEY_BLOCK - done % KEY_BLOCK)]
        found = self._append(part)
        if len(found) >= len(part):
            return found[-len(part) :].astype(np.float32)
        self._scored = len(found)
        self.trim(done)
        return self.score(ids)

    @property
    def can_go_back(self) -> bool:
        """Whether `trim` keeps the preceding tokens: there are caches, and no states."""
        return bool(self._caches) and not self._states

    def _append(self, ids: Sequence[int]) -> np.ndarray:
        """Append tokens; returns the logits of the last run, `[rows, vocabulary]`."""
        if not ids:
            raise RunError("OCC0501", "there is no token to append", "pass at least one")
        if not self._caches and not self._states:  # a decoder without cache: everything again
            ids = [*self.tokens, *ids]
            self.tokens = []
        end = len(self.tokens) + len(ids)
        if end > self.capacity:
            raise RunError(
                "OCC0501", f"{end} tokens exceed the capacity of the cache, {self.capacity}", "raise `capacity`"
            )
        logits = np.empty((0, 0))
        tokens, count = np.array(ids, self._ids), self._parts(len(ids))
        for part in (tokens,) if count == 1 else np.array_split(tokens, count):
            logits = self._run(part)
        return logits

    def _parts(self, count: int) -> int:
        """The number of runs for a prompt: one without caches, or if the file needs the full length."""
        return max(1, round(count / PREFILL_CHUNK)) if self.reads_in_chunks else 1

    @cached_property
    def reads_in_chunks(self) -> bool:
        """Whether several runs may read a prompt: there are caches, and the file does not need the full length."""
        branches = any(step.kind == "if" for step in self.session.artifact.manifest.plan.steps)
        return bool(self._caches or self._states) and not branches

    def _run(self, ids: np.ndarray) -> np.ndarray:
        """The logits of a run on a chunk of the new tokens, `[rows, vocabulary]`."""
        done, end = len(self.tokens), len(self.tokens) + len(ids)
        if len(ids) == 1 and done >= LEAST and (step := self._step()) is not None:
            logits = step(ids[0], done)
            self.tokens += ids.tolist()
            return logits
        given = {IDS: ids[None], **self._starts} | {c.past: c.rows[:done] for c in self._caches}
        given |= {s.past: s.held for s in self._states}
        found = self.session.run(given, {c.present: c.rows[:end] for c in self._caches})
        for s in self._states:
            s.held = found[s.present]
        self.tokens += ids.tolist()
        return found[LOGITS].reshape(-1, found[LOGITS].shape[-1])

    def _step(self) -> DecodeStep | None:
        """The bound run on one token; None if there is none, or somebody observes runs."""
        engine = self.session.engine  # of a tiered session the one of its better code, once that is ready
        if getattr(engine, "observer", None) is not None:
            return None
        if self._bound is None or self._bound[0] is not engine:
            ids = np.zeros((1, 1), self._ids)
            caches = {} if self._states else {c.past: (c.present, c.rows) for c in self._caches}
            self._bound = engine, DecodeStep.bound(self.session, ids, caches, self._starts)
        return self._bound[1]

    def continue_with(self, ids: Sequence[int]) -> np.ndarray:
        """Make `ids` the whole sequence, reusing the cached prefix; logits as in `append`."""
        self.keep_common(ids)
        return self.append(ids[len(self.tokens) :])

    def keep_common(self, ids: Sequence[int]) -> None:
        """Keep the cached common prefix with `ids`, except its last token, whose logits are needed."""
        self.trim(min(_common(self.tokens, ids), len(ids) - 1))

    def hand_over(
        self, caches: Sequence[Cache], states: Sequence[State], start: int = 0, rows: slice = slice(None)
    ) -> None:
        """Copy the cache of a text to a batch: to some of its rows, from a position on."""
        for mine, other in zip(self._caches, caches, strict=True):
            other.rows[start : start + len(self.tokens), rows] = mine.rows[: len(self.tokens)]
        for mine, other in zip(self._states, states, strict=True):
            other.held[rows] = mine.held

    def take_over(
        self, tokens: Sequence[int], caches: Sequence[Cache], states: Sequence[State], start: int, row: int
    ) -> None:
        """Take over the cache of tokens from one row of a batch, from a position on."""
        for mine, other in zip(self._caches, caches, strict=True):
            mine.rows[: len(tokens), 0] = other.rows[start : start + len(tokens), row]
        for mine, other in zip(self._states, states, strict=True):
            mine.held = other.held[row : row + 1].copy()
        self.tokens = list(tokens)

    def trim(self, length: int) -> None:
        """Drop all but the first tokens; everything if fewer remain and a state cannot go back."""
        if self._states and length < len(self.tokens):
            length = 0
            for s in self._states:
                s.held = np.zeros_like(s.held)
        del self.tokens[max(length, 0) :]


class Decoders:
    """Decoders of one session, taken for a text and returned with their caches.

    Thread-safe.

    Args:
        session, capacity: as in `Decoder`.
        most_idle: how many are kept for texts with the same beginning: each has caches for `capacity` tokens.
    """

    def __init__(self, session: Session, capacity: int, most_idle: int = 8) -> None:
        self._session, self._capacity, self._most, self._lock = session, capacity, most_idle, threading.Lock()
        self.idle = [Decoder(session, capacity)]  # most recently used last

    def take(self, ids: Sequence[int]) -> Decoder:
        """The idle decoder that shares the longest prefix with a prompt, or a new one."""
        with self._lock:
            if not self.idle:
                return Decoder(self._session, self._capacity)
            best = max(self.idle, key=lambda d: _common(d.tokens, ids))  # among equals the least recently used
            self.idle.remove(best)
            return best

    def give_back(self, decoder: Decoder) -> None:
        """Return a decoder, with its cache."""
        with self._lock:
            self.idle.append(decoder)
            del self.idle[: -self._most]

    @contextmanager
    def holding(self, ids: Sequence[int]) -> Generator[Decoder]:
        """A decoder, as from `take`, that is returned at the end."""
        decoder = self.take(ids)
        try:
            yield decoder
        finally:
            self.give_back(decoder)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def memory(session: Session, capacity: int, count: int = 1) -> tuple[np.dtype, list[Cache], list[State]]:
    """The token type of a decoder, and its memory for `count` sequences of `capacity` tokens.

    Raises:
        RunError: OCC0501 the session's decoder has no caches that grow in place.
    """
    ids = next((i for i in session.inputs if i.name == IDS), None)
    if ids is None or LOGITS not in {o.name for o in session.outputs}:
        raise RunError(
            "OCC0501", f"the model does not have the input `{IDS}` and the output `{LOGITS}`", "pass a decoder"
        )
    others = [i for i in session.inputs if i.name not in (IDS, STARTS)]
    presents = presents_of([i.name for i in others], [o.name for o in session.outputs])
    if len(others) > len(presents) or any(not is_cache(i.name) for i in others):
        names = ", ".join(f"`{i.name}`" for i in others if not is_cache(i.name)) or "more past caches than present ones"
        raise RunError(
            "OCC0501", f"the decoder takes {names}", "export it with past key values as its only other inputs"
        )
    if isinstance(ids.shape[0], int) and ids.shape[0] != count:
        raise RunError(
            "OCC0501",
            f"the model takes {ids.shape[0]} text at a time, not {count}",
            "pass the folder with its model.onnx",
        )
    caches, states = list[Cache](), list[State]()
    for past, present in zip(others, presents, strict=True):
        shape, dtype = [count if d == ids.shape[0] else d for d in past.shape], numpy_dtype(past.dtype)
        first, *rest = shape
        sizes = tuple(d for d in rest if isinstance(d, int))
        if len(sizes) < len(rest):
            raise RunError(
                "OCC0501", f"the cache `{past.name}` cannot grow in place: it is {past}",
                "build the model with -C caches=growing and a batch of 1",
            )  # fmt: skip
        if isinstance(first, int):
            states.append(State(past.name, present, np.zeros((first, *sizes), dtype)))
        else:
            # positions without a token have weight 0, and must be numbers for that
            caches.append(Cache(past.name, present, aligned_zeros((capacity, *sizes), dtype)))
    return numpy_dtype(ids.dtype), caches, states
