"""Arrays that lie in mapped files: their pages take memory only while they are in use."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.lib.array_utils import byte_bounds

_HUGE = 2 << 20  # bytes of a page of the larger kind


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


def in_huge_pages(pieces: Iterable[memoryview], start: int = 0) -> Iterator[bytes]:
    """The same bytes in parts that end at multiples of 2 MiB of the file that they are written to, from `start` on.

    Linux keeps what one call writes in pages as large as its place allows, where the file system can (ext4 from 6.16 on, XFS).
    A run then maps 2 MiB at a time: SmolLM2 in four bits writes a token in 4.6 ms and not in 5.0 (one thread of a Zen 4, in a
    virtual machine).
    """
    block = bytearray()
    for piece in pieces:
        rest = piece
        while rest:
            room = _HUGE - (start + len(block)) % _HUGE
            block += rest[:room]
            if len(rest) >= room:
                yield bytes(block)
                start, block = start + len(block), bytearray()
            rest = rest[room:]
    if block:
        yield bytes(block)
