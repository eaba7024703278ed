"""The state of a run through a native entry: the call, and the memory and arrays that it points to."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from occ.runtime.buffers import ALIGNMENT, aligned_bytes, raw_bytes
from occ.runtime.dataclass import dataclass
from occ.runtime.manifest import Manifest
from occ.runtime.native.call import ABI, EntryCall
from occ.runtime.native.callback import Callback
from occ.runtime.native.host_steps import HostSteps, Observer, Values
from occ.runtime.native.library import Library
from occ.runtime.native.loop_callbacks import LoopCallbacks
from occ.runtime.native.workers import Workers

_addressof = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


POOLED = 4096  # bytes of outputs that share memory, which lives as long as any of them
_MAPPED = 32 << 20  # bytes from which C libraries map memory for each allocation, and unmap it

# Replaces empty tensors: a kernel that joins several loads a first vector of each, and selects afterwards.
_ROOM = aligned_bytes(2 * ALIGNMENT)


def address(array: np.ndarray) -> int:
    """Address of the first element of a contiguous array; 0 if it is not contiguous."""
    try:
        return _addressof(_first_byte(array))  # a quarter of the time of `array.ctypes.data`
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type that buffers do not support
        if not array.size:
            return _ROOM.ctypes.data
        return array.ctypes.data if array.flags.c_contiguous else 0


def takes(given: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether kernels can write an output of that shape to an unchecked array of the caller."""
    return given.shape == shape and given.dtype == dtype and given.flags.c_contiguous and given.flags.writeable


