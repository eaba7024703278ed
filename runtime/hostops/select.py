"""NonZero, Unique, Compress, NonMaxSuppression, Dropout."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def nonzero(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Indices, i64[rank, count], in row-major order."""
    return np.array(np.nonzero(np.atleast_1d(x) != 0), np.int64).reshape(max(x.ndim, 1), -1)


def unique(x: np.ndarray, *, a: SimpleNamespace) -> tuple[np.ndarray, ...]:
    """Values, first positions, inverse, counts; in order of value, or of first occurrence if `a.sorted` is 0."""
    # numpy has no rows of strings, and no row with a NaN is equal to another; but it has rows of codes.
    placed = x.dtype.kind == "O" or (x.dtype.kind == "f" and a.axis is not None)
    words, keys = np.unique(x, return_inverse=True) if placed else (x, x)
    values, first, inverse, counts = np.unique(
        keys.reshape(x.shape), return_index=True, return_inverse=True, return_counts=True, axis=a.axis
    )
    values = words[values] if placed else values
    inverse = inverse.reshape(-1)
    if not a.sorted:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        axis = 0 if a.axis is None else a.axis
        values, first, counts = np.take(values, order, axis=axis), first[order], counts[order]
        inverse = rank[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def compress(x: np.ndarray, condition: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """The slices where the condition holds; what either has past the end of the other is left out."""
    source, axis = (x.reshape(-1), 0) if a.axis is None else (x, a.axis)
    if condition.ndim != 1:
        raise ValueError(f"the condition has rank {condition.ndim}, not 1")
    return np.take(source, np.flatnonzero(condition[: source.shape[axis]]), axis=axis)


def non_max_suppression(
    boxes: np.ndarray, scores: np.ndarray, limit: np.ndarray | None = None, iou: np.ndarray | None = None,
    score: np.ndarray | None = None, *, a: SimpleNamespace,
) -> np.ndarray:  # fmt: skip
    """Boxes f32[batch, n, 4], scores f32[batch, classes, n] -> i64[count, 3]; without a limit nothing is selected."""
    most = 0 if limit is None else int(np.asarray(limit).reshape(-1)[0])
    overlap = np.float32(0) if iou is None else np.asarray(iou).reshape(-1)[0]
    least = None if score is None else np.asarray(score).reshape(-1)[0]
    chosen: list[tuple[int, int, int]] = []
    with np.errstate(all="ignore"):
        for batch, per_class in enumerate(scores):
            low, high = _corners(boxes[batch], a.center_point_box)
            for label, values in enumerate(per_class):
                kept = _suppress(values, low, high, most, overlap, least)
                chosen += [(batch, label, k) for k in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, center: int) -> tuple[np.ndarray, np.ndarray]:
    if center:  # x, y, width, height
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return middle - half, middle + half
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _suppress(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray, most: int, overlap: np.floating, least: np.floating | None
) -> list[int]:
    """Non-maximum suppression in f32, as in other runtimes: adjacent boxes must not overlap by rounding.

    Boxes without area overlap nothing.
    """
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    area = np.prod(high - low, axis=1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        size = np.minimum(high[best], high[order]) - np.maximum(low[best], low[order])
        common = np.prod(size, axis=1)
        total = area[best] + area[order] - common
        both = (size > 0).all(1) & (common > 0) & (area[best] > 0) & (area[order] > 0) & (total > 0)
        order = order[~(both & (common / total > overlap))]
    return kept


def dropout(
    x: np.ndarray, ratio: np.ndarray | None = None, training: np.ndarray | None = None, *, a: SimpleNamespace
) -> tuple[np.ndarray, np.ndarray]:
    """The result and the mask of kept elements."""
    rate = 0.5 if ratio is None else float(np.asarray(ratio).reshape(()))
    if training is None or not bool(np.asarray(training).reshape(())) or rate == 0:
        return x, np.ones(x.shape, np.bool_)
    random = np.random.RandomState(a.seed)  # the generator of the ONNX reference, so that seeds mean the same
    mask = random.uniform(0, 1.0, x.shape) >= rate
    scale = np.float64(1 / (1 - rate)) if rate < 1 else np.float64(0)
    return (mask * x * scale).astype(x.dtype), mask


ROUTINES: dict[str, Callable[..., Any]] = {
    "NonZero": nonzero, "Unique": unique, "Compress": compress, "NonMaxSuppression": non_max_suppression,
    "Dropout": dropout,
}  # fmt: skip
