"""`aligned_zeros` takes no memory before something is written there, whatever the heap holds."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest

from occ.runtime.buffers import aligned_zeros
from occ.runtime.errors import RunError

_SIZE = 3 << 20  # of one cache of a small language model


def _resident_pages(a: np.ndarray) -> int:
    """How many of the whole pages of an array are in memory."""
    first, end = -(-a.ctypes.data // mmap.PAGESIZE), (a.ctypes.data + a.nbytes) // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(8 * first)
        return int((np.frombuffer(pages.read(8 * (end - first)), np.uint64) >> 63).sum())


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted by Linux")
def test_zeros_are_not_taken_from_used_memory_of_the_heap() -> None:
    """glibc takes blocks up to the largest that was ever freed from its heap, and clears used ones."""
    np.ones(8 * _SIZE, np.uint8)
    blocks = [np.ones(_SIZE if k % 2 else 1 << 16, np.uint8) for k in range(16)]
    assert _resident_pages(blocks[1]) > 0
    kept = blocks[::2]  # between the large ones, so that those stay in the heap
    del blocks
    zeros = [aligned_zeros((_SIZE // 4,), np.dtype(np.float32)) for _ in range(4)]
    assert [_resident_pages(z) for z in zeros] == [0] * 4
    assert len(kept) == 8


def test_zeros_are_aligned_and_can_be_written() -> None:
    zeros = aligned_zeros((3, 5), np.dtype(np.float32))
    assert zeros.shape == (3, 5)
    assert zeros.ctypes.data % 64 == 0
    assert not zeros.any()
    zeros[:] = 1
    assert zeros.all()
    assert aligned_zeros((0, 5), np.dtype(np.float32)).shape == (0, 5)


def test_zeros_that_do_not_exist_are_one_error() -> None:
    with pytest.raises(RunError, match="OCC0505"):
        aligned_zeros((1 << 61,), np.dtype(np.uint8))
