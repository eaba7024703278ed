"""MurmurHash3 and DynamicTimeWarping of com.microsoft."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

_WORD = 0xFFFFFFFF


def _turned(v: int, by: int) -> int:
    return (v << by | v >> (32 - by)) & _WORD


def _murmur3(data: bytes, seed: int) -> int:
    """32-bit MurmurHash3: four bytes at a time, the remainder separately, then the length."""
    h = seed & _WORD
    whole = len(data) & ~3
    for at in range(0, len(data), 4):
        v = _turned(int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
        h ^= v
        if at < whole:
            h = (_turned(h, 13) * 5 + 0xE6546B64) & _WORD
    h ^= len(data)
    for by, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> by) * factor & _WORD
    return h ^ h >> 16


def murmur3_of_text(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Strings -> u32 of the same shape."""
    made = [
        _murmur3(s if isinstance(s, bytes) else s.encode("utf-8", "surrogateescape"), a.seed) for s in x.reshape(-1)
    ]
    return np.array(made, np.uint32).reshape(x.shape)


def dynamic_time_warping(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """f32[rows, columns] or f32[1, rows, columns] -> i32[2, n].

    Source: onnxruntime; a diagonal step is taken if it costs less than both others, then one along the rows.
    """
    rows, columns = x.shape[-2], x.shape[-1]
    costs = x.reshape(-1, columns)
    if len(costs) != rows or not x.size:
        raise ValueError(f"costs of shape {x.shape}")
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.full((rows + 1, columns + 1), -1)
    steps[0], steps[:, 0] = 2, 1
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            step = 0 if both < down and both < right else 1 if down < both and down < right else 2
            total[i, j] = costs[i - 1, j - 1] + (both, down, right)[step]
            steps[i, j] = step
    path: list[tuple[int, int]] = []
    i, j = rows, columns
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != 2), j - (step != 1)
    return np.array(path[::-1], np.int32).T


ROUTINES: dict[str, Callable[..., Any]] = {
    "murmur3_of_text": murmur3_of_text, "DynamicTimeWarping": dynamic_time_warping,
}  # fmt: skip
