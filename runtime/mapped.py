"""Memory-mapped arrays, whose pages can be released."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.lib.array_utils import byte_bounds

_HUGE = 2 << 20  # bytes of a page of the larger kind
WORTH_READING_AHEAD = 8 << 20  # bytes from which a thread pays
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which `mmap` does not name


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
    """Bytes in pieces that end at multiples of 2 MiB of their file.

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


def read_ahead(whole: Sequence[np.ndarray], in_part: Sequence[np.ndarray] = ()) -> threading.Thread | None:
    """Have mapped arrays read from their files before a run waits for each page that is missing.

    With 540 MB of weights that the system had dropped from its memory, a first run of 128 tokens took 620 ms, and takes 430
    with this (medians of six; 290 when all is there; one thread of a Zen 4).

    Args:
        whole: what each run uses, in order.
        in_part: what a run uses in places: it is mapped in small pages, so that others take no memory.

    Returns:
        The thread that reads; None where it is too little to pay, or more than half of the memory of the machine, where later
        pages would drive out those before.
    """
    whole = [a for a in whole if a.size and mapped_file(a) is not None]
    if not hasattr(mmap, "MADV_HUGEPAGE") or not WORTH_READING_AHEAD <= sum(a.nbytes for a in whole) <= _memory() // 2:
        return None
    for array in in_part:
        if array.size and mapped_file(array) is not None:
            _advise(array, mmap.MADV_NOHUGEPAGE)
    thread = threading.Thread(target=_read, args=(whole,), name="occ-read-ahead", daemon=True)
    thread.start()
    return thread


def _memory() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def _read(arrays: Sequence[np.ndarray]) -> None:
    for array in arrays:
        _advise(array, mmap.MADV_HUGEPAGE)
    for array in arrays:
        for start in range(0, array.nbytes, _HUGE):
            part = array.reshape(-1).view(np.uint8)[start : start + _HUGE]
            if not _is_cached(part):
                _advise(part, _POPULATE_READ)


def _is_cached(array: np.ndarray) -> bool:
    """Whether the page in which an array ends is in memory; read-ahead goes upwards."""
    found = ctypes.c_ubyte()
    last, _ = _pages(array.reshape(-1)[-1:])
    failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(last), ctypes.c_size_t(1), ctypes.byref(found))
    return bool(failed or found.value & 1)


def _advise(array: np.ndarray, advice: int) -> None:
    # not the method of `mmap`, which holds the interpreter while the disk is read
    start, size = _pages(array)
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_int(advice))


def _pages(array: np.ndarray) -> tuple[int, int]:
    """Where the page starts in which an array begins, and the bytes from there to the end of the array."""
    first, last = map(int, byte_bounds(array))
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    return start, last - start