def room_of(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Bytes to allocate for an output: its start is aligned, and at least one vector follows it."""
    size = prod(shape) * dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT


def beginning(made: np.ndarray, shape: tuple[int, ...], *, own: bool) -> np.ndarray:
    """A prefix of an output with another shape; memory after it is released if that is as much.

    Args:
        own: the output's memory is of this run alone, and of no caller.
    """
    size, raw = prod(shape), made.base
    if 2 * size >= made.size:
        return made.reshape(-1)[:size].reshape(shape)
    if not own or made.nbytes <= POOLED or not isinstance(raw, np.ndarray) or not raw.flags.owndata:
        return made.reshape(-1)[:size].reshape(shape).copy()
    start, dtype = address(made) - address(raw), made.dtype
    raw.resize(start + size * dtype.itemsize, refcheck=False)  # Compress of 256 to 128 KiB: 15.4 --> 9.9 us (Zen 4)
    return np.ndarray(shape, dtype, raw, start)


class LargeMemory:
    """Memory of large outputs, used again once nothing refers to them any more. Thread-safe.

    Mapped anew, the system clears its pages in each run. Tile to 32 MiB: 7.5 --> 3.4 ms (Zen 4).
    """

    def __init__(self) -> None:
        self._left: deque[np.ndarray] = deque(maxlen=2)  # a caller keeps one result while it asks for the next

    def take(self, size: int) -> np.ndarray:
        """At least `size` bytes.

        Raises:
            RunError: OCC0505 there is no such memory.
        """
        if size < _MAPPED:
            return raw_bytes(size)
        found = self._fitting(size)
        if found is None:
            found = raw_bytes(size)
        owner = (ctypes.c_char * found.size).from_buffer(found.data)  # which all views refer to
        weakref.finalize(owner, self._left.append, found).atexit = False
        return np.frombuffer(memoryview(owner), np.uint8)

    def _fitting(self, size: int) -> np.ndarray | None:
        """Memory that is left, which is released if it is too small or much too large."""
        try:
            found = self._left.pop()
        except IndexError:
            return None
        return found if size <= found.size <= 2 * size else None


@dataclass
class Native:
    """State that all entries of a model share.

    Attributes:
        library: with the entries.
        arrays: constants.
        threads: of one run.
        workers: run the parallel loops of kernels that leave them to the caller; None for other kernels.
        host: runs steps that are not compiled.
        observer: called for each kernel of calls made while it is set.
        large: memory of outputs.
    """

    manifest: Manifest
    library: Library
    arrays: Sequence[np.ndarray]
    threads: int
    workers: Workers | None
    host: HostSteps
    observer: Observer | None = None
    large: LargeMemory = field(default_factory=LargeMemory)

    def addresses(self) -> ctypes.Array[ctypes.c_void_p]:
        """Addresses of the constants."""
        return (ctypes.c_void_p * max(1, len(self.arrays)))(*(w.ctypes.data for w in self.arrays))


HANDLE, OPEN = "handle", "open"  # outputs that Python keeps, and unbounded ones


class Extents:
    """Facts about runs on inputs with certain extents.

    Attributes:
        outputs: for each output the extents, or `HANDLE` or `OPEN`, the element type, and the bytes to allocate.
        needed: bytes of memory that a run needs.
        late: which outputs may have no memory before a run.
        room: bytes for each unbounded one that sufficed in the last run; 0 if unknown.
        pooled: bytes of all outputs, if they are few; 0 if each has memory of its own.
    """

    __slots__ = ("address", "extents", "late", "needed", "outputs", "pooled", "room")

    def __init__(self, extents: ctypes.Array[ctypes.c_int64]) -> None:
        self.extents, self.address = extents, ctypes.addressof(extents)
        self.outputs: list[tuple[Any, np.dtype[Any], int]] = []
        self.late: list[int] = []
        self.room: dict[int, int] = {}
        self.needed = self.pooled = 0


class Block:
    """A call with the arrays that it points to. One run at a time uses it.

    Args:
        native: shared by all entries.
        weights: addresses of the constants.
        inputs, outputs, results: number of inputs, outputs, and output extents.
        more: further addresses after those of outputs.
    """

    __slots__ = (
        "address",
        "call",
        "capacity",
        "cells",
        "inputs",
        "large",
        "lent",
        "memory",
        "outputs",
        "results",
        "room",
        "steps",
        "values",
    )

    def __init__(
        self, native: Native, weights: ctypes.Array[ctypes.c_void_p], inputs: int, outputs: int, results: int,
        more: int = 0
    ) -> None:  # fmt: skip
        self.inputs = (ctypes.c_void_p * max(1, inputs))()
        self.outputs = (ctypes.c_void_p * max(1, outputs + more))()
        self.results = (ctypes.c_int64 * max(1, results))()
        self.room = (ctypes.c_int64 * max(1, outputs))()
        cells = aligned_bytes(ALIGNMENT * (inputs + outputs))
        self.cells = cells.ctypes.data  # where handles are
        self.call = EntryCall(
            abi=ABI, threads=native.threads, weights=ctypes.addressof(weights),
            inputs=ctypes.addressof(self.inputs), outputs=ctypes.addressof(self.outputs),
            results=ctypes.addressof(self.results), room=ctypes.addressof(self.room),
        )  # fmt: skip
        self.large = native.large
        self.lent = None
        if native.workers is not None:
            self.lent = LoopCallbacks(self.call, native.workers)
            self.call.parallel = self.lent.address
        memory = [cells]  # and that of the call
        call, values, host = self.call, Values(lambda: memory), native.host
        self.values = values
        self.steps = Callback(call, lambda: host.answer(call, values))
        self.call.host = self.steps.address
        self.observe(native.observer)
        self.address = ctypes.addressof(self.call)
        self.capacity, self.memory = 0, memory

    def observe(self, observer: Observer | None) -> None:
        """Set or clear the observer of kernels."""
        self.values.observer = observer
        self.call.observed = observer is not None

    @property
    def raised(self) -> list[BaseException]:
        """The exception that callbacks have raised."""
        return [*self.steps.raised, *(self.lent.raised if self.lent is not None else ())]

    def cell(self, k: int) -> int:
        """The address of the handle of an input, or, after all inputs, of an output."""
        return self.cells + ALIGNMENT * k

    def grow(self, size: int) -> None:
        """Ensure memory of a given size for runs.

        Raises:
            RunError: OCC0505 there is no such memory.
        """
        del self.memory[1:]
        made = aligned_bytes(size)
        self.memory.append(made)
        self.call.memory, self.call.capacity = made.ctypes.data, size
        self.capacity = size

    def make(self, known: Extents, given: Sequence[np.ndarray | None] | None, count: int) -> list[Any]:
        """Set output pointers, to the caller's arrays if kernels can write there; there are `count` inputs."""
        made: list[Any] = []
        for k, (shape, dtype, size) in enumerate(known.outputs):
            if shape is HANDLE:
                self.outputs[k] = self.cell(count + k)
                made.append(None)
                continue
            if shape is OPEN:
                made.append(self._foreseen(k, known.room.get(k, 0), dtype))
                continue
            y = None if given is None else given[k]
            if y is None or not takes(y, shape, dtype) or (at := address(y)) % ALIGNMENT:
                raw = self.large.take(size)  # kernels write to aligned addresses
                at = address(raw)
                start = -at % ALIGNMENT
                at += start
                y = np.ndarray(shape, dtype, raw, start)
            self.outputs[k] = at
            made.append(y)
        return made

    def _foreseen(self, k: int, size: int, dtype: np.dtype[Any]) -> np.ndarray | None:
        """Set the pointer for an output whose size may be insufficient; None for none."""
        self.room[k], self.outputs[k] = size, 0
        if not size:
            return None
        raw = self.large.take(size + 2 * ALIGNMENT)
        at = address(raw)
        start = -at % ALIGNMENT
        self.outputs[k] = at + start
        return np.ndarray((size // dtype.itemsize,), dtype, raw, start)

    def make_pooled(self, known: Extents) -> list[Any]:
        """Set pointers for small outputs, which share one allocation: allocating costs more than filling it."""
        raw = np.empty(known.pooled, np.uint8)
        at = _addressof(_first_byte(raw))
        start = -at % ALIGNMENT
        made: list[Any] = []
        for k, (shape, dtype, size) in enumerate(known.outputs):
            self.outputs[k] = at + start
            made.append(np.ndarray(shape, dtype, raw, start))
            start += size
        return made
