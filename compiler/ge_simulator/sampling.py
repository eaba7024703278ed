"""Simulates GE's GridSampler2D, as torch.nn.functional.grid_sample defines it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Node

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]


def _position(v: np.ndarray, size: int, corners: bool, padding: str) -> np.ndarray:
    """Coordinates from -1 to 1 as positions, moved inside according to the padding."""
    at = (v + 1) / 2 * (size - 1) if corners else ((v + 1) * size - 1) / 2
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(at)
        away = np.abs(at - low)
        turns = np.floor(away / span)
        rest = away - turns * span
        at = np.where(turns % 2 == 0, rest + low, span - rest + low)
    return at if padding == "zeros" else np.clip(at, 0, size - 1)


def _read(x: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """x[n, :, row, column], zero outside."""
    h, w = x.shape[2:]
    inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
    n = np.arange(x.shape[0])[:, None, None]
    values = x[n, :, np.clip(row, 0, h - 1).astype(np.int64), np.clip(column, 0, w - 1).astype(np.int64)]
    return np.where(inside[..., None], values, 0).transpose(0, 3, 1, 2)


def _grid_sampler(node: Node, x: Arrays) -> np.ndarray:
    v, grid = x
    a = node.attrs
    corners, padding = a.get("align_corners", False), a.get("padding_mode", "zeros")
    column, row = (_position(grid[..., k], v.shape[3 - k], corners, padding) for k in (0, 1))
    mode = a.get("interpolation_mode", "bilinear")
    if mode == "nearest":
        return _read(v, np.rint(row), np.rint(column)).astype(v.dtype)
    if mode != "bilinear":
        raise BadGraph(f"{node.name}: interpolation {mode}")
    top, left = np.floor(row), np.floor(column)
    total = np.zeros((*v.shape[:2], *row.shape[1:]), v.dtype)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = (1 - np.abs(row - top - dy)) * (1 - np.abs(column - left - dx))
            total += _read(v, top + dy, left + dx) * weight[:, None].astype(v.dtype)
    return total


KERNELS: dict[str, Kernel] = {"GridSampler2D": _grid_sampler}
