"""What chooses the next token from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from occ.runtime.errors import RunError


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        do_sample: by chance, by the probabilities of the model; else the most probable one.
        temperature: logits are divided by it: below 1 makes probable tokens more so, 0 takes the most probable one.
        top_k: only so many of the most probable tokens; 0 for all.
        top_p: only the most probable tokens that together have this probability.
        repetition_penalty: above 1 makes tokens less probable that are there already (Keskar et al., 2019).

    Raises:
        RunError: OCC0501 a value makes no sense.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, fits, rule in (
            ("temperature", 0 <= self.temperature < np.inf, "0 or above"),
            ("top_k", self.top_k >= 0, "0 or above"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < np.inf, "above 0"),
        ):
            if not fits:
                raise RunError("OCC0501", f"{name} is {getattr(self, name)}", f"it must be {rule}")

    def choose(self, logits: np.ndarray, tokens: list[int], rng: np.random.Generator) -> int:
        """The next token.

        Args:
            logits: f32 `[vocabulary]`.
            tokens: those that are there.
            rng: chance.

        Raises:
            RunError: OCC0501 a logit is NaN, or none is a number.
        """
        if not np.isfinite(logits.max()):
            raise RunError(
                "OCC0501", "the model gave logits that are no numbers", "see `occ diff` where they come from"
            )
        if self.repetition_penalty != 1:
            logits = penalised(logits, tokens, self.repetition_penalty)
        if not self.do_sample or self.temperature == 0:
            return int(logits.argmax())
        order, p = self._candidates(logits)
        return int(order[rng.choice(len(p), p=p)])

    def _candidates(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens by falling probability, and their probabilities; top_k first, then top_p, as transformers does it."""
        order = np.argsort(-logits, kind="stable")[: self.top_k or None]
        scores = logits[order].astype(np.float64)
        with np.errstate(over="ignore"):  # far below the first at a temperature near 0: -inf, whose probability is 0
            p = np.exp((scores - scores[0]) / self.temperature)
        p /= p.sum()
        if self.top_p < 1:
            count = int(np.searchsorted(np.cumsum(p), self.top_p)) + 1
            order, p = order[:count], p[:count] / p[:count].sum()
        return order, p


def penalised(scores: np.ndarray, tokens: Sequence[int], penalty: float) -> np.ndarray:
    """Scores `[vocabulary]` in which tokens that are there already are less probable (Keskar et al., 2019)."""
    seen = np.unique(np.array(tokens, np.int64))
    made = scores.copy()
    made[seen] *= np.where(made[seen] > 0, 1 / penalty, penalty)
    return made
