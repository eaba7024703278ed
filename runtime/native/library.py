"""Loads the native code of an artifact from memory.

A kernel is `int f(void **args)`: a `halide_buffer_t *` for each tensor that it reads, an `int32_t *` for each size, a
`halide_buffer_t *` for each tensor that it writes. One whose parallel loop the caller runs is `int f(void **args, int
begin, int end)`.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import platform
import sys
import tempfile
import weakref
from collections.abc import Sequence

from occ.runtime.elf import is_whole, needed_versions
from occ.runtime.errors import RunError


class Dimension(ctypes.Structure):
    """halide_dimension_t of HalideRuntime.h."""

    _fields_ = (
        ("min", ctypes.c_int32),
        ("extent", ctypes.c_int32),
        ("stride", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    )


class HalideBuffer(ctypes.Structure):
    """halide_buffer_t of HalideRuntime.h."""

    _fields_ = (
        ("device", ctypes.c_uint64),
        ("device_interface", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("dimensions", ctypes.c_int32),
        ("dim", ctypes.POINTER(Dimension)),
        ("padding", ctypes.c_void_p),
    )


_TYPE_CODES = {"i": 0, "u": 1, "b": 1, "f": 2}
_RAW = {"bf16": (3, 16)}  # halide_type_bfloat


def type_of(dtype: str, itemsize: int) -> tuple[int, int]:
    """(type code, bits) of an element type in a halide_buffer_t; types unknown to Halide are raw unsigned bytes."""
    if dtype in _RAW:
        return _RAW[dtype]
    if dtype == "bool":
        return 1, 1  # one byte in memory
    if dtype in ("f64", "f32", "f16") or (dtype[0] in "iu" and int(dtype[1:]) >= 8):
        return _TYPE_CODES[dtype[0]], itemsize * 8
    return (0 if dtype[0] == "i" else 1), itemsize * 8


def fill_buffer(
    b: HalideBuffer, dims: ctypes.Array[Dimension], dtype: str, itemsize: int, shape: Sequence[int],
    strides: Sequence[int] = (),
) -> None:  # fmt: skip
    """Describe a row-major tensor, dense if there are no strides; Halide counts dimensions from the innermost."""
    b.type_code, b.type_bits = type_of(dtype, itemsize)
    b.type_lanes, b.dimensions = 1, len(shape)
    b.dim = ctypes.cast(dims, ctypes.POINTER(Dimension))
    stride = 1
    for k, n in enumerate(reversed(shape)):
        dims[k] = Dimension(0, n, strides[-1 - k] if strides else stride, 0)
        stride *= n


class Library:
    """A loaded shared library; kernels by name, and the loop over kernels if the library contains one."""

    _lender: Library | None = None  # the library whose thread pool the process uses

    def __init__(self, code: bytes, name: str) -> None:
        self.dll, fd = load_code(code, name)
        if not _stays(self.dll, code):
            unload = weakref.finalize(self, _unload, self.dll._handle, fd)
            unload.atexit = False
        self.run = getattr(self.dll, "occ_run_kernels", None)
        if self.run is not None:
            self.run.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
            self.dll.occ_message.restype = ctypes.c_char_p
            self._join_pool()

    def _join_pool(self) -> None:
        if Library._lender is None:
            Library._lender = self  # so it stays loaded: its threads run its code
            return
        pool = Library._lender.dll.occ_pool
        pool.restype = ctypes.c_void_p
        self.dll.occ_share_pool.argtypes = [ctypes.c_void_p]
        self.dll.occ_share_pool(pool())

    def address(self, symbol: str) -> int:
        """Address of a kernel.

        Raises:
            RunError: OCC0502 the library has no such kernel.
        """
        try:
            return ctypes.cast(getattr(self.dll, symbol), ctypes.c_void_p).value or 0
        except AttributeError:
            raise RunError("OCC0502", f"the library has no kernel `{symbol}`", "build the artifact again") from None

    @property
    def made_for(self) -> str:
        """`Manifest.code_digest` of the manifest for which the code was compiled; empty if not recorded."""
        try:
            facts = (ctypes.c_uint32 * 8).in_dll(self.dll, "occ_model_facts")
        except ValueError:
            return ""
        return ctypes.string_at(ctypes.addressof(facts) + facts[7], 64).decode("ascii", "replace") if facts[7] else ""

    @property
    def message(self) -> str:
        """Text of the last error of this thread."""
        return self.dll.occ_message().decode("utf-8", "replace")


def load_code(code: bytes, name: str) -> tuple[ctypes.CDLL, int]:
    """Load a library from memory: an anonymous in-memory file if the system supports those, else a temporary file.

    Returns:
        The library and the descriptor to close with it. It stays open, because the loader takes two files with one name
        for the same library, and a number in use is not reused.
    """
    if sys.platform == "linux" and not is_whole(code):
        raise RunError("OCC0502", "the native code is cut off, or not a library", "build the artifact again")
    check_machine(code)
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(name[:200].replace("\0", "") or "occ", os.MFD_CLOEXEC)
        else:
            fd, path = tempfile.mkstemp(suffix=".so")
            os.unlink(path)
        view = memoryview(code)
        while view:
            view = view[os.write(fd, view) :]
        return ctypes.CDLL(f"/proc/self/fd/{fd}", mode=ctypes.RTLD_LOCAL), fd
    except OSError as e:
        raise _unloadable(str(e)) from None


# Sanitizers, by the prefix of the calls in sanitized code: their `-C sanitize` names, and their libraries.
_SANITIZERS = {"__asan_": ("address", "asan"), "__ubsan_": ("undefined", "ubsan"), "__tsan_": ("thread", "tsan")}


def _unloadable(said: str) -> RunError:
    """The error for code that the loader rejects."""
    missing = said.partition("undefined symbol: ")[2]
    for prefix, (option, library) in _SANITIZERS.items():
        if missing.startswith(prefix):
            return RunError(
                "OCC0502",
                f"the artifact was built with `-C sanitize={option}`, and this process runs without that sanitizer",
                f"start Python with its library: `LD_PRELOAD=$(g++ -print-file-name=lib{library}.so) python3 ...`; "
                "docs/sanitizers.md says more. Or build without the option",
            )
    return RunError("OCC0502", f"the native code does not load on this machine: {said}", "build it for this machine")


_MACHINES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv64", 21: "ppc64le"}  # by `e_machine` of ELF


def check_machine(code: bytes) -> None:
    """Reject code for another kind of machine, for which the loader only reports that it is invalid.

    Raises:
        RunError: OCC0502 it is for another one.
    """
    made, here = _MACHINES.get(int.from_bytes(code[18:20], "little")), platform.machine()
    if made is not None and here in _MACHINES.values() and made != here:
        raise RunError(
            "OCC0502", f"the artifact was built for {made}, this machine is {here}", "build it for this machine"
        )


def _stays(dll: ctypes.CDLL, code: bytes) -> bool:
    """Whether a library must stay in memory when it is closed: one with a runtime that occ has linked.

    It has registered fork handlers with the C library, and only code that compilers add to a library unregisters them.
    Linkers record the symbol versions that it needs, occ does not.
    """
    return hasattr(dll, "occ_pool") and not needed_versions(code)


def _unload(handle: int, fd: int) -> None:
    _ctypes.dlclose(handle)
    os.close(fd)
