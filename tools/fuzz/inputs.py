"""Values for which results are finite: by element type, and within the domain of the operator that reads them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.random import Generator

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
WEIGHTS: dict[np.dtype[Any], float] = {
    np.dtype(k): w
    for k, w in (
        (np.float32, 60), (np.float16, 9), (np.float64, 6), (ml_dtypes.bfloat16, 2), (np.int64, 7), (np.int32, 5),
        (np.int8, 3), (np.uint8, 3), (np.bool_, 3), (np.int16, 1), (np.uint16, 1), (np.uint32, 1), (np.uint64, 1),
    )
}  # fmt: skip

# What operators take without NaN or infinity, for each operand that has a domain. A search finds the rest: a node whose result
# is not finite is not kept.
DOMAINS: dict[tuple[str, int], tuple[float, float]] = {
    ("Log", 0): (0.01, 99), ("Sqrt", 0): (0, 999), ("Reciprocal", 0): (0.1, 99), ("Asin", 0): (-0.95, 0.95),
    ("Acos", 0): (-0.95, 0.95), ("Acosh", 0): (1.1, 99), ("Atanh", 0): (-0.95, 0.95), ("Exp", 0): (-20, 8),
    ("Sinh", 0): (-8, 8), ("Cosh", 0): (-8, 8), ("Tan", 0): (-1.4, 1.4), ("Div", 1): (0.5, 99), ("Mod", 1): (1, 99),
    ("Pow", 0): (0.1, 9), ("Pow", 1): (-3, 3), ("ReduceLogSum", 0): (0.01, 99), ("ReduceProd", 0): (-2, 2),
    ("ReduceLogSumExp", 0): (-9, 9), ("BitShift", 1): (0, 5), ("CumProd", 0): (-2, 2),
    ("ReduceL2", 0): (-99, 99), ("ReduceSumSquare", 0): (-99, 99),
}  # fmt: skip


def limit(dtype: np.dtype[Any]) -> float:
    """The largest magnitude that a result may have to be read further."""
    return 2e3 if dtype == F16 else 1e6 if is_float(dtype) else 2.0**30


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is one of real floating point numbers."""
    return dtype.kind == "f" or dtype == BF16


def is_tame(x: np.ndarray) -> bool:
    """Whether all values are finite and far from the end of their type."""
    if x.dtype.kind in "bOUSV" and x.dtype != BF16:
        return True
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(x.astype(np.float64)) <= limit(x.dtype)))


def values(
    rng: Generator, dtype: np.dtype[Any], shape: tuple[int, ...], low: float = -9, high: float = 9
) -> np.ndarray:
    """Random values of a type within bounds: normal floats with exact zeros and ones among them, small integers."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if is_float(dtype):
        x = np.asarray(rng.standard_normal(shape)) * 1.5
        whole = rng.random(shape) < 0.06
        return np.clip(np.where(whole, rng.integers(-2, 3, shape), x), low, high).astype(dtype)
    info = np.iinfo(dtype)
    lowest, highest = max(int(np.ceil(low)), int(info.min)), min(int(high), int(info.max))
    return rng.integers(lowest, max(lowest, highest), shape, endpoint=True).astype(dtype)


def within(x: np.ndarray, low: float, high: float) -> bool:
    """Whether all values are within bounds."""
    return not x.size or bool(np.min(x) >= low and np.max(x) <= high)


def fits_into(x: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether ONNX says what values are as another type: it leaves open what floats out of range are as integers."""
    if not is_float(x.dtype) or dtype.kind not in "iu":
        return True
    wide, info = np.trunc(x.astype(np.float64)), np.iinfo(dtype)
    return bool(np.all((wide >= float(info.min)) & (wide < float(info.max) + 1)))
