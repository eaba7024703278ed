"""Beam search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Literal

import numpy as np

from occ.generation.decoder import Decoder, memory
from occ.generation.names import IDS, LOGITS, STARTS
from occ.generation.sampling import penalise
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.session import Session

_NEVER = -1.0e9  # the score of a token that must not be chosen


@dataclass(frozen=True)
class Beams:
    """How beams are scored and kept, as in transformers' `generate`.

    Attributes:
        num_beams: number of beams.
        length_penalty: scores, sums of log-probabilities, are divided by the number of new tokens to this power: above
            0 favours long texts, below 0 short ones.
        early_stopping: end as soon as `num_beams` texts have ended; if False, when a better one is unlikely, and if
            "never", when it is impossible.
        num_return_sequences: how many of the best are returned.
        repetition_penalty: as in `Sampling`, on log-probabilities.

    Raises:
        RunError: OCC0501 a value is invalid.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, fits, rule in (
            ("num_beams", self.num_beams >= 1, "1 or above"),
            ("length_penalty", np.isfinite(self.length_penalty), "a number"),
            ("early_stopping", self.early_stopping in (True, False, "never"), 'True, False or "never"'),
            ("num_return_sequences", 1 <= self.num_return_sequences <= self.num_beams, "1 to num_beams"),
        ):
            if not fits:
                raise RunError("OCC0501", f"{name} is {getattr(self, name)!r}", f"it must be {rule}")


class BeamState:
    """Sequences of one length that grow token by token, after a common prompt.

    Args:
        session: of a decoder built for any number of sequences.
        prompt: holds the caches of the prompt.
        count: of sequences.
        room: maximum new tokens each.
    """

    def __init__(self, session: Session, prompt: Decoder, count: int, room: int) -> None:
        self._session, self._prompt = session, len(prompt.tokens)
        self._dtype, self._caches, self._states = memory(session, self._prompt + room, count)
        prompt.hand_over(self._caches, self._states)
        self._tokens = np.tile(np.array(prompt.tokens, self._dtype), (count, 1))

    def append(self, tokens: Sequence[int], parents: np.ndarray) -> np.ndarray:
        """Append `tokens[k]` to the sequence in slot `parents[k]`, giving slot k; logits `[count, vocabulary]`, f32."""
        done = self._tokens.shape[1]
        self._tokens = np.column_stack([self._tokens[parents], np.array(tokens, self._dtype)])
        moved = np.flatnonzero(parents != np.arange(len(parents)))
        for c in self._caches:  # all share the prompt
            c.rows[self._prompt : done, moved] = c.rows[self._prompt : done, parents[moved]]
        given = {s.past: s.held[parents] for s in self._states} | {c.past: c.rows[:done] for c in self._caches}
        given[IDS] = self._tokens[:, -1:] if given else self._tokens
        if STARTS in {i.name for i in self._session.inputs}:
            given[STARTS] = np.zeros(len(tokens), np.int64)
        found = self._session.run(given, {c.present: c.rows[: done + 1] for c in self._caches})
        for s in self._states:
            s.held = found[s.present]
        return found[LOGITS][:, -1].astype(np.float32)


@dataclass
class _Found:
    """A finished text; without tokens, an empty slot for one."""

    score: float
    tokens: list[int] = field(default_factory=list)


def search(
    how: Beams, prompt: Sequence[int], first: np.ndarray, rows: BeamState, count: int,
    ended: Callable[[Sequence[int]], bool],
    ends: Collection[int],
) -> list[list[int]]:  # fmt: skip
    """The best continuations of a prompt, most probable first.

    Source: `GenerationMixin._beam_search` of transformers 5, for one prompt and without sampling.

    Args:
        how: the settings.
        prompt: its tokens.
        first: its next-token logits `[vocabulary]`.
        rows: as many as beams, holding the prompt.
        count: maximum new tokens.
        ended: whether a continuation has ended.
        ends: tokens that end a text; they decide how many candidates a step examines.
    """
    n = how.num_beams
    keep = max(2, 1 + len(ends)) * n
    running: list[list[int]] = [[] for _ in range(n)]
    scores = np.full(n, _NEVER, np.float32)
    scores[0] = 0  # all are still equal
    found = [_Found(_NEVER) for _ in range(n)]
    logits = np.broadcast_to(first, (n, len(first)))
    for length in range(1, count + 1):
        chances = _log_softmax(logits)
        if how.repetition_penalty != 1:
            for scored, made in zip(chances, running, strict=True):
                penalise(scored, {*prompt, *made}, how.repetition_penalty)
        best, places = _best((chances + scores[:, None]).reshape(-1), keep)
        parents, tokens = np.divmod(places, len(first))
        candidates = [[*running[p], int(t)] for p, t in zip(parents, tokens, strict=True)]
        stops = np.array([length == count or ended(c) for c in candidates])
        weight = length**how.length_penalty
        done = [_Found(float(s) / weight, c) for s, c, e in zip(best[:n], candidates, stops, strict=False) if e]
        found = sorted([*found, *done], key=lambda f: -f.score)[:n]
        scores, chosen = _best(np.where(stops, best + np.float32(_NEVER), best), n)
        running = [candidates[k] for k in chosen]
        if stops.all() or _decided(how, found, float(scores[0]), length, count):
            break
        logits = rows.append([r[-1] for r in running], parents[chosen])
    return [f.tokens for f in found[: how.num_return_sequences]]


def _decided(how: Beams, found: Sequence[_Found], best: float, length: int, count: int) -> bool:
    """Whether no running beam is likely to be better than the worst finished one."""
    if not all(f.tokens for f in found):
        return False
    likely = count if how.early_stopping == "never" and how.length_penalty > 0 else length
    return how.early_stopping is True or best / likely**how.length_penalty <= found[-1].score


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    if not np.isfinite(logits.max(-1)).all():
        raise RunError(
            "OCC0501", "the model returned logits that are not numbers", "`occ diff` shows where they come from"
        )
    low = logits - logits.max(-1, keepdims=True)
    return low - np.log(np.exp(low).sum(-1, keepdims=True, dtype=np.float32))


def _best(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest numbers, in descending order, and their positions."""
    count = min(count, len(scores))
    places = np.argpartition(-scores, count - 1)[:count]
    places = places[np.argsort(-scores[places], kind="stable")]
    return scores[places], places
