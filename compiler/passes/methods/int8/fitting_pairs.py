"""Orders of the rows of a byte weight whose pairs of products fit in 16 bits."""

from __future__ import annotations

import numpy as np

_MOST = 128  # of the sum of two weights of one sign: 255 times it fits in i16
_SHARE = 4  # at most a quarter of the rows is repeated: more cost what products of 16 bits cost
_ROUNDS = 4  # repeated rows are paired too, and may have to be repeated again
_TRIES = 64  # rows that a row is compared with, to find one that it can be paired with
_ONCE = 16  # of them, at once


def fitting_pairs(w: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A weight `i8[K, N]` with its rows reordered, some repeated, and the row of `w` that each belongs to.

    `x @ w` is `x[rows] @ made`. Rows that do not fit together are paired with others. Where none fits, the first of two
    keeps as much of its weight as fits, and a repeated row has what is left. Trained weights are far from uniform: in
    int8 LSTMs less than 0.1 % of all pairs are too large.

    None if more than a quarter of the rows would be repeated.
    """
    depth = w.shape[0]
    rows = np.arange(depth + depth % 2) % depth
    made = np.concatenate([w, np.zeros_like(w[: depth % 2])]).astype(np.int16)
    order = _paired(made)
    made, rows = made[order], rows[order]
    parts, origins = list[np.ndarray](), list[np.ndarray]()
    for _ in range(_ROUNDS):
        kept, left = _limited(made)
        parts.append(kept)
        origins.append(rows)
        over = np.flatnonzero(left.any(1))
        if not over.size:
            return np.concatenate(parts).astype(np.int8), np.concatenate(origins)
        count = over.size + over.size % 2
        made = np.zeros((count, w.shape[1]), np.int16)
        made[: over.size], rows = left[over], np.resize(rows[2 * over], count)
        if (sum(map(len, parts)) + count - depth) * _SHARE > depth:
            return None
    return None


def _paired(w: np.ndarray) -> np.ndarray:
    """An order of rows: pairs that fit stay, and other large rows are paired with small ones."""
    fits = ~_limited(w)[1].any(1)
    peaks = np.abs(w).max(1)
    kept = np.flatnonzero(fits)
    kept = kept[np.argsort(peaks[2 * kept] + peaks[2 * kept + 1], kind="stable")]
    apart = np.concatenate([np.flatnonzero(~fits), kept[: fits.size - kept.size]])  # small pairs give partners
    open_ = np.stack([2 * apart, 2 * apart + 1], 1).ravel()
    open_ = open_[np.argsort(peaks[open_], kind="stable")]
    made, lone = list[int](), list[int]()
    while open_.size:
        row, open_ = open_[-1], open_[:-1]
        found = _partner(w, row, open_[:_TRIES])
        if found is None:
            lone.append(row)
            if len(lone) * _SHARE > w.shape[0]:
                return np.arange(w.shape[0])
        else:
            made += [row, open_[found]]
            open_ = np.delete(open_, found)
    whole = np.sort(kept[fits.size - kept.size :])
    return np.concatenate([np.stack([2 * whole, 2 * whole + 1], 1).ravel(), np.array([*made, *lone], np.int64)])


def _partner(w: np.ndarray, row: int, others: np.ndarray) -> int | None:
    """The position of the first other row that a row fits together with."""
    for at in range(0, others.size, _ONCE):
        some = w[others[at : at + _ONCE]]
        most, least = np.maximum(some, 0) + np.maximum(w[row], 0), np.minimum(some, 0) + np.minimum(w[row], 0)
        fits = (most.max(1) <= _MOST) & (least.min(1) >= -_MOST)
        if fits.any():
            return at + int(fits.argmax())
    return None


def _limited(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows whose first one is limited so that they fit, and what it lacks: `[K, N]` and `[K/2, N]`."""
    first, second = w[0::2], w[1::2]
    fitting = np.clip(first, -_MOST - np.minimum(second, 0), _MOST - np.maximum(second, 0))
    kept = w.copy()
    kept[0::2] = fitting
    return kept, first - fitting
