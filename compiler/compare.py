"""Compares arrays within tolerances, for `occ diff`, benchmarks, validation and rule proofs.

A difference is relative to the largest finite expected magnitude, since rounding errors come from sums of such values.
Equal infinities and two NaNs are equal; a value that is finite on one side only is infinitely far off.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def largest(expected: np.ndarray) -> float:
    """The largest finite magnitude; 0 if there is none."""
    values = _wide(expected)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def gaps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Elementwise distances of two arrays, as f64: 0 where equal, else positive or inf."""
    a, b = _wide(got), _wide(expected)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest gap relative to the largest expected value; infinity if shapes, types, or texts differ."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if got.dtype.kind in "OSU":
        return 0.0 if bool(np.all(got == expected)) else float("inf")
    return float(gaps(got, expected).max(initial=0.0)) / (largest(expected) or 1.0)


def first_difference(
    got: np.ndarray, expected: np.ndarray, tolerance: float, least: float = 0.0
) -> tuple[int, ...] | None:
    """Where two arrays of one shape differ first; None if they do not.

    Args:
        got: integers, bools and texts must be equal; floats may deviate.
        expected: the expected values.
        tolerance: how much floats may deviate, relative to the largest expected value.
        least: lower bound for that value.
    """
    if got.dtype.kind in "OSUbiu":
        wrong = np.argwhere(got != expected)
    else:
        wrong = np.argwhere(~(gaps(got, expected) <= tolerance * max(largest(expected), least)))
    return tuple(int(i) for i in wrong[0]) if len(wrong) else None


def _wide(values: np.ndarray) -> Any:
    with np.errstate(invalid="ignore"):  # of signalling NaNs, which memory that nothing wrote may have
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
