"""libocc for tests: its functions through ctypes, and programs that are linked with it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.cache.cache import Cache
from occ.compiler.native_entry.model_metadata import DTYPES
from occ.compiler.standalone.libocc import SYSTEM, libocc
from occ.runtime.signature import numpy_dtype

ROOT = Path(__file__).parents[2]
OK, ARGUMENT, FILE, DAMAGED, UNSUPPORTED, INPUT, CAPACITY, MEMORY, RUN = range(9)


class Tensor(ctypes.Structure):
    """occ_tensor of occ.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("owned", ctypes.c_int32),
        ("by_data", ctypes.c_int32),
        ("extents", ctypes.c_int64 * 16),
    )

    @classmethod
    def of(cls, x: np.ndarray) -> Tensor:
        t = cls(x.ctypes.data, x.nbytes, code_of(x.dtype), x.ndim)
        t.extents[: x.ndim] = x.shape
        return t

    def array(self) -> np.ndarray:
        dtype = numpy_dtype(DTYPES[self.dtype - 1])
        shape = tuple(self.extents[: self.rank])
        data = ctypes.string_at(self.data, int(np.prod(shape)) * dtype.itemsize) if self.data else b""
        return np.frombuffer(data, dtype).reshape(shape)


class Port(ctypes.Structure):
    """occ_port of occ.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("extents", ctypes.POINTER(ctypes.c_int64)),
        ("symbols", ctypes.POINTER(ctypes.c_char_p)),
    )


def code_of(dtype: np.dtype) -> int:
    return 1 + next(k for k, d in enumerate(DTYPES) if numpy_dtype(d) == dtype)


@cache
def prefix() -> Path:
    return libocc(Cache())


@cache
def library() -> ctypes.CDLL:
    dll = ctypes.CDLL(str(prefix() / "lib/libocc.so"))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, kinds in {
        "open": [ctypes.c_char_p, pointer], "open_memory": [pointer, size, pointer], "open_fd": [ctypes.c_int, pointer],
        "verify": [pointer], "run": [pointer, pointer, size, pointer, size], "set_threads": [pointer, ctypes.c_int],
        "output_extents": [pointer, pointer, size, pointer, size], "set_parallel": [pointer, pointer, pointer],
        "close": [pointer], "free": [pointer], "error_text": [pointer], "name": [pointer], "inputs": [pointer],
        "outputs": [pointer], "input": [pointer, size], "output": [pointer, size],
    }.items():  # fmt: skip
        getattr(dll, f"occ_{name}").argtypes = kinds
    for name in ("error_text", "name"):
        getattr(dll, f"occ_{name}").restype = ctypes.c_char_p
    for name in ("inputs", "outputs"):
        getattr(dll, f"occ_{name}").restype = size
    for name in ("input", "output"):
        getattr(dll, f"occ_{name}").restype = ctypes.POINTER(Port)
    return dll


def error_text(model: int | None = None) -> str:
    return library().occ_error_text(model).decode()


class Failed(Exception):
    """A function of libocc returned an error: `code` and its text."""

    def __init__(self, code: int, model: int | None = None) -> None:
        super().__init__(error_text(model))
        self.code = code


class Model:
    """A model that libocc has opened, by path or from bytes."""

    def __init__(self, source: Path | bytes) -> None:
        self.dll, handle = library(), ctypes.c_void_p()
        self.address: int | None = None
        self._bytes = source
        if isinstance(source, bytes):
            code = self.dll.occ_open_memory(source, len(source), ctypes.byref(handle))
        else:
            code = self.dll.occ_open(os.fsencode(source), ctypes.byref(handle))
        if code:
            assert not handle.value
            raise Failed(code)
        self.address = handle.value

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.dll.occ_close(self.address)

    def check(self, code: int) -> None:
        if code:
            raise Failed(code, self.address)

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The outputs of a run on the given inputs, in memory of the library."""
        inputs = (Tensor * len(arrays))(*map(Tensor.of, arrays))
        outputs = (Tensor * self.dll.occ_outputs(self.address))()
        code = self.dll.occ_run(self.address, inputs, len(inputs), outputs, len(outputs))
        made = [t.array() for t in outputs] if not code else []
        for t in outputs:
            self.dll.occ_free(ctypes.byref(t))
        self.check(code)
        return made


def two_tensors(x: np.ndarray) -> tuple[Any, Any]:
    """Arrays of one input, and of one output without memory."""
    return (Tensor * 1)(Tensor.of(x)), (Tensor * 1)()


def compile_c(source: Path, out: Path, libraries: Sequence[str | Path] = (), *flags: str) -> Path:
    """A program in C or C++, linked with libraries, or with libocc."""
    tool = shutil.which("cc" if source.suffix == ".c" else "g++") or shutil.which("c++")
    assert tool is not None
    linked = [*map(str, libraries)] if libraries else [str(prefix() / "lib/libocc.a")]
    include = f"-I{prefix() / 'include'}"
    standard = ["-std=c11", "-D_GNU_SOURCE"] if source.suffix == ".c" else ["-std=c++17"]
    command = [
        tool,
        *standard,
        "-Wall",
        "-Wextra",
        "-Werror",
        include,
        *flags,
        str(source),
        *linked,
        *SYSTEM,
        "-o",
        str(out),
    ]
    subprocess.run(command, check=True)
    return out


def block(page: str, language: str, index: int) -> str:
    """A block of code on a page of the documentation."""
    return (ROOT / "docs" / page).read_text().split(f"```{language}\n")[1 + index].split("```", 1)[0]
