"""One run on the device: its tensors, and the work on its streams."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from math import prod
from typing import Protocol

import numpy as np

from occ.runtime.acl.arena import Arena, OutOfMemory
from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.launch import Launch
from occ.runtime.acl.model import Shape
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.parts import Loaded, Part, PartStore
from occ.runtime.acl.singleop import OperatorLaunch, OperatorModel
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.resident import Resident
from occ.runtime.signature import numpy_dtype


class Host(Protocol):
    """The interface that a session's device offers to a run; `AscendDevice` describes each member."""

    device: AclDevice
    arena: Arena
    store: PartStore
    blocking: bool

    def room(self, dtype: str, shape: Sequence[int], size: int) -> int: ...

    def ended(self) -> None: ...


@dataclass(frozen=True)
class Tensor:
    """Device memory of a tensor."""

    address: int
    nbytes: int
    shape: Shape


@dataclass
class _Queued:
    """An execution that may not be over yet."""

    part: Part
    model: Loaded
    launch: Launch | OperatorLaunch
    shapes: list[Shape]
    measured: bool = False  # extents are data-dependent, and `shapes` has their upper bounds, later their values


@dataclass
class _Stream:
    """A stream of the run, with the work left for its `sync`."""

    handle: int
    queued: list[_Queued] = field(default_factory=list)
    downloads: list[tuple[int, np.ndarray]] = field(default_factory=list)
    after: list[_Stream] = field(default_factory=list)

    def __str__(self) -> str:
        """The parts whose failure a wait for the stream would reveal: its own, and those of streams it waits for."""
        queued = [q for s in (self, *self.after) for q in s.queued]
        return ", ".join(f"`{q.part.record.name}`" for q in queued) or "a copy"


