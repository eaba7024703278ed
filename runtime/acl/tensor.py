"""Arrays on the device: bound to inputs and outputs without copies."""

from __future__ import annotations

import weakref
from typing import Any, Self

import numpy as np

from occ.runtime.acl import process
from occ.runtime.acl.owner import Owner
from occ.runtime.errors import RunError


class DeviceTensor:
    """A dense tensor in device memory, usable as an input or output of `Session.run` like an array.

    Its memory belongs to the caller: it does not count against any session's `npu_mem_limit`.

    Attributes:
        shape: extents.
        dtype: numpy dtype.
        device_id: the device.
        address: on the device.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, device_id: int = 0) -> None:
        """Allocate memory for a tensor; its contents are undefined.

        Raises:
            RunError: there is no such device, or its memory is exhausted.
        """
        self.shape, self.dtype, self.device_id = tuple(shape), np.dtype(dtype), device_id
        if self.dtype.hasobject:
            raise RunError("OCC0501", f"a tensor of {self.dtype} cannot be on a device", "devices take numbers")
        self._owner = Owner()
        with self._owner:
            self._device = process.acquire(device_id)
            self._owner.add(process.release, self._device)
            with self._device.current():
                self.address = self._device.malloc(max(1, self.nbytes) + 32)
            self._owner.add(_free, self._device, self.address)
        self._finalizer = weakref.finalize(self, close_quietly, self._owner)

    @classmethod
    def from_numpy(cls, array: Any, device_id: int = 0) -> Self:
        """A tensor with the contents of an array.

        Raises:
            RunError: as the constructor, or the copy fails.
        """
        source = np.asarray(array)
        made = cls(source.shape, source.dtype, device_id)
        made.write(source)
        return made

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def write(self, array: np.ndarray) -> None:
        """Copy an array of the same type and shape to the device.

        Raises:
            RunError: OCC0501 it has another type or shape; OCC0512 the copy fails.
        """
        if array.shape != self.shape or array.dtype != self.dtype:
            raise RunError("OCC0501", f"{array.dtype}{list(array.shape)} cannot be written to {self!r}")
        with self._open().current():
            self._device.upload(self.address, np.ascontiguousarray(array))

    def numpy(self) -> np.ndarray:
        """The contents as a new array.

        Raises:
            RunError: OCC0512 the copy fails.
        """
        made = np.empty(self.shape, self.dtype)
        with self._open().current():
            self._device.download(made, self.address)
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def close(self) -> None:
        """Free the memory; the garbage collector does so too.

        Raises:
            RunError: the driver reports an error.
        """
        self._finalizer.detach()
        self._owner.close()
        self.address = 0

    def _open(self) -> Any:
        if not self.address:
            raise RunError("OCC0501", f"{self!r} is closed")
        return self._device

    def __repr__(self) -> str:
        return f"<device tensor {self.dtype}{list(self.shape)} on device {self.device_id}>"


def _free(device: Any, address: int) -> None:
    with device.leaving():
        device.free(address)


def close_quietly(owner: Owner) -> None:
    """Release from the garbage collector."""
    try:
        owner.close()
    except RunError:
        return  # in the garbage collector nobody can be told
