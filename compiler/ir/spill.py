"""Large constants that passes make lie in temporary files, so that the memory of a build does not grow with its model."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress

import numpy as np
from occ.runtime.mapped import mapped_file

_LEAST = 1 << 20  # bytes of an array that is worth it
_SEGMENT = 1 << 28  # bytes of a file, which takes space on the disk only as far as it is written


class Spill:
    """The temporary files of one module. They have no name, and go with the last array that lies in them."""

    def __init__(self) -> None:
        self._file, self._map = -1, None
        self._end = self._size = 0

    def keep(self, data: np.ndarray) -> np.ndarray:
        """The same array in a file, read-only; itself if it is small, in a file already, or the disk is full."""
        if data.nbytes < _LEAST or mapped_file(data) is not None or data.dtype.hasobject:
            return data
        with suppress(OSError):
            return self._write(np.ascontiguousarray(data))
        return data

    def _write(self, data: np.ndarray) -> np.ndarray:
        if self._map is None or self._end + data.nbytes > self._size:
            self._open(max(_SEGMENT, data.nbytes))
        assert self._map is not None
        start, left = self._end, data.reshape(-1).view(np.uint8).data
        while left:
            left = left[os.pwrite(self._file, left, start + data.nbytes - len(left)) :]
        self._end += -(-data.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return np.frombuffer(self._map, np.uint8, data.nbytes, start).view(data.dtype).reshape(data.shape)

    def _open(self, size: int) -> None:
        self.close()
        with tempfile.TemporaryFile() as f:
            os.ftruncate(f.fileno(), size)
            self._map = mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ)
            self._file = os.dup(f.fileno())
        self._end, self._size = 0, size

    def close(self) -> None:
        """Write no more to the present file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._map = -1, None

    def __del__(self) -> None:
        self.close()
