"""Arrays that lie in mapped files: their pages take memory only while they are in use."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import numpy as np
from numpy.lib.array_utils import byte_bounds


def mapped_file(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file that an array looks into."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


def mapped_files(arrays: Iterable[np.ndarray]) -> set[mmap.mmap]:
    """The mapped files that arrays look into."""
    return {f for f in map(mapped_file, arrays) if f is not None}


def release(arrays: Iterable[np.ndarray]) -> None:
    """Give back the pages of arrays that can be read from their files again; other arrays stay as they are."""
    for array in arrays:
        if array.flags.writeable or array.size == 0 or (file := mapped_file(array)) is None:
            continue
        first, last = byte_bounds(array)
        start = int(first) - int(np.frombuffer(file, np.uint8, 1).ctypes.data)
        start -= (skipped := start % mmap.PAGESIZE)
        file.madvise(mmap.MADV_DONTNEED, start, int(last) - int(first) + skipped)
