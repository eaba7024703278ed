"""The Ascend device of a session: loaded models and device tensors."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

from occ.runtime.acl import process
from occ.runtime.acl.arena import Arena
from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.model import Model
from occ.runtime.acl.options import Options
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.parts import Part, PartStore
from occ.runtime.acl.profiling import Profiler
from occ.runtime.acl.prototypes import DATA_TYPES
from occ.runtime.acl.run import AscendRun
from occ.runtime.acl.tensor import close_quietly
from occ.runtime.device_part import DevicePart
from occ.runtime.errors import RunError
from occ.runtime.forks import renew_in_children

_FORKED = "open it in the child, and start the child by `spawn` if its parent has used a device"


class AscendDevice:
    """A session's view of a device; see `occ.runtime.device.Accelerator`.

    Attributes:
        device: shared by the sessions of the process.
        arena: this session's memory, under its `npu_mem_limit`.
        store: its parts.
        blocking: whether to run part by part, so that an error names the part; enabled by ASCEND_LAUNCH_BLOCKING=1, as
            in torch_npu.
    """

    def __init__(self, options: Options) -> None:
        """Open a device.

        Raises:
            RunError: OCC0406 there is no AscendCL; OCC0407 the device does not work.
        """
        self._owner = Owner()
        with self._owner:
            self.device = process.acquire(options.device_id)
            self._owner.add(process.release, self.device)
            limits = options.npu_mem_limit, options.arena_extend_strategy
            self.arena = Arena(self.device.malloc, self.device.free, *limits)
            self._owner.add(_leaving, self.device, self.arena.close)
            self.store = PartStore(self.device, self.arena)
            self._owner.add(_leaving, self.device, self.store.close)
            if options.profile:
                profiler = Profiler(self.device, options.profile, self._owner)
                profiler.start()
        self.blocking = os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1"
        self._gears: list[tuple[int, tuple[int, ...], int]] = []
        self._state = threading.Condition()
        self._runs, self._closed, self._forked = 0, False, False
        renew_in_children(self)
        self._finalizer = weakref.finalize(self, close_quietly, self._owner)

    def renew(self) -> None:
        """See `occ.runtime.forks`: a child must not use its parent's device state."""
        self._state = threading.Condition()
        self._runs, self._forked = 0, True

    def load(self, part: DevicePart, files: Mapping[str, bytes]) -> Part:
        """See `Accelerator`.

        Raises:
            RunError: as `PartStore.add`.
        """
        with self.device.current():
            made = self.store.add(part, files)
        if isinstance(made.model, Model) and made.model.gears is not None:
            self._gears += [(t.number, t.dims, t.size) for t in (*made.model.inputs, *made.model.outputs)]
        return made

    def room(self, dtype: str, shape: Sequence[int], size: int) -> int:
        """Bytes to reserve for a tensor: for a model with gears, AscendCL needs space for the largest."""
        number = DATA_TYPES.get(dtype)
        alike = (
            largest
            for kind, dims, largest in self._gears
            if kind == number
            and len(dims) == len(shape)
            and all(d in (-1, n) for d, n in zip(dims, shape, strict=True))
        )
        return max(size, *alike, 0)

    def begin(self) -> AscendRun:
        """See `Accelerator`. If not all parts fit into memory at once, runs take turns.

        Raises:
            RunError: OCC0501 the session is closed, or a parent of this process opened it.
        """
        with self._state:
            while self.store.swapping and self._runs and not self._closed:
                self._state.wait()
            if self._forked:
                raise RunError("OCC0501", "the session was opened before this process was forked", _FORKED)
            if self._closed:
                raise RunError("OCC0501", "the session is closed", "load the artifact again")
            self._runs += 1
        return AscendRun(self)

    def ended(self) -> None:
        """Mark a run as finished."""
        with self._state:
            self._runs -= 1
            self._state.notify_all()

    def close(self) -> None:
        """See `Accelerator`; waits for current runs.

        Raises:
            RunError: the driver reports an error, after everything was released.
        """
        with self._state:
            self._closed = True
            self._state.notify_all()
            while self._runs:
                self._state.wait()
        self._finalizer.detach()
        self._owner.close()


def _leaving(device: AclDevice, release: Callable[[], None]) -> None:
    with device.leaving():
        release()
