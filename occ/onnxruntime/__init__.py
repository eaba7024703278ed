"""occ as an execution provider of onnxruntime.

    occ.onnxruntime.register()
    session = onnxruntime.InferenceSession("m.onnx", providers=["OccExecutionProvider", "CPUExecutionProvider"])

`docs/onnxruntime.md` is the guide. onnxruntime itself is imported by `register` alone.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

from occ.onnxruntime.claims import Claimed, Claims
from occ.onnxruntime.library import get_library_path, onnxruntime_module
from occ.onnxruntime.policy import LEAST

NAME = "OccExecutionProvider"
__all__ = ["NAME", "claimed", "get_ep_name", "get_library_path", "refused", "register", "session_options", "unregister"]
_Callback = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p)
_registered: dict[str, Any] = {}  # the library, what answers it, and the callback, which must outlive it


def get_ep_name() -> str:
    """The name of the execution provider."""
    return NAME


def register(target: str = "cpu", *, options: Mapping[str, Any] | None = None, least: int = LEAST) -> str:
    """Make the execution provider known to onnxruntime, in this process; twice is once, with the settings of the last.

    Args:
        target: that groups of nodes are compiled for: `cpu` or `cpu-jit`.
        options: of the target, as `-C`.
        least: the cost, in elements, from which on a group is taken.

    Returns:
        The name for `providers=`.

    Raises:
        ImportError: onnxruntime is not installed, or is older than 1.23.
        CompileError: OCC0401 there is no C++ compiler, which builds the library on first use.
    """
    onnxruntime = onnxruntime_module()

    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise ImportError(f"onnxruntime {onnxruntime.__version__} has no plugins: 1.23 or later is needed")
    if not _registered:
        path = str(get_library_path())
        library = c.CDLL(path)
        library.occ_ep_refusal.restype = c.c_char_p
        onnxruntime.register_execution_provider_library(NAME, path)
        _registered["library"] = library
    claims = Claims(_registered["library"], target, dict(options or {}), least)
    callback = _Callback(claims)
    _registered["library"].occ_ep_ask(callback)
    _registered.update(claims=claims, callback=callback)
    return NAME


def unregister() -> None:
    """Take the execution provider out of onnxruntime; its sessions must be gone."""
    onnxruntime = onnxruntime_module()

    if _registered:
        _registered["library"].occ_ep_ask(None)
        onnxruntime.unregister_execution_provider_library(NAME)
        _registered.clear()


def session_options(options: Any = None, **settings: Any) -> Any:
    """`onnxruntime.SessionOptions` with the provider in them, which every version from 1.23 on understands.

    Args:
        options: to add to; new ones if None.
        settings: `pool="occ"` runs on occ's threads in the place of onnxruntime's, `threads=4` on so many of them.
    """
    onnxruntime = onnxruntime_module()

    register() if not _registered else None
    made = options or onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
    made.add_provider_for_devices(devices, {k: str(v) for k, v in settings.items()})
    return made


def claimed() -> list[Claimed]:
    """The groups that sessions have given to occ since `register`."""
    return list(_registered["claims"].taken) if _registered else []


def refused() -> list[str]:
    """Why groups have been left to onnxruntime since `register`."""
    return list(_registered["claims"].refused.values()) if _registered else []
