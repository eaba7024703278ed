"""Sampling settings, and the sampler of one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from occ.generation.candidates import draw, leading, with_greatest
from occ.generation.compiled_draw import CompiledDraw, not_numbers
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

LARGEST = 1e30  # of what logits are multiplied by, or added to, in f32
_TELLS_APART = 100.0  # temperatures up to here: beyond, probabilities in f32 of unequal logits may be equal


@dataclass(frozen=True)
class Sampling:
    """Settings of a sampler, in the order in which they apply; the defaults change nothing.

    Logits are biased and penalised first, then divided by the temperature, and the filters remove tokens one after the
    other, like the logits processors of transformers 5.

    Attributes:
        do_sample: whether to draw by the model's probabilities; otherwise the most probable token is used.
        logit_bias: values added to the logits of tokens, by token.
        repetition_penalty: above 1 makes tokens that already occur less probable (Keskar et al., 2019).
        presence_penalty: subtracted from the logits of tokens already generated.
        frequency_penalty: subtracted from them once per occurrence.
        bad_words_ids: sequences of tokens that are never generated.
        temperature: divides the logits: below 1 sharpens the distribution, 0 selects the most probable token.
        top_k: keep the k most probable tokens, and ties with the last of them; 0 keeps all.
        top_p: keep the smallest set of most probable tokens with this total probability (Holtzman et al., 2019).
        min_p: keep tokens with at least this probability relative to the most probable one (Nguyen et al., 2024).
        typical_p: keep the tokens closest to the expected information with this total probability (Meister et al.,
            2022).

    Raises:
        RunError: OCC0501 a value is invalid.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    bad_words_ids: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        for name, fits, rule in (
            ("temperature", 0 <= self.temperature <= LARGEST, f"0 to {LARGEST:g}"),
            ("top_k", self.top_k >= 0, "0 or above"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("typical_p", 0 < self.typical_p <= 1, "above 0 and at most 1"),
            (
                "repetition_penalty",
                1 / LARGEST <= self.repetition_penalty <= LARGEST,
                f"{1 / LARGEST:g} to {LARGEST:g}",
            ),
            ("presence_penalty", abs(self.presence_penalty) <= LARGEST, f"a number up to {LARGEST:g}"),
            ("frequency_penalty", abs(self.frequency_penalty) <= LARGEST, f"a number up to {LARGEST:g}"),
            ("logit_bias", all(_is_bias(b) for b in self.logit_bias.values()), f"of numbers up to {LARGEST:g}"),
            ("bad_words_ids", all(len(w) > 0 for w in self.bad_words_ids), "of sequences that are not empty"),
        ):
            if not fits:
                raise RunError("OCC0501", f"{name} is {getattr(self, name)}", f"it must be {rule}")

    @cached_property
    def changes_logits(self) -> bool:
        """Whether logits are biased or penalised before tokens are compared."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1)
        return any(penalties) or bool(self.logit_bias) or bool(self.bad_words_ids)

    @cached_property
    def draws_from_all(self) -> bool:
        """Whether tokens are drawn without a filter but by `top_p`, which most draws from all tokens pass."""
        alone = self.do_sample and self.temperature > 0 and not self.top_k and not self.min_p and self.typical_p == 1
        return alone and (self.top_p == 1 or (self.top_p >= 0.5 and self.temperature <= _TELLS_APART))


def _is_bias(b: float) -> bool:
    return abs(b) <= LARGEST or b == -np.inf


class Sampler:
    """Chooses the tokens of one text.

    Args:
        sampling: the settings.
        prompt: existing tokens.
        seed: of the draws; equal seeds and logits produce equal tokens.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), seed: int = 0) -> None:
        self._sampling, self._uniform = sampling, _uniforms(seed).__next__
        self._recent = list(prompt)  # for comparison with bad words, and new tokens
        self._seen = set(prompt)
        self._counts: dict[int, int] = {}  # of tokens that were generated
        self._scores = np.empty(0, np.float32)  # a buffer of the vocabulary's size
        self._draw: CompiledDraw | None = None

    def choose(self, logits: np.ndarray, allowed: np.ndarray | None = None) -> int:
        """The next token; `append` it before choosing the one after it.

        Args:
            logits: f32 `[vocabulary]`; not changed.
            allowed: bool `[vocabulary]`, the tokens that a grammar allows; None for all.

        Raises:
            RunError: OCC0501 a logit is NaN or +inf, or every token is banned.
        """
        s, draws = self._sampling, self._sampling.draws_from_all
        if draws and allowed is None and not s.changes_logits:
            return self._drawn(logits)
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise not_numbers()
        if allowed is not None or s.changes_logits:
            logits = self._adjusted(logits, allowed)
            best = int(logits.argmax())
            if logits[best] == -np.inf:
                raise RunError("OCC0501", "every token is banned", "ban fewer, by `logit_bias` or `bad_words_ids`")
        if not s.do_sample or s.temperature == 0 or logits[best] == np.inf:  # biased and penalised beyond f32
            return best
        if draws:
            return self._drawn(logits)
        scores = self._buffer(len(logits))
        with np.errstate(over="ignore"):  # far below the best at a temperature near 0: -inf, whose probability is 0
            np.divide(np.subtract(logits, logits[best], out=scores), np.float32(max(s.temperature, 1e-30)), out=scores)
        kept = self._kept(scores)
        if kept is None:
            return draw(np.exp(scores, out=scores), self._uniform())
        return int(kept[draw(np.exp(scores[kept]), self._uniform())])

    def append(self, token: int) -> None:
        """Record a generated token."""
        s = self._sampling
        if not s.changes_logits:
            return
        self._recent.append(token)
        self._seen.add(token)
        self._counts[token] = self._counts.get(token, 0) + 1

    def _drawn(self, logits: np.ndarray) -> int:
        """A token drawn from all, or from the nucleus."""
        if self._draw is None or self._draw.words != len(logits):
            self._draw = CompiledDraw(len(logits), self._sampling.temperature, self._sampling.top_p)
        return self._draw(logits, self._uniform)

    def _buffer(self, size: int) -> np.ndarray:
        if len(self._scores) != size:
            self._scores = np.empty(size, np.float32)
        return self._scores

    def _adjusted(self, logits: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
        """The logits with biases and penalties, and -inf for forbidden tokens."""
        s, made = self._sampling, self._buffer(len(logits))
        made[:] = logits
        if s.logit_bias:
            made[list(s.logit_bias)] += np.fromiter(s.logit_bias.values(), np.float32)
        if s.repetition_penalty != 1:
            penalise(made, self._seen, s.repetition_penalty)
        if self._counts and (s.presence_penalty or s.frequency_penalty):
            counts = np.fromiter(self._counts.values(), np.float32)
            made[list(self._counts)] -= np.float32(s.presence_penalty) + np.float32(s.frequency_penalty) * counts
        for word in s.bad_words_ids:
            *before, last = word
            if not before or self._recent[-len(before) :] == before:
                made[last] = -np.inf
        if allowed is not None:
            made[~allowed] = -np.inf
        return made

    def _kept(self, scores: np.ndarray) -> np.ndarray | None:
        """The tokens that pass the filters, None for all; `scores` are divided by the temperature, the largest is 0."""
        s, kept = self._sampling, None
        if 0 < s.top_k < len(scores):
            kept = with_greatest(scores, s.top_k)
        if s.top_p < 1:
            kept = _narrowed(kept, leading(_of(scores, kept), np.exp(_of(scores, kept)), s.top_p))
        if s.min_p > 0:
            least = np.log(np.float32(max(s.min_p, 1 / LARGEST)))
            kept = _narrowed(kept, np.flatnonzero(_of(scores, kept) >= least))
        if s.typical_p < 1:
            kept = _narrowed(kept, _typical(_of(scores, kept), s.typical_p))
        return kept


def _uniforms(seed: int) -> Iterator[float]:
    """Numbers from 0 to below 1. Several are drawn at a time: after a step, a draw takes 40 microseconds."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(64).tolist()


def penalise(scores: np.ndarray, tokens: set[int], penalty: float) -> None:
    """Make existing tokens less probable, in place in f32 `scores` `[vocabulary]` (Keskar et al., 2019)."""
    seen = np.fromiter(tokens, np.int64)
    with np.errstate(over="ignore"):
        scores[seen] *= np.where(scores[seen] > 0, np.float32(1 / penalty), np.float32(penalty))


def _of(scores: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
    return scores if kept is None else scores[kept]


def _narrowed(kept: np.ndarray | None, places: np.ndarray) -> np.ndarray:
    return places if kept is None else kept[places]


def _typical(scores: np.ndarray, share: float) -> np.ndarray:
    """The positions whose information is closest to the entropy and that together have this share, with ties."""
    p = np.exp(scores)
    p /= p.sum(dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # a probability of 0, whose share of the entropy is 0
        information = -np.log(p)
        entropy = np.sum(p * information, where=p > 0, dtype=np.float64)
    distance = -np.abs(information - np.float32(entropy))
    return np.flatnonzero(distance >= distance[leading(distance, p, share)].min())