class AscendRun:
    """A run; see `occ.runtime.device.DeviceRun`.

    Executions of one model must be sequential, so a model is locked while it is queued. Nobody waits for a lock while
    holding one: this run's queued work is finished first.
    """

    def __init__(self, host: Host) -> None:
        self._host, self._device = host, host.device
        self._streams: dict[int, _Stream] = {}
        self._memory = Owner()
        self._finished = False

    # tensors

    def allocate(self, dtype: str, shape: Sequence[int]) -> Tensor:
        """See `DeviceRun`.

        Raises:
            OutOfMemory: OCC0511 the device or the limit does not allow it.
        """
        extents = tuple(shape)
        size = int(np.prod(extents, dtype=np.int64)) * numpy_dtype(dtype).itemsize
        with self._device.current():
            block = self._host.store.take(self._host.room(dtype, extents, size))
        self._memory.add(self._host.arena.give, block)
        return Tensor(block.address, size, extents)

    def adopt(self, resident: Resident) -> Tensor:
        """See `DeviceRun`.

        Raises:
            RunError: OCC0501 the tensor is closed, or on another device.
        """
        if resident.device_id != self._device.number or not resident.address:
            where = f"on device {resident.device_id}" if resident.address else "closed"
            raise RunError(
                "OCC0501", f"{resident!r} is {where}, the session runs on device {self._device.number}", "copy it there"
            )
        size = int(np.prod(resident.shape, dtype=np.int64)) * resident.dtype.itemsize
        return Tensor(resident.address, size, tuple(resident.shape))

    # steps

    def upload(self, source: np.ndarray, target: Tensor, stream: int) -> None:
        """Copy to the device; done on return, because only page-locked memory can be copied in the background."""
        with self._device.current():
            self._device.upload(target.address, np.ascontiguousarray(source))

    def copy(self, source: Tensor, target: Tensor, stream: int) -> None:
        with self._device.current():
            self._device.copy(target.address, source.address, source.nbytes, self._stream(stream).handle)

    def download(self, source: Tensor, target: np.ndarray, stream: int) -> None:
        self._stream(stream).downloads.append((source.address, target))

    def execute(self, part: Part, inputs: Sequence[Tensor], outputs: Sequence[Tensor], stream: int) -> None:
        """Queue a part.

        Raises:
            RunError: OCC0501 there is no gear for these extents; OCC0511 no memory; OCC0512 the driver reports an
                error.
        """
        self._execute(part, inputs, outputs, stream)

    def measure(self, part: Part, inputs: Sequence[Tensor], outputs: Sequence[Tensor], stream: int) -> list[Shape]:
        """See `DeviceRun`; the driver reports extents when the execution is done.

        Raises:
            RunError: as `execute`; OCC0512 a result is larger than its memory.
        """
        queued = self._execute(part, inputs, outputs, stream, measured=True)
        self.sync(stream)
        by_record = dict(zip(part.outputs, queued.shapes, strict=True))
        return [by_record[k] for k in range(len(outputs))]

    def beginning(self, tensor: Tensor, dtype: str, shape: Shape) -> Tensor:
        """Implements `DeviceRun.beginning`."""
        return Tensor(tensor.address, prod(shape) * numpy_dtype(dtype).itemsize, shape)

    def _execute(
        self, part: Part, inputs: Sequence[Tensor], outputs: Sequence[Tensor], stream: int, *, measured: bool = False
    ) -> _Queued:
        with self._device.current():
            s = self._stream(stream)
            model = self._use(part)
            if not model.lock.acquire(blocking=False):
                self._finish_streams()
                model.lock.acquire()
            try:
                return self._start(s, part, model, inputs, outputs, measured)
            except BaseException:
                model.lock.release()
                self._host.store.unuse(part)
                raise

    def _use(self, part: Part) -> Loaded:
        try:
            return self._host.store.use(part)
        except OutOfMemory:
            self._finish_streams()  # this run's own queued work may be in the way
            return self._host.store.use(part)

    def _start(
        self, s: _Stream, part: Part, model: Loaded, inputs: Sequence[Tensor], outputs: Sequence[Tensor], measured: bool
    ) -> _Queued:
        ins, outs = [inputs[k] for k in part.inputs], [outputs[k] for k in part.outputs]
        spans = [[(t.address, t.nbytes) for t in side] for side in (ins, outs)]
        arena = self._host.arena
        if isinstance(model, OperatorModel):
            launch = OperatorLaunch(model, arena, spans[0], spans[1])
        else:
            launch = Launch(model, arena, spans[0], spans[1], [t.shape for t in ins])
        queued = _Queued(part, model, launch, [t.shape for t in outs], measured)
        s.queued.append(queued)
        try:
            launch.start(s.handle, blocking=self._host.blocking)
        except BaseException:
            s.queued.pop()
            with suppress(RunError):  # a part of it may already be queued
                self._device.synchronize(s.handle, str(s))
            with suppress(RunError):
                launch.close()
            raise
        return queued

    def wait(self, stream: int, on: int) -> None:
        with self._device.current():
            first, second = self._stream(on), self._stream(stream)
            self._device.order(first.handle, second.handle, self._memory)
            second.after.append(first)

    def sync(self, stream: int) -> None:
        """Wait for a stream, and make its pending copies to the host.

        Raises:
            RunError: queued work failed, or returned a tensor of an unexpected shape.
        """
        with self._device.current():
            self._finish(self._stream(stream))

    def finish(self) -> None:
        """Wait for all streams.

        Raises:
            RunError: as `sync`.
        """
        with self._device.current():
            self._finish_streams()
        self._finished = True

    def _finish_streams(self) -> None:
        for s in self._streams.values():
            self._finish(s)

    def _finish(self, s: _Stream) -> None:
        self._device.synchronize(s.handle, str(s))
        while s.queued:
            q = s.queued[0]
            if q.measured and isinstance(q.launch, Launch):
                q.shapes = q.launch.output_shapes(q.shapes)
            else:
                q.launch.check(q.shapes)
            del s.queued[0]
            self._done(q)
        downloads, s.downloads = s.downloads, []
        for address, target in downloads:
            self._device.download(target, address)

    def _done(self, q: _Queued) -> None:
        try:
            q.launch.close()
        finally:
            q.model.lock.release()
            self._host.store.unuse(q.part)

    def _stream(self, number: int) -> _Stream:
        if number not in self._streams:
            with self._device.current():
                self._streams[number] = _Stream(self._device.take_stream())
        return self._streams[number]

    # release

    def close(self) -> None:
        """See `DeviceRun`.

        Raises:
            RunError: the driver reports an error during release; everything was tried.
        """
        end = Owner()
        end.add(self._host.ended)
        end.add(self._memory.close)
        for s in self._streams.values():
            end.add(self._device.give_stream, s.handle)
            for q in s.queued:
                end.add(self._done, q)
            if not self._finished:
                end.add(self._device.synchronize, s.handle, str(s))
        with self._device.leaving():
            end.close()
