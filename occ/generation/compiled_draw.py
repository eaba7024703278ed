"""Draws from all tokens by a compiled model, `draw.occ`: softmax, draw and nucleus in one call.

After a step, code and data of the interpreter are no longer in the processor's caches: a call of numpy that takes 5
microseconds takes 15 to 50 then, and a draw needs ten of them. With two threads, SmolLM2 took 0.27 ms to choose one of
49,152 tokens after a step of 3.7 ms, and takes 0.12 (Zen 4).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from occ.generation.open import open_plain
from occ.runtime.buffers import aligned_zeros
from occ.runtime.errors import RunError
from occ.runtime.session import Session

_ROW = 256  # logits in a row of the model's input


@cache
def _session() -> Session:
    # the target that builds without a C++ compiler, which a built language model does not need either
    return open_plain(Path(__file__).with_name("draw.occ"), 1, "cpu-jit")


def not_numbers() -> RunError:
    """The error of logits that nothing can be chosen by."""
    return RunError(
        "OCC0501", "the model returned logits that are not numbers", "`occ diff` shows where they come from"
    )


class CompiledDraw:
    """Draws of one text. For one thread at a time.

    It draws from all tokens until one is in the nucleus, on average at most 1 / share times: the nucleus itself, which
    has thousands of members where the distribution is broad, is not needed.

    Args:
        words: size of the vocabulary.
        temperature: divides the logits; above 0.
        share: total probability of the nucleus, the smallest set of most probable tokens that reaches it; among equal
            ones the first. Above 0 and at most 1.
    """

    def __init__(self, words: int, temperature: float, share: float) -> None:
        rows = aligned_zeros((-(-words // _ROW), _ROW), np.dtype(np.float32))
        rows.fill(-np.inf)
        self.words, self._logits, self._share = words, rows.reshape(-1)[:words], share
        self._at, self._token = np.zeros(()), np.zeros((), np.int64)
        self._before, self._total = np.zeros(()), np.zeros(())
        self._call = _session().bind(
            {"logits": rows, "temperature": np.array(max(temperature, 1e-30), np.float32), "u": self._at},
            {"token": self._token, "before": self._before, "total": self._total},
        )

    def __call__(self, logits: np.ndarray, uniform: Callable[[], float]) -> int:
        """A token.

        Args:
            logits: f32 `[words]`.
            uniform: returns numbers from 0 to below 1, the draws.

        Raises:
            RunError: OCC0501 a logit is NaN or +inf, or all are -inf.
        """
        self._logits[:] = logits
        while True:
            self._at[()] = uniform()
            self._call()
            total = float(self._total)
            if not total > 0:  # NaN
                raise not_numbers()
            # All of the total is before a token without weight, to which rounding at the end of a row may lead.
            if float(self._before) < self._share * total:
                return int(self._token)
