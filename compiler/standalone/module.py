"""Runs WebAssembly models with wasmtime."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.toolchain import cross_compiler
from occ.compiler.diagnostics import error
from occ.compiler.native_entry.model_metadata import DTYPES
from occ.compiler.objects.archive import NativeCode
from occ.compiler.objects.processors import ARCHES
from occ.compiler.standalone.program import write_program
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.signature import Signature, numpy_dtype

WASM = next(a for a in ARCHES if a.system == "wasi")
_TENSOR = struct.Struct("<2I4i16q")  # occ_tensor: data, bytes, dtype, rank, owned, by_data, extents
_NAME = "model"


def missing() -> str:
    """Missing tools for running WebAssembly, as install commands; empty if there are none."""
    debian = "apt install clang lld wasi-libc libc++-14-dev-wasm32 libclang-rt-14-dev-wasm32"
    needed = {debian: cross_compiler(WASM), "pip install wasmtime": find_spec("wasmtime")}
    return "; ".join(command for command, found in needed.items() if found is None)


class Instance:
    """A model in a WebAssembly machine, with the interface of a session.

    Raises:
        CompileError: OCC0306 nodes need Python; OCC0401, OCC0403 the compiler is missing or fails.
        RunError: OCC0505 the model does not open.
    """

    def __init__(self, artifact: Artifact, objects: Mapping[str, bytes], cache: Cache) -> None:
        wasmtime: Any = import_module("wasmtime")
        self._signature, self.inputs = Signature.of(artifact.manifest), artifact.manifest.inputs
        with cache.workspace() as folder:
            place = Path(folder) / f"{_NAME}.wasm"
            write_program(artifact, objects, place, _NAME, "shared", embed=False, cache=cache)
            weights = place.with_suffix(".weights")
            data = weights.read_bytes() if weights.is_file() else b""
            engine = wasmtime.Engine()
            self._store, linker = wasmtime.Store(engine), wasmtime.Linker(engine)
            linker.define_wasi()
            self._store.set_wasi(wasmtime.WasiConfig())
            module = wasmtime.Module.from_file(engine, str(place))
        self._exports = linker.instantiate(self._store, module).exports(self._store)
        self._call("_initialize")
        self._model = self._opened(data)

    @classmethod
    def of(cls, artifact: Artifact, native: NativeCode | None, cache: Cache) -> Instance:
        """The module of a compilation."""
        if native is None or not native.is_whole:
            raise error("OCC0401", "modules of WebAssembly cannot be linked here", help=missing())
        return cls(artifact, native.objects, cache)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once; as `Session.run`."""
        arrays, outputs = self._signature.arrays(dict(inputs)), self._signature.outputs
        held = [self._put(x.tobytes()) for x in arrays]
        tensors = [
            _TENSOR.pack(at, x.nbytes, 1 + DTYPES.index(p.dtype), x.ndim, 0, 0, *_extents(x.shape))
            for p, at, x in zip(self.inputs, held, arrays, strict=True)
        ]
        table = self._put(b"".join([*tensors, bytes(_TENSOR.size * len(outputs))]))
        results = table + _TENSOR.size * len(arrays)
        self._check(self._call("occ_run", self._model, table, len(arrays), results, len(outputs)), self._model)
        made = {o.name: self._taken(results + k * _TENSOR.size) for k, o in enumerate(outputs)}
        for k in range(len(outputs)):
            self._call("occ_free", results + k * _TENSOR.size)
        for at in (*held, table):
            self._call("free", at)
        return made

    def _opened(self, weights: bytes) -> int:
        place = self._put(bytes(4))
        if weights:
            at = self._put(weights)
            self._check(self._call(f"{_NAME}_open_memory", at, len(weights), place), 0)
        else:
            self._check(self._call(f"{_NAME}_open", 0, place), 0)
        return struct.unpack("<I", self._bytes(place, 4))[0]

    def _taken(self, at: int) -> np.ndarray:
        data, _, code, rank, _, _, *extents = _TENSOR.unpack(self._bytes(at, _TENSOR.size))
        dtype, shape = numpy_dtype(DTYPES[code - 1]), extents[:rank]
        return np.frombuffer(self._bytes(data, prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def _call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self._store, *arguments)

    def _bytes(self, at: int, count: int) -> bytes:
        return bytes(self._exports["memory"].read(self._store, at, at + count))

    def _put(self, data: bytes) -> int:
        """A copy of some bytes in the machine."""
        at = self._call("malloc", len(data) + 64) & 0xFFFFFFFF
        if not at:
            raise RunError("OCC0505", f"the WebAssembly machine has no memory for {len(data)} bytes")
        self._exports["memory"].write(self._store, data, at)
        return at

    def _check(self, status: int, model: int) -> None:
        if status:
            at = self._call("occ_error_text", model)
            text = self._bytes(at, 1024).partition(b"\0")[0].decode("utf-8", "replace")
            raise RunError("OCC0505", f"the run in WebAssembly failed: {text}")


def _extents(shape: Sequence[int]) -> list[int]:
    return [*shape, *[0] * (16 - len(shape))]
