"""The interface of device-resident arrays."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Resident(Protocol):
    """An array in device memory. Sessions on that device use it directly, others copy it.

    Attributes:
        shape: extents.
        dtype: numpy dtype.
        device_id: which device.
        address: on the device.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    device_id: int
    address: int

    @property
    def ndim(self) -> int: ...

    def write(self, array: np.ndarray) -> None:
        """Copy an array to the device."""
        ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...
