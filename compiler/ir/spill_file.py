"""Temporary files for large constants that passes make, so that builds need less memory."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from contextlib import suppress

import numpy as np

from occ.runtime.mapped_arrays import mapped_file

_LEAST = 1 << 20  # minimum bytes of an array
_SEGMENT = 1 << 28  # bytes of a file, which only takes the disk space that is written


class SpillFile:
    """The temporary files of one module.

    They are unnamed, and are removed with the last array in them. Freed space is reused: touching new memory costs more
    than everything else here.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def keep(self, data: np.ndarray) -> np.ndarray:
        """An array in a temporary file, read-only.

        The array itself if it is small, in a file already, or the disk is full.
        """
        if data.nbytes < _LEAST or mapped_file(data) is not None or data.dtype.hasobject:
            return data
        with suppress(OSError):
            return self._write(np.ascontiguousarray(data))
        return data

    def _write(self, data: np.ndarray) -> np.ndarray:
        size = -(-data.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        for segment in self._segments:
            if (start := segment.take(size)) is not None:
                return segment.write(data, start, size)
        self._segments.append(_Segment(max(_SEGMENT, size)))
        return self._write(data)


class _Segment:
    """A temporary file, mapped read-only."""

    def __init__(self, size: int) -> None:
        with tempfile.TemporaryFile() as f:
            os.ftruncate(f.fileno(), size)
            self._map = mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ)
            self._file = os.dup(f.fileno())
        weakref.finalize(self, os.close, self._file)
        self._free = [(0, size)]  # (start, end) of free space, in order

    def take(self, size: int) -> int | None:
        """The start of free space of a given size: reused space comes first."""
        for k, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[k : k + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def write(self, data: np.ndarray, start: int, size: int) -> np.ndarray:
        """The array as stored in the file; its space is free again once nothing references it."""
        left = data.reshape(-1).view(np.uint8).data
        while left:
            left = left[os.pwrite(self._file, left, start + data.nbytes - len(left)) :]
        made = np.frombuffer(self._map, np.uint8, data.nbytes, start)
        weakref.finalize(made, self._leave, start, start + size)
        return made.view(data.dtype).reshape(data.shape)

    def _leave(self, start: int, end: int) -> None:
        merged: list[tuple[int, int]] = []
        for a, b in sorted([*self._free, (start, end)]):
            if merged and merged[-1][1] == a:
                merged[-1] = merged[-1][0], b
            else:
                merged.append((a, b))
        self._free = merged
