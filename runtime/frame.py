"""A frame: everything that a run of a plan needs for one set of extents, made once and used by one run at a time."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from occ.runtime.buffers import aligned_bytes, assign_offsets
from occ.runtime.dims import evaluate
from occ.runtime.library import Dimension, HalideBuffer, Library, fill_buffer
from occ.runtime.manifest import Plan, Step
from occ.runtime.signature import numpy_dtype


@dataclass
class Call:
    """A kernel of the frame: its address and its argument block.

    Attributes:
        traffic: bytes of the tensors that it reads and writes.
        operations: arithmetic operations that it does.
    """

    step: Step
    address: int
    args: ctypes.Array[ctypes.c_void_p]
    tasks: int
    traffic: int
    operations: int


@dataclass
class Segment:
    """Kernels in a row, as the C arrays that `occ_run` takes."""

    calls: list[Call]
    addresses: ctypes.Array[ctypes.c_void_p]
    blocks: ctypes.Array[ctypes.c_void_p]


def segment_of(calls: list[Call]) -> Segment:
    """Kernels as the C arrays that run them in a row."""
    addresses = (ctypes.c_void_p * len(calls))(*(c.address for c in calls))
    blocks = (ctypes.c_void_p * len(calls))(*(ctypes.addressof(c.args) for c in calls))
    return Segment(calls, addresses, blocks)


class Frame:
    """Buffers and argument blocks of a plan.

    Attributes:
        shapes: physical extents of each buffer.
        pieces: what is run in order: segments of kernels, and single steps of other kinds.
    """

    def __init__(
        self, plan: Plan, weights: Sequence[np.ndarray], env: Mapping[str, int], library: Library | None
    ) -> None:
        self.plan, self.env = plan, env
        self.shapes = [tuple(evaluate(e, env) for e in b.shape) for b in plan.buffers]
        self.dtypes = [numpy_dtype(b.dtype) for b in plan.buffers]
        self._weights = weights
        self._place_arena()
        self._describe()
        self.pieces = self._pieces(library)

    def _place_arena(self) -> None:
        slots = [k for k, s in enumerate(self.plan.storages) if s.kind == "arena"]
        storages = self.plan.storages
        if self.plan.arena >= 0:
            offsets, size = [storages[k].offset for k in slots], self.plan.arena
        else:
            sizes = [evaluate(storages[k].size, self.env) for k in slots]
            offsets, size = assign_offsets(sizes, [(storages[k].first, storages[k].last) for k in slots])
        self.arena = aligned_bytes(size)
        base = self.arena.ctypes.data
        self.addresses = {k: base + offset for k, offset in zip(slots, offsets, strict=True)}
        self.offsets = dict(zip(slots, offsets, strict=True))
        for k, s in enumerate(storages):
            if s.kind == "weight":
                self.addresses[k] = self._weights[s.index].ctypes.data

    def _describe(self) -> None:
        """Describe every buffer as a halide_buffer_t."""
        count = len(self.plan.buffers)
        self.buffers = (HalideBuffer * count)()
        self._dims = (Dimension * max(1, sum(map(len, self.shapes))))()
        self._moving: list[tuple[int, int]] = []  # (buffer, storage) whose address changes from run to run
        at = 0
        for k, b in enumerate(self.plan.buffers):
            rank = len(self.shapes[k])
            part = (Dimension * rank).from_buffer(self._dims, at * ctypes.sizeof(Dimension)) if rank else self._dims
            fill_buffer(self.buffers[k], part, b.dtype, self.dtypes[k].itemsize, self.shapes[k])
            at += rank
            if b.storage in self.addresses:
                self.buffers[k].host = self.addresses[b.storage]
            else:
                self._moving.append((k, b.storage))

    def _pieces(self, library: Library | None) -> list[Segment | Step]:
        pieces: list[Segment | Step] = []
        row: list[Call] = []
        for step in self.plan.steps:
            if step.kind == "kernel":
                assert library is not None
                if self._has_work(step):
                    row.append(self._call(step, library))
                continue
            pieces += self._segment(row)
            pieces.append(step)
            row = []
        return pieces + self._segment(row)

    def _has_work(self, step: Step) -> bool:
        """Whether any result has elements; kernels need not expect empty ones."""
        return any(0 not in self.shapes[b] for b in step.writes)

    def _call(self, step: Step, library: Library) -> Call:
        sizes = (ctypes.c_int32 * max(1, len(step.dims)))(*(evaluate(e, self.env) for e in step.dims))
        listed = [ctypes.addressof(self.buffers[b]) for b in step.reads]
        listed += [ctypes.addressof(sizes) + 4 * k for k in range(len(step.dims))]
        listed += [ctypes.addressof(self.buffers[b]) for b in step.writes]
        args = (ctypes.c_void_p * len(listed))(*listed)
        args._sizes = sizes  # pyright: ignore[reportAttributeAccessIssue] - keeps them alive
        tasks = -1 if step.tasks is None else evaluate(step.tasks, self.env)
        traffic = sum(self._bytes(b) for b in (*step.reads, *step.writes))
        return Call(step, library.address(step.name), args, tasks, traffic, evaluate(step.operations, self.env))

    def _bytes(self, buffer: int) -> int:
        return math.prod(self.shapes[buffer]) * self.dtypes[buffer].itemsize

    def _segment(self, calls: list[Call]) -> list[Segment]:
        return [segment_of(calls)] if calls else []

    def attach(self, addresses: Mapping[int, int]) -> None:
        """Point inputs and outputs at the memory of a run: storage -> address."""
        for buffer, storage in self._moving:
            self.buffers[buffer].host = addresses[storage]

    def array(self, buffer: int, moving: Mapping[int, np.ndarray]) -> np.ndarray:
        """A buffer as an array; `moving` are the arrays of inputs and outputs by storage."""
        storage = self.plan.buffers[buffer].storage
        shape, dtype = self.shapes[buffer], self.dtypes[buffer]
        if storage in moving:
            flat = moving[storage].reshape(-1)
        elif storage in self.offsets:
            start = self.offsets[storage]
            flat = self.arena[start : start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))].view(dtype)
        else:
            flat = self._weights[self.plan.storages[storage].index].reshape(-1)
        return flat.view(dtype).reshape(shape) if flat.dtype != dtype else flat.reshape(shape)
