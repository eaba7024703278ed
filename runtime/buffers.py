"""Memory of a run: one arena in which tensors share bytes when they are not alive together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from occ.runtime.errors import RunError

ALIGNMENT = 64


def assign_offsets(sizes: Sequence[int], live: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Offsets such that tensors that are alive at the same step do not overlap: greedy by size, best fit.

    Args:
        sizes: bytes of each tensor.
        live: first and last step of each tensor, both included.

    Returns:
        The offsets, multiples of 64, and the size of the arena. The method is that of Pisarchyk and Lee,
        "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5.
    """
    offsets = [0] * len(sizes)
    placed: list[int] = []
    arena = 0
    for k in sorted(range(len(sizes)), key=lambda i: (-sizes[i], live[i], i)):
        need = -(-max(sizes[k], 1) // ALIGNMENT) * ALIGNMENT
        first, last = live[k]
        clash = sorted(
            (offsets[p], offsets[p] + -(-max(sizes[p], 1) // ALIGNMENT) * ALIGNMENT)
            for p in placed
            if live[p][0] <= last and first <= live[p][1]
        )
        best, smallest, end = -1, -1, 0
        for start, stop in clash:
            gap = start - end
            if gap >= need and (smallest < 0 or gap < smallest):
                best, smallest = end, gap
            end = max(end, stop)
        offsets[k] = best if best >= 0 else end
        placed.append(k)
        arena = max(arena, offsets[k] + need)
    return offsets, arena


def raw_bytes(size: int) -> np.ndarray:
    """`size` bytes, u8[size], of which nothing is known.

    Raises:
        RunError: OCC0505 there is no such memory.
    """
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError, OverflowError):  # of a size that no address reaches, the latter two
        text = f"a run needs {size} bytes of memory at once, which cannot be allocated"
        raise RunError("OCC0505", text, "the shapes of the inputs and the sizes of the model decide it") from None


def aligned_bytes(size: int) -> np.ndarray:
    """`size` bytes, u8[size], at an address that is a multiple of 64; at least one vector is allocated after them.

    Raises:
        RunError: OCC0505 there is no such memory.
    """
    raw = raw_bytes(size + 2 * ALIGNMENT)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """An array at an address that is a multiple of 64; its elements are whatever lay there."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return aligned_bytes(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
