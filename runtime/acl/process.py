"""AscendCL in this process: initialised once, finalised last.

CANN releases before 8.5 allow `aclInit` once in the life of a process, so it stays initialised when no session is left,
and is finalised when the process ends, or by `shutdown`. An initialisation by another library is left alone.
"""

from __future__ import annotations

import ctypes
import threading
import weakref

from occ.runtime.acl import library
from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.library import Acl, AclError
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.statuses import REPEAT_INITIALIZE
from occ.runtime.errors import RunError
from occ.runtime.forks import renew_in_children


class _Process:
    """The state of AscendCL in the process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.acl: Acl | None = None
        self.owner = Owner()
        self.devices: dict[int, tuple[AclDevice, int]] = {}
        self.forked = False
        renew_in_children(self)

    def renew(self) -> None:
        """See `occ.runtime.forks`: AscendCL does not survive a fork."""
        self.lock, self.forked = threading.RLock(), self.acl is not None

    def start(self) -> Acl:
        with self.lock:
            if self.forked:
                raise RunError(
                    "OCC0407",
                    "AscendCL was in use when this process was forked, and does not work in it",
                    "start the process by `spawn`",
                )
            if self.acl is None:
                acl = library.load()
                status = acl.status("aclInit", None)
                if status not in (0, REPEAT_INITIALIZE):
                    raise AclError("aclInit", status, "initialising AscendCL", acl.recent_message())
                if status == 0:
                    self.owner.add(_finalize, acl)
                self.acl = acl
            return self.acl


def _finalize(acl: Acl) -> None:
    acl.call("aclFinalize", doing="finalising AscendCL")


_process = _Process()


def acquire(device_id: int) -> AclDevice:
    """A device, shared within the process; `release` it when done.

    Raises:
        RunError: OCC0406 there is no AscendCL; OCC0407 there is no such device; OCC0512 it does not start.
    """
    with _process.lock:
        acl = _process.start()
        if device_id in _process.devices:
            device, users = _process.devices[device_id]
        else:
            _check_count(acl, device_id)
            device, users = AclDevice(acl, device_id), 0
        _process.devices[device_id] = device, users + 1
        return device


def release(device: AclDevice) -> None:
    """Release a device; the last user resets it.

    Raises:
        RunError: the driver reports an error.
    """
    with _process.lock:
        _, users = _process.devices[device.number]
        if users > 1:
            _process.devices[device.number] = device, users - 1
            return
        del _process.devices[device.number]
        device.close()


def shutdown() -> None:
    """Finalise AscendCL. Sessions and device tensors must be closed before.

    Raises:
        RunError: a device is still in use, or the driver reports an error.
    """
    with _process.lock:
        if _process.devices:
            used = ", ".join(map(str, _process.devices))
            raise RunError("OCC0512", f"device {used} is still in use", "close the sessions and device tensors first")
        _process.acl = None
        _process.owner.close()


def _check_count(acl: Acl, device_id: int) -> None:
    count = ctypes.c_uint32()
    acl.call("aclrtGetDeviceCount", ctypes.byref(count), doing="counting the devices")
    if not 0 <= device_id < count.value:
        have = f"devices 0 to {count.value - 1}" if count.value else "no device"
        raise RunError(
            "OCC0407", f"`device_id` is {device_id}, this machine has {have}", "`npu-smi info` lists the devices"
        )


def _at_exit() -> None:
    if not _process.devices and not _process.forked:
        try:
            shutdown()
        except RunError:
            return  # the process is ending: nobody can be told


# At exit, finalisers run in reverse order of creation: this one after those of all sessions.
weakref.finalize(_process, _at_exit)
