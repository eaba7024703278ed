"""What chooses the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from occ.runtime.errors import RunError


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        do_sample: by chance, by the probabilities of the model; else the most probable one.
        temperature: logits are divided by it: below 1 makes probable tokens more so.
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
            ("temperature", self.temperature > 0, "above 0"),
            ("top_k", self.top_k >= 0, "0 or above"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
        ):
            if not fits:
                raise RunError("OCC0501", f"{name} is {getattr(self, name)}", f"it must be {rule}")

    def choose(self, logits: np.ndarray, tokens: list[int], rng: np.random.Generator) -> int:
        """The next token.

        Args:
            logits: f32 `[vocabulary]`.
            tokens: those that are there.
            rng: chance.
        """
        if self.repetition_penalty != 1:
            seen = np.unique(np.array(tokens, np.int64))
            logits = logits.copy()
            logits[seen] *= np.where(logits[seen] > 0, 1 / self.repetition_penalty, self.repetition_penalty)
        if not self.do_sample:
            return int(logits.argmax())
        order, p = self._candidates(logits)
        return int(order[rng.choice(len(p), p=p)])

    def _candidates(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens by falling probability, and their probabilities; top_k first, then top_p, as transformers does it."""
        order = np.argsort(-logits, kind="stable")[: self.top_k or None]
        scaled = logits[order].astype(np.float64) / self.temperature
        p = np.exp(scaled - scaled[0])
        p /= p.sum()
        if self.top_p < 1:
            count = int(np.searchsorted(np.cumsum(p), self.top_p)) + 1
            order, p = order[:count], p[:count] / p[:count].sum()
        return order, p
