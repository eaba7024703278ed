"""Simulates GE operators with data-dependent result sizes, and NonMaxSuppressionV7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Node, cpp_type

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]


def _non_zero(node: Node, x: Arrays) -> np.ndarray:
    """Positions of the non-zero elements: one row each, or with `transpose` one column."""
    found = np.argwhere(x[0]).astype(cpp_type(node.attrs.get("dtype", 9)))
    return np.ascontiguousarray(found.T) if node.attrs.get("transpose", False) else found


def _unique(node: Node, x: Arrays) -> list[np.ndarray]:
    """Distinct elements in ascending order, the index of each element among them, and their counts."""
    if x[0].ndim != 1 or not node.attrs.get("sorted", True):
        raise BadGraph(f"{node.name}: the order of the results of {node.type} is not known")
    kind = cpp_type(node.attrs.get("out_idx", 9))
    values, inverse, counts = np.unique(x[0], return_inverse=True, return_counts=True)
    return [values, inverse.reshape(x[0].shape).astype(kind), counts.astype(kind)]


def _corners(box: np.ndarray, center: bool) -> np.ndarray:
    """Boxes [n, 4] by two corners, the lower first."""
    if center:
        half = box[:, 2:] / 2
        return np.concatenate([box[:, :2] - half, box[:, :2] + half], 1)
    return np.concatenate([np.minimum(box[:, :2], box[:, 2:]), np.maximum(box[:, :2], box[:, 2:])], 1)


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The intersection of a box [4] with others [n, 4], relative to their union."""
    sides = np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0)
    areas = [np.prod(b[..., 2:] - b[..., :2], -1) for b in (box, others)]
    common = np.prod(sides, -1)
    whole = areas[0] + areas[1] - common
    return np.where(whole > 0, common / np.where(whole > 0, whole, 1), 0)


def _selected(boxes: np.ndarray, scores: np.ndarray, limit: int, iou: float, least: float) -> list[int]:
    """The best boxes of a class that overlap no better one."""
    chosen: list[int] = []
    for k in np.argsort(-scores, kind="stable").tolist():
        if len(chosen) >= limit or not scores[k] > least:
            break
        if not chosen or not np.any(_overlap(boxes[k], boxes[chosen]) > iou):
            chosen.append(k)
    return chosen


def _boxes(node: Node, x: Arrays) -> np.ndarray:
    """Rows of batch, class and box.

    Each class is padded with -1 to the maximum, as in the older kernels.
    """
    boxes, scores = x[0], x[1]
    given = [None if len(x) <= k or x[k] is None else x[k].reshape(-1)[0] for k in (2, 3, 4)]
    limit, iou, least = (0 if v is None else v for v in given)
    rows, (batches, classes, _) = node.attrs.get("max_boxes_size", 0), scores.shape
    _check_numbers(node, x[5] if len(x) > 5 else None, scores.shape)
    each, made = -(-rows // (batches * classes)), np.full((rows, 3), -1, np.int32)
    for b in range(batches):
        corners = _corners(boxes[b], bool(node.attrs.get("center_point_box", 0)))
        for c in range(classes):
            chosen = _selected(corners, scores[b, c], min(int(limit), each), float(iou), float(least))
            start = (b * classes + c) * each
            made[start : start + len(chosen)] = [(b, c, k) for k in chosen] or np.zeros((0, 3))
    return made


def _check_numbers(node: Node, numbers: np.ndarray | None, shape: tuple[int, ...]) -> None:
    """The kernels take batch, class and box numbers from `index_id`.

    Raises:
        BadGraph: it is missing, or has others.
    """
    at = np.indices(shape)
    wanted = np.stack([at[0], at[1], at[2] // 1000, at[2] % 1000], -1)
    if numbers is None or numbers.shape != wanted.shape or not np.array_equal(numbers, wanted):
        raise BadGraph(f"{node.name}: `index_id` of {node.type} does not number the boxes {list(shape)}")


KERNELS: dict[str, Kernel] = {
    "NonMaxSuppressionV7": _boxes,
    "NonZero": _non_zero,
    "UniqueWithCountsAndSorting": _unique,
}
