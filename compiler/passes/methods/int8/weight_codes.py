"""Symmetric 8-bit quantisation of a constant matrix, per column."""

from __future__ import annotations

import numpy as np

_MOST = 127
_SAMPLE = 16  # rows that suffice to rule out most columns as multiples of a step
_NEAR = 1e-3  # deviation from a whole step that f32 arithmetic may cause, in steps


def column_codes(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`w` in f32, `[K, N]`, as codes in i8 and steps in f32, `[N]`, so that `codes * steps` approximates `w`.

    The step is 1/127 of a column's largest magnitude, and codes round to nearest. A column of exact multiples of a
    step, such as one that a model stores in 8 bits, gets exactly those codes.
    """
    peak = np.abs(w).max(0, initial=0.0).astype(np.float32)
    steps = np.where(peak > 0, peak, 1) / np.float32(_MOST)
    rows = np.random.default_rng(0).permutation(w.shape[0])[:_SAMPLE]
    few = w[rows]
    open_ = np.flatnonzero(peak > 0)
    for most in range(_MOST + 1, 0, -1):
        step = peak[open_] / np.float32(most)
        found = open_[_is_whole(few[:, open_], step)]
        found = found[_is_whole(w[:, found], peak[found] / np.float32(most))] if found.size else found
        if most > _MOST and found.size:  # -128 is a code, and 128 is not
            found = found[w[:, found].max(0) < peak[found]]
        steps[found] = peak[found] / np.float32(most)
        open_ = np.setdiff1d(open_, found, assume_unique=True)
        if not open_.size:
            break
    return np.rint(w / steps).astype(np.int8), steps.astype(np.float32)


def _is_whole(w: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Which columns are exact multiples of their steps."""
    n = w / step
    return np.all(np.abs(n - np.rint(n)) < _NEAR, axis=0)
