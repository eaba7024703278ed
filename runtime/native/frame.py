"""A frame: buffers and argument blocks for one phase of a plan and one set of extents.

It is made once, and used by one run at a time.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from occ.runtime.buffers import aligned_bytes, assign_offsets
from occ.runtime.dims import evaluate
from occ.runtime.manifest import Plan, Step
from occ.runtime.native.library import Dimension, HalideBuffer, Library, fill_buffer
from occ.runtime.signature import numpy_dtype


@dataclass
class KernelCall:
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
    """Kernels in a row, as the C arrays that `occ_run_kernels` takes."""

    calls: list[KernelCall]
    addresses: ctypes.Array[ctypes.c_void_p]
    blocks: ctypes.Array[ctypes.c_void_p]


def segment_of(calls: list[KernelCall]) -> Segment:
    """Kernels as the C arrays that run them in a row."""
    addresses = (ctypes.c_void_p * len(calls))(*(c.address for c in calls))
    blocks = (ctypes.c_void_p * len(calls))(*(ctypes.addressof(c.args) for c in calls))
    return Segment(calls, addresses, blocks)


def phases(plan: Plan) -> list[range]:
    """The steps of a plan in phases: when one begins, all sizes that its steps need are known."""
    cuts = [k + 1 for k, s in enumerate(plan.steps) if s.binds]
    bounds = [0, *cuts, len(plan.steps)]
    return [range(a, b) for a, b in itertools.pairwise(bounds) if a < b or b == 0]


class Frame:
    """Buffers and argument blocks of the steps of one phase.

    Attributes:
        shapes: physical extents of each buffer that the phase uses.
        pieces: what is run in order: segments of kernels, and single steps of other kinds.
        lent: storages of the arena that later phases read too, as bytes.
    """

    def __init__(
        self, plan: Plan, span: range, weights: Sequence[np.ndarray], env: Mapping[str, int], library: Library | None
    ) -> None:
        self.plan, self.span, self.env = plan, span, dict(env)
        self._weights = weights
        self._whole = len(span) == len(plan.steps)
        used = {b for k in span for b in (*plan.steps[k].reads, *plan.steps[k].writes, plan.steps[k].flag) if b >= 0}
        self.shapes = {
            k: tuple(evaluate(e, env) for e in b.shape)
            for k, b in enumerate(plan.buffers)
            if k in used and not b.opaque and not self._is_future(k)
        }
        self.dtypes = [numpy_dtype(b.dtype) for b in plan.buffers]
        self._place_arena()
        self._describe()
        self.pieces = self._pieces(library)

    def _is_future(self, buffer: int) -> bool:
        """Whether the extents of a buffer are known only when the phase ends."""
        return any(b == buffer for b in self.plan.steps[self.span.stop - 1].writes) and bool(
            self.plan.steps[self.span.stop - 1].binds
        )

    def _place_arena(self) -> None:
        storages = self.plan.storages
        slots = [k for k, s in enumerate(storages) if s.kind == "arena" and (self._whole or s.first in self.span)]
        if self._whole and self.plan.arena >= 0:
            offsets, size = [storages[k].offset for k in slots], self.plan.arena
        else:
            sizes = [evaluate(storages[k].size, self.env) for k in slots]
            end = len(self.plan.steps)  # what a later phase reads is untouched until the run ends
            live = [(storages[k].first, end if storages[k].last >= self.span.stop else storages[k].last) for k in slots]
            offsets, size = assign_offsets(sizes, live)
        self.arena = aligned_bytes(size)
        base = self.arena.ctypes.data
        self.addresses = {k: base + offset for k, offset in zip(slots, offsets, strict=True)}
        self.offsets = dict(zip(slots, offsets, strict=True))
        self.lent = {
            k: self.arena[self.offsets[k] : self.offsets[k] + evaluate(storages[k].size, self.env)]
            for k in slots
            if storages[k].last >= self.span.stop and not self._whole
        }
        for k, s in enumerate(storages):
            if s.kind == "weight":
                self.addresses[k] = self._weights[s.index].ctypes.data

    def _describe(self) -> None:
        """Describe every buffer as a halide_buffer_t."""
        self.buffers = (HalideBuffer * len(self.plan.buffers))()
        self._dims = (Dimension * max(1, sum(map(len, self.shapes.values()))))()
        self._moving: dict[int, list[int]] = {}  # storage whose address changes from run to run -> its buffers
        self.starts: dict[int, int] = {}  # bytes of the storage before each buffer
        at = 0
        for k, shape in self.shapes.items():
            b, rank = self.plan.buffers[k], len(shape)
            part = (Dimension * rank).from_buffer(self._dims, at * ctypes.sizeof(Dimension)) if rank else self._dims
            strides = [evaluate(e, self.env) for e in b.strides]
            fill_buffer(self.buffers[k], part, b.dtype, self.dtypes[k].itemsize, shape, strides)
            at += rank
            self.starts[k] = evaluate(b.start, self.env) * self.dtypes[k].itemsize
            if b.storage in self.addresses:
                self.buffers[k].host = self.addresses[b.storage] + self.starts[k]
            else:
                self._moving.setdefault(b.storage, []).append(k)

    def _pieces(self, library: Library | None) -> list[Segment | Step]:
        pieces: list[Segment | Step] = []
        row: list[KernelCall] = []
        for step in self.plan.steps[self.span.start : self.span.stop]:
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

    def _call(self, step: Step, library: Library) -> KernelCall:
        sizes = (ctypes.c_int32 * max(1, len(step.dims)))(*(evaluate(e, self.env) for e in step.dims))
        listed = [ctypes.addressof(self.buffers[b]) for b in step.reads]
        listed += [ctypes.addressof(sizes) + 4 * k for k in range(len(step.dims))]
        listed += [ctypes.addressof(self.buffers[b]) for b in step.writes]
        args = (ctypes.c_void_p * len(listed))(*listed)
        args._sizes = sizes  # pyright: ignore[reportAttributeAccessIssue] - keeps them alive
        tasks = -1 if step.tasks is None else evaluate(step.tasks, self.env)
        traffic = sum(self._bytes(b) for b in (*step.reads, *step.writes))
        return KernelCall(step, library.address(step.name), args, tasks, traffic, evaluate(step.operations, self.env))

    def _bytes(self, buffer: int) -> int:
        return math.prod(self.shapes[buffer]) * self.dtypes[buffer].itemsize

    def _segment(self, calls: list[KernelCall]) -> list[Segment]:
        return [segment_of(calls)] if calls else []

    def attach(self, storage: int, value: Any) -> None:
        """Point the buffers of a storage at the memory of a run."""
        if buffers := self._moving.get(storage):
            start = value.ctypes.data
            for buffer in buffers:
                self.buffers[buffer].host = start + self.starts[buffer]

    def owns(self, value: np.ndarray) -> bool:
        """Whether an array is in the arena."""
        return np.may_share_memory(value, self.arena)

    def array(self, buffer: int, moving: Mapping[int, Any]) -> Any:
        """A buffer as an array (or, opaque ones, as they are).

        `moving` are the values by storage that no arena holds.
        """
        b = self.plan.buffers[buffer]
        if b.opaque:
            storage = self.plan.storages[b.storage]
            return self._weights[storage.index] if storage.kind == "weight" else moving[b.storage]
        shape, dtype = self.shapes[buffer], self.dtypes[buffer]
        if b.strides or b.start:
            whole = self.arena[self.offsets[b.storage] :] if b.storage in self.offsets else moving[b.storage]
            strides = [evaluate(e, self.env) * dtype.itemsize for e in b.strides] or None
            return np.ndarray(shape, dtype, whole.reshape(-1).view(np.uint8), self.starts[buffer], strides)
        count = math.prod(shape)
        if b.storage in self.offsets:
            start = self.offsets[b.storage]
            flat = self.arena[start : start + dtype.itemsize * count].view(dtype)
        elif b.storage in moving:
            flat = moving[b.storage].reshape(-1)
        else:
            flat = self._weights[self.plan.storages[b.storage].index].reshape(-1)
        flat = flat.view(dtype) if flat.dtype != dtype else flat
        return flat[:count].reshape(shape)  # a part of a join may be at the start of its result
