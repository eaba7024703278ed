"""Memory of a run: one arena, shared by tensors with disjoint lifetimes."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from occ.runtime.errors import RunError

ALIGNMENT = 64


def assign_offsets(sizes: Sequence[int], live: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Offsets such that tensors alive at the same step do not overlap: greedy by size, best fit.

    Args:
        sizes: bytes of each tensor.
        live: first and last step of each tensor, inclusive.

    Returns:
        The offsets, multiples of 64, and the size of the arena. The method is that of Pisarchyk and Lee,
        "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5.
    """
    offsets = [0] * len(sizes)
    placed = _Lives(live)
    arena = 0
    for k in sorted(range(len(sizes)), key=lambda i: (-sizes[i], live[i], i)):
        need = -(-max(sizes[k], 1) // ALIGNMENT) * ALIGNMENT
        clash = sorted(
            (offsets[p], offsets[p] + -(-max(sizes[p], 1) // ALIGNMENT) * ALIGNMENT) for p in placed.meeting(k)
        )
        best, smallest, end = -1, -1, 0
        for start, stop in clash:
            gap = start - end
            if gap >= need and (smallest < 0 or gap < smallest):
                best, smallest = end, gap
            end = max(end, stop)
        offsets[k] = best if best >= 0 else end
        placed.add(k)
        arena = max(arena, offsets[k] + need)
    return offsets, arena


class _Lives:
    """Queries which tensors are alive together, at a cost proportional to the answer: plans have tens of thousands.

    Args:
        live: first and last step of each tensor.
    """

    def __init__(self, live: Sequence[tuple[int, int]]) -> None:
        rank = {step: k for k, step in enumerate(sorted({step for ends in live for step in ends}))}
        self._live = [(rank[first], rank[last]) for first, last in live]
        self._begin: list[list[int]] = [[] for _ in rank]  # those that start at each step
        self._cover: list[list[int]] = [
            [] for _ in range(2 * len(rank))
        ]  # a segment tree: those that cover a node's steps

    def add(self, k: int) -> None:
        """Add a tensor to those that queries return."""
        first, last = self._live[k]
        self._begin[first].append(k)
        low, high = first + len(self._begin), last + len(self._begin) + 1
        while low < high:
            if low % 2:
                self._cover[low].append(k)
                low += 1
            if high % 2:
                high -= 1
                self._cover[high].append(k)
            low, high = low // 2, high // 2

    def meeting(self, k: int) -> list[int]:
        """Tensors whose lifetime overlaps that of a given one."""
        first, last = self._live[k]
        found = [other for step in range(first + 1, last + 1) for other in self._begin[step]]
        node = first + len(self._begin)
        while node:
            found += self._cover[node]
            node //= 2
        return found


def raw_bytes(size: int, make: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
    """`size` uninitialised bytes, u8[size], or what `make` puts there.

    Raises:
        RunError: OCC0505 there is no such memory.
    """
    try:
        return make(size, np.uint8)
    except (MemoryError, OSError, ValueError, OverflowError):  # the latter two if the size exceeds the address space
        text = f"a run needs {size} bytes of memory at once, which cannot be allocated"
        raise RunError("OCC0505", text, "it depends on the shapes of the inputs and the sizes of the model") from None


def aligned_bytes(size: int) -> np.ndarray:
    """`size` bytes, u8[size], at a multiple of 64, with space for at least one vector after them.

    Raises:
        RunError: OCC0505 there is no such memory.
    """
    raw = raw_bytes(size + 2 * ALIGNMENT)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array at an address that is a multiple of 64.

    Raises:
        RunError: OCC0503 an extent is negative; OCC0505 there is no such memory.
    """
    if min(shape, default=0) < 0:
        raise RunError("OCC0503", f"a tensor would have the shape {list(shape)}")
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return aligned_bytes(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def aligned_zeros(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros at an address that is a multiple of 64, which take no memory before something is written there.

    Raises:
        RunError: OCC0505 there is no such memory.
    """
    size = prod(shape) * dtype.itemsize
    return raw_bytes(size + 2 * ALIGNMENT, _mapped)[:size].view(dtype).reshape(shape)


def _mapped(size: int, dtype: type[np.uint8]) -> np.ndarray:
    """Zeros in pages of their own: `calloc`, which `np.zeros` calls, may clear used memory of a heap."""
    return np.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), dtype)
