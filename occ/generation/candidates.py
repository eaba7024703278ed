"""Top-k, top-p and random draws from logits, without sorting the vocabulary."""

from __future__ import annotations

import numpy as np

_ROWS = 64  # elements per column, whose maxima bound the largest scores
_TRIED = (256, 4096)  # candidates that usually have the requested probability mass
_BINS = 4096  # bins of a histogram of scores, otherwise
_BLOCK = 1024  # weights of a partial sum


def with_greatest(scores: np.ndarray, count: int) -> np.ndarray:
    """The positions of the `count` largest scores f32 `[n]`, and of those that equal the last of them.

    Largest first.

    The count-th largest column maximum is at most the count-th largest score, so one pass leaves few to sort. Equal
    scores come in order of position.
    """
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    rows = max(1, min(_ROWS, len(scores) // (4 * count)))
    columns = len(scores) // rows
    maxima = scores[: rows * columns].reshape(rows, columns).max(axis=0)
    found = np.flatnonzero(scores >= np.partition(maxima, columns - count)[columns - count])
    found = found[np.argsort(-scores[found], kind="stable")]
    ties = np.searchsorted(-scores[found], -scores[found[count - 1]], side="right")
    return found[:ties]


def leading(keys: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """The fewest positions with the largest keys whose weights reach this share of the total.

    Args:
        keys: f32 `[n]`; -inf comes last.
        weights: f32 `[n]`, not negative.
        share: above 0 and at most 1.
    """
    needed = share * weights.sum(dtype=np.float64)
    for count in _TRIED:
        first = with_greatest(keys, min(count, len(keys)))
        mass = np.cumsum(weights[first], dtype=np.float64)
        if mass[-1] >= needed or len(first) == len(keys):
            return first[: np.searchsorted(mass, needed) + 1]
    # A broad distribution: all bins above the one where the mass is reached, and the best of that one.
    top = float(keys.max())
    low = float(np.min(keys, where=keys > -np.inf, initial=top))
    bins = (np.maximum(keys, np.float32(low)) - np.float32(top)) * np.float32((1 - _BINS) / max(top - low, 1e-30))
    bins = bins.astype(np.int32)
    above = np.cumsum(np.bincount(bins, weights, _BINS))
    edge = min(int(np.searchsorted(above, needed)), _BINS - 1)
    last = np.flatnonzero(bins == edge)
    last = last[np.argsort(-keys[last], kind="stable")]
    mass = np.cumsum(weights[last], dtype=np.float64) + (above[edge - 1] if edge else 0)
    return np.concatenate([np.flatnonzero(bins < edge), last[: np.searchsorted(mass, needed) + 1]])


def draw(weights: np.ndarray, at: float) -> int:
    """A position of f32 `[n]` weights, in proportion to them.

    Args:
        weights: not negative.
        at: from 0 to below 1, uniformly distributed.
    """
    masses = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)), dtype=np.float64)
    wanted = at * masses[-1]
    block = min(int(np.searchsorted(masses, wanted, side="right")), len(masses) - 1)
    start = block * _BLOCK
    inside = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    within = wanted - (masses[block - 1] if block else 0)
    place = start + min(int(np.searchsorted(inside, within, side="right")), len(inside) - 1)
    while weights[place] == 0:  # rounding at the end of a block may lead to a position without weight
        place -= 1
    return place
