"""The device profiler, whose folder `msprof --export=on --output=FOLDER` reads."""

from __future__ import annotations

import ctypes
import os

from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.owner import Owner
from occ.runtime.errors import RunError

_CALLS, _TASK_TIMES, _AICORE, _AICPU = 1, 2, 4, 8  # dataTypeConfig: what to record
_PIPE_UTILIZATION = 1  # aclprofAicoreMetrics


class Profiler:
    """Records everything that the device does while a session is open."""

    def __init__(self, device: AclDevice, folder: str, owner: Owner) -> None:
        """Prepare to record.

        Args:
            device: to record.
            folder: for the recordings; created if necessary.
            owner: stops and releases the profiler.

        Raises:
            RunError: OCC0605 the folder cannot be created.
        """
        self._device, self._folder, self._owner = device, folder, owner
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as e:
            raise RunError("OCC0605", f"the folder `{folder}` cannot be made: {e.strerror}") from None

    def start(self) -> None:
        """Start recording.

        Raises:
            RunError: OCC0512 the profiler does not start; OCC0406 it is not installed.
        """
        acl, doing = self._device.acl, f"profiling device {self._device.number}"
        path = os.fsencode(os.path.abspath(self._folder))
        with self._device.current():
            acl.call("aclprofInit", path, len(path), doing=doing)
            self._owner.add(self._release, "aclprofFinalize")
            devices = (ctypes.c_uint32 * 1)(self._device.number)
            what = _CALLS | _TASK_TIMES | _AICORE | _AICPU
            config = acl.make("aclprofCreateConfig", devices, 1, _PIPE_UTILIZATION, None, what, doing=doing)
            self._owner.add(self._release, "aclprofDestroyConfig", config)
            acl.call("aclprofStart", config, doing=doing)
            self._owner.add(self._release, "aclprofStop", config)

    def _release(self, call: str, *args: int) -> None:
        with self._device.leaving():
            self._device.acl.call(call, *args, doing=f"ending the profile of device {self._device.number}")
