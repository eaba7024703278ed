"""The functions of ONNXIFI through ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np
from onnx import helper
from onnxifi_parts import library

DESCRIPTOR, FENCE = 0x43DFBF69, 0x23E08AAB
EVENT, IMPLICIT = 0, 2


class Descriptor(ctypes.Structure):
    _fields_ = (
        ("tag", c_int32), ("name", c_char_p), ("dtype", c_uint64), ("memory", c_uint64), ("rank", c_uint32),
        ("shape", POINTER(c_uint64)), ("buffer", c_uint64),
    )  # fmt: skip

    @classmethod
    def of(cls, label: str, x: np.ndarray, /, **other: Any) -> Descriptor:
        shape = (c_uint64 * max(1, x.ndim))(*x.shape)
        number = helper.np_dtype_to_tensor_dtype(x.dtype)
        d = cls(DESCRIPTOR, label.encode(), number, 0, x.ndim, shape, x.ctypes.data)
        for key, value in other.items():
            setattr(d, key, value)
        d.array = x  # keeps the memory
        return d


class Fence(ctypes.Structure):
    _fields_ = (("tag", c_int32), ("type", c_uint64), ("event", c_void_p))


def fence(event: int | None = None, kind: int = EVENT, tag: int = FENCE) -> Fence:
    return Fence(tag, kind, event)


_PROTOTYPES: dict[str, list[Any]] = {
    "GetBackendIDs": [c_void_p, c_void_p], "ReleaseBackendID": [c_void_p], "GetBackendInfo": [c_void_p, c_int32, c_void_p, c_void_p],
    "GetBackendCompatibility": [c_void_p, c_size_t, c_char_p], "InitBackend": [c_void_p, c_void_p, c_void_p],
    "ReleaseBackend": [c_void_p], "InitEvent": [c_void_p, c_void_p], "SignalEvent": [c_void_p], "GetEventState": [c_void_p, c_void_p],
    "WaitEvent": [c_void_p], "ReleaseEvent": [c_void_p],
    "InitGraph": [c_void_p, c_void_p, c_size_t, c_char_p, c_uint32, c_void_p, c_void_p],
    "SetGraphIO": [c_void_p, c_uint32, c_void_p, c_uint32, c_void_p], "RunGraph": [c_void_p, c_void_p, c_void_p],
    "ReleaseGraph": [c_void_p], "SetIOAndRunGraph": [c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p],
    "GetExtensionFunctionAddress": [c_void_p, c_char_p, c_void_p],
}  # fmt: skip


@cache
def api() -> Any:
    """The library; its functions return a status."""
    dll = ctypes.CDLL(str(library()))
    for name, kinds in _PROTOTYPES.items():
        getattr(dll, f"onnx{name}").argtypes = kinds
    return dll


def call(name: str, *args: Any) -> int:
    return getattr(api(), f"onnx{name}")(*args)


def made(name: str, *args: Any) -> int:
    """What a function makes that writes a handle to its last argument."""
    handle = c_void_p(7)
    status = call(name, *args, byref(handle))
    assert status == 0, f"{name}: {status:x}"
    assert handle.value is not None
    return handle.value


def descriptors(*listed: Descriptor) -> tuple[int, Any]:
    """Count and array, as arguments."""
    return len(listed), (Descriptor * max(1, len(listed)))(*listed)


@cache
def ids() -> list[int]:
    """Backend IDs that stay valid."""
    count = c_size_t(8)
    listed = (c_void_p * 8)()
    assert call("GetBackendIDs", listed, byref(count)) == 0
    return [i for i in listed[: count.value] if i]


def properties(*numbers: int) -> Any:
    return (c_uint64 * (len(numbers) + 1))(*numbers, 0)


@cache
def backend() -> int:
    """A backend for the lowest delay, so that tests compile quickly, and say nothing."""
    return made("InitBackend", ids()[0], properties(1, 3, 2, 4))


def graph(model: bytes, *weights: Descriptor) -> int:
    count, listed = descriptors(*weights)
    return made("InitGraph", backend(), None, len(model), model, count, listed if weights else None)


def refused(model: bytes, *weights: Descriptor) -> int:
    """The status of a graph that cannot be made."""
    count, listed = descriptors(*weights)
    handle = c_void_p(7)
    status = call("InitGraph", backend(), None, len(model), model, count, listed if weights else None, byref(handle))
    assert status
    assert handle.value is None
    return status


def run(g: int, inputs: list[Descriptor], outputs: list[Descriptor]) -> int:
    """SetGraphIO and a run with implicit fences: the first status that is not 0."""
    status = call("SetGraphIO", g, *descriptors(*inputs), *descriptors(*outputs))
    return status or call("RunGraph", g, byref(fence(kind=IMPLICIT)), byref(fence(kind=IMPLICIT)))
