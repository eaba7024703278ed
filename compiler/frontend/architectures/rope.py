"""Frequencies of rotary positions, and ways to extend them to longer contexts.

Sources: Su et al. 2021 (RoFormer); Peng et al. 2023 (YaRN); Ding et al. 2024 (LongRoPE); Llama 3.1 frequencies as in
`modeling_rope_utils.py` of the transformers library.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from occ.compiler.frontend.architectures.description import Rope


def plain(base: float, turned: int) -> Rope:
    """Frequencies `base ** (-2 k / turned)` of the pairs of `turned` elements."""
    powers = np.arange(0, turned, 2, dtype=np.float32) / np.float32(turned)
    return Rope((1.0 / np.float32(base) ** powers).astype(np.float32))


def linear(rope: Rope, factor: float) -> Rope:
    """Positions divided by a common factor."""
    return replace(rope, frequencies=rope.frequencies / np.float32(factor))


def divided(rope: Rope, factors: np.ndarray) -> Rope:
    """Each frequency divided by a factor of its own."""
    return replace(rope, frequencies=rope.frequencies / factors.astype(np.float32))


def llama3(rope: Rope, factor: float, low: float, high: float, original: int) -> Rope:
    """Low frequencies divided by a factor, high ones unchanged, and those in between interpolated."""
    waves = 2 * math.pi / rope.frequencies
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    mixed = ((1 - smooth) / factor + smooth) * rope.frequencies
    return replace(rope, frequencies=mixed.astype(np.float32))


def yarn(
    rope: Rope, base: float, factor: float, original: int, fast: float, slow: float, *, attention: float | None = None,
    sharper: float | None = None,
) -> Rope:  # fmt: skip
    """YaRN: like `llama3` with a ramp over the pairs between `fast` and `slow` turns.

    Scores are scaled by the square of `attention`, or of the paper's value times `sharper`.
    """
    pairs = len(rope.frequencies)

    def pair_of(turns: float) -> float:
        return pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    first, last = max(math.floor(pair_of(fast)), 0), min(math.ceil(pair_of(slow)), 2 * pairs - 1)
    ramp = np.clip((np.arange(pairs) - first) / max(last - first, 1e-3), 0, 1)
    found = rope.frequencies * (ramp / factor + 1 - ramp)
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return replace(rope, frequencies=found.astype(np.float32), factor=attention or usual * (sharper or 1.0))


def longrope(
    rope: Rope, short: np.ndarray, long: np.ndarray, original: int, context: float, attention: float | None
) -> Rope:
    """LongRoPE: one list of divisors for contexts of up to `original` tokens, and one for longer ones."""
    ratio = context / original
    wanted = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    return Rope(divided(rope, short).frequencies, divided(rope, long).frequencies, original, attention or wanted)
