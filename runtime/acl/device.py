"""A device of the process: its context, streams, memory and properties."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from occ.runtime.acl.library import Acl, AclError
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.prototypes import DDR, DEVICE_TO_DEVICE, DEVICE_TO_HOST, HBM, HOST_TO_DEVICE, HUGE_FIRST
from occ.runtime.acl.statuses import CONTEXT_NULL
from occ.runtime.errors import RunError

_RUNS_ON_DEVICE = 0  # aclrtRunMode: the program runs on the device's own CPU, and all memory belongs to the device


class AclDevice:
    """A device. Calls about it are made inside `with device.current()`, on any thread.

    Attributes:
        number: as in `device_id`.
        soc: name of the SoC, as `Ascend310P3`.
    """

    def __init__(self, acl: Acl, number: int) -> None:
        self.acl, self.number = acl, number
        self._owner = Owner()
        self._idle: list[int] = []
        self._lock = threading.Lock()
        self.context: int | None = None
        before = self._current()
        try:
            with self._owner:
                self._open()
        finally:
            self._restore(before)

    def _open(self) -> None:
        acl, number = self.acl, self.number
        acl.call("aclrtSetDevice", number, doing=f"opening device {number}")
        self._owner.add(self._reset)
        context = ctypes.c_void_p()
        acl.call("aclrtCreateContext", ctypes.byref(context), number, doing=f"making a context on device {number}")
        self.context = context.value
        self._owner.add(self._destroy_context)
        self._to_device, self._to_host = self._copy_kinds()
        name = acl.make("aclrtGetSocName", doing="asking for the name of the SoC")
        self.soc: str = name.decode("utf-8", "replace")

    def _copy_kinds(self) -> tuple[int, int]:
        mode = ctypes.c_int32()
        self.acl.call("aclrtGetRunMode", ctypes.byref(mode), doing="asking where the program runs")
        if mode.value == _RUNS_ON_DEVICE:
            return DEVICE_TO_DEVICE, DEVICE_TO_DEVICE
        return HOST_TO_DEVICE, DEVICE_TO_HOST

    # the context of the thread

    @contextmanager
    def current(self) -> Generator[None]:
        """Make this device's context the current one of the thread; the previous one is restored.

        Raises:
            AclError: the driver rejects it.
        """
        before = self._enter()
        try:
            yield
        finally:
            self._restore(before)

    @contextmanager
    def leaving(self) -> Generator[None]:
        """Like `current`, for releases: tried even if the driver fails at first; its error is raised afterwards.

        Raises:
            AclError: the driver rejected it.
        """
        before, refused = None, None
        for _ in range(2):
            try:
                before = self._enter()
                break
            except AclError as e:
                refused = refused or e
        try:
            yield
        finally:
            self._restore(before)
        if refused is not None:
            raise refused

    def _enter(self) -> int | None:
        """Make the context current; returns the previous one."""
        before = self._current()
        if before != self.context:
            self.acl.call("aclrtSetCurrentContext", self.context, doing=f"switching to device {self.number}")
        return before

    def _current(self) -> int | None:
        context = ctypes.c_void_p()
        status = self.acl.status("aclrtGetCurrentContext", ctypes.byref(context))
        if status not in (0, CONTEXT_NULL):
            raise AclError("aclrtGetCurrentContext", status, "asking for the context", self.acl.recent_message())
        return context.value if status == 0 else None

    def _restore(self, before: int | None) -> None:
        if before is not None and before != self.context:
            self.acl.status("aclrtSetCurrentContext", before)

    # memory

    def malloc(self, size: int) -> int:
        """Address of `size` bytes of device memory.

        Raises:
            AclError: OCC0511 the device has no more.
        """
        address = ctypes.c_void_p()
        doing = f"taking {size} bytes on device {self.number}"
        try:
            self.acl.call("aclrtMalloc", ctypes.byref(address), size, HUGE_FIRST, doing=doing)
        except AclError as e:
            if e.code != "OCC0511":
                raise
            raise RunError(e.code, f"{e.message}; {self._memory()}", e.help) from None
        return address.value or 0

    def free(self, address: int) -> None:
        """Free device memory."""
        self.acl.call("aclrtFree", address, doing=f"freeing memory of device {self.number}")

    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy a contiguous array to the device; done on return."""
        if n := array.nbytes:
            source = array.ctypes.data
            self.acl.call(
                "aclrtMemcpy", address, n, source, n, self._to_device, doing=f"copying {n} bytes to the device"
            )

    def download(self, array: np.ndarray, address: int) -> None:
        """Copy from the device into a contiguous array; done on return."""
        if n := array.nbytes:
            target = array.ctypes.data
            self.acl.call("aclrtMemcpy", target, n, address, n, self._to_host, doing=f"copying {n} bytes to the host")

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Queue a copy within the device."""
        doing = f"copying {size} bytes on the device"
        if size:
            self.acl.call("aclrtMemcpyAsync", target, size, source, size, DEVICE_TO_DEVICE, stream, doing=doing)

    def _memory(self) -> str:
        """The device's memory sizes, in words."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        for kind in (HBM, DDR):
            status = self.acl.status("aclrtGetMemInfo", kind, ctypes.byref(free), ctypes.byref(total))
            if not status and total.value:
                return f"{free.value} of its {total.value} bytes are free"
        return "how much is free is not known"

    # streams

    def take_stream(self) -> int:
        """A stream for exclusive use, until `give_stream`."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        stream = ctypes.c_void_p()
        self.acl.call("aclrtCreateStream", ctypes.byref(stream), doing=f"making a stream on device {self.number}")
        handle = stream.value or 0
        with self._lock:
            self._owner.add(self._destroy_stream, handle)
        return handle

    def give_stream(self, stream: int) -> None:
        """Return a stream with nothing queued on it."""
        with self._lock:
            self._idle.append(stream)

    def synchronize(self, stream: int, what: str) -> None:
        """Wait until everything queued on a stream is done; `what` describes it, for the message.

        Raises:
            AclError: something that was queued failed.
        """
        self.acl.call("aclrtSynchronizeStream", stream, doing=f"running {what} on device {self.number}")

    def order(self, first: int, second: int, owner: Owner) -> None:
        """Make the stream `second` wait for everything on the stream `first` so far; `owner` keeps the event.

        Raises:
            AclError: the driver refuses.
        """
        event, doing = ctypes.c_void_p(), f"ordering streams of device {self.number}"
        self.acl.call("aclrtCreateEvent", ctypes.byref(event), doing=doing)
        handle = event.value
        owner.add(lambda: self.acl.call("aclrtDestroyEvent", handle, doing=doing))
        self.acl.call("aclrtRecordEvent", handle, first, doing=doing)
        self.acl.call("aclrtStreamWaitEvent", second, handle, doing=doing)

    # release

    def close(self) -> None:
        """Release everything of the device.

        Raises:
            RunError: the driver reports an error, after everything was tried.
        """
        with self.leaving():
            self._owner.close()

    def _destroy_stream(self, stream: int) -> None:
        self.acl.call("aclrtDestroyStream", stream, doing=f"releasing a stream of device {self.number}")

    def _destroy_context(self) -> None:
        self.acl.call("aclrtDestroyContext", self.context, doing=f"releasing the context of device {self.number}")

    def _reset(self) -> None:
        self.acl.call("aclrtResetDevice", self.number, doing=f"resetting device {self.number}")
