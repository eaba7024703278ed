"""Random tensors; with a seed, the same as in the ONNX reference."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.runtime.signature import numpy_dtype


def _generator(seed: float | None) -> np.random.RandomState:
    return np.random.RandomState(None if seed is None or np.isnan(seed) else int(seed))


def _dtype(a: SimpleNamespace, default: np.dtype | type) -> np.dtype:
    return np.dtype(default) if a.dtype is None else numpy_dtype(a.dtype)


def normal(*, a: SimpleNamespace) -> np.ndarray:
    return _generator(a.seed).normal(a.mean, a.scale, a.shape).astype(_dtype(a, np.float32))


def uniform(*, a: SimpleNamespace) -> np.ndarray:
    return _generator(a.seed).uniform(a.low, a.high, a.shape).astype(_dtype(a, np.float32))


def normal_like(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    return np.asarray(_generator(a.seed).normal(a.mean, a.scale, x.shape)).astype(_dtype(a, x.dtype))


def uniform_like(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    return np.asarray(_generator(a.seed).uniform(a.low, a.high, x.shape)).astype(_dtype(a, x.dtype))


def bernoulli(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    drawn = _generator(a.seed).binomial(1, p=np.asarray(x, np.float64))
    return np.asarray(drawn).astype(_dtype(a, x.dtype))


def multinomial(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    random = _generator(a.seed)
    weights = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    rows = [random.choice(x.shape[1], a.sample_size, p=row / row.sum()) for row in weights]
    return np.array(rows).reshape(x.shape[0], a.sample_size).astype(_dtype(a, np.int32))


ROUTINES: dict[str, Callable[..., Any]] = {
    "RandomNormal": normal, "RandomUniform": uniform, "RandomNormalLike": normal_like,
    "RandomUniformLike": uniform_like, "Bernoulli": bernoulli, "Multinomial": multinomial,
}  # fmt: skip
