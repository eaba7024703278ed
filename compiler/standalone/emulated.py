"""Runs artifacts for other processors under QEMU's user-mode emulation."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import weakref
from collections.abc import Iterator, Sequence
from importlib.resources import files
from math import prod
from pathlib import Path

import numpy as np

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.toolchain import cross_compiler, run_all
from occ.compiler.diagnostics import error
from occ.compiler.native_entry.model_metadata import DTYPES
from occ.compiler.native_entry.read_routines import host_steps
from occ.compiler.objects.processors import Arch, arch_of
from occ.compiler.standalone.libocc import SYSTEM, libocc
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.signature import Signature, numpy_dtype

# Processor features for the emulator: 128-bit vector registers.
_PROCESSORS = {"riscv64": ("-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0")}


def missing(arch: Arch) -> str:
    """Missing packages for emulating a kind of machine; empty if there are none."""
    needed = {f"g++-{arch.gnu}": cross_compiler(arch), "qemu-user-static": _emulator(arch)}
    return " ".join(name for name, found in needed.items() if found is None)


def _emulator(arch: Arch) -> str | None:
    return next(filter(None, map(shutil.which, (f"qemu-{arch.name}-static", f"qemu-{arch.name}"))), None)


class Emulated:
    """A model in an emulator, with the interface of a session.

    Raises:
        CompileError: OCC0401 the cross compiler or the emulator is missing; OCC0306 nodes need Python.
    """

    def __init__(self, artifact: Artifact, cache: Cache) -> None:
        arch = arch_of(artifact.manifest.machine)
        assert arch is not None, "a whole artifact has a kind of machine"
        if lacks := missing(arch):
            raise error("OCC0401", f"programs for {arch.name} cannot be run here", help=f"`apt install {lacks}`")
        if lacks := host_steps(artifact.manifest):
            raise error("OCC0306", f"programs without Python cannot run this model: {lacks[0]}", notes=lacks[1:8])
        self._artifact, self._signature = artifact, Signature.of(artifact.manifest)
        self.inputs = artifact.manifest.inputs
        self._command = [
            str(_emulator(arch)),
            *_PROCESSORS.get(arch.name, ()),
            "-L",
            f"/usr/{arch.gnu}",
            str(_runner(arch, cache)),
        ]
        folder = cache.workspace()
        weakref.finalize(self, folder.cleanup)
        self._path = Path(folder.name) / "model.occ"
        artifact.save(self._path)

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run once; as `Session.run`."""
        arrays = self._signature.arrays(inputs)
        data = b"".join(_packed(i.dtype, x) for i, x in zip(self.inputs, arrays, strict=True))
        done = subprocess.run([*self._command, str(self._path)], input=data, capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip() or f"it ended with {done.returncode}"
            raise RunError("OCC0505", f"the run in the emulator failed: {said}")
        outputs = _unpacked(done.stdout, len(self._signature.outputs))
        return {o.name: x for o, x in zip(self._signature.outputs, outputs, strict=True)}


def _packed(dtype: str, x: np.ndarray) -> bytes:
    head = struct.pack(f"<2i{x.ndim}q", 1 + DTYPES.index(dtype), x.ndim, *x.shape)
    return (
        head + x.tobytes()
    )  # in C order regardless of the array's; np.ascontiguousarray would turn scalars into vectors


def _unpacked(data: bytes, count: int) -> Iterator[np.ndarray]:
    at = 0
    for _ in range(count):
        code, rank = struct.unpack_from("<2i", data, at)
        shape: Sequence[int] = struct.unpack_from(f"<{rank}q", data, at + 8)
        dtype, at = numpy_dtype(DTYPES[code - 1]), at + 8 + 8 * rank
        yield np.frombuffer(data, dtype, prod(shape), at).reshape(shape)
        at += prod(shape) * dtype.itemsize


def _runner(arch: Arch, cache: Cache) -> Path:
    """run_artifact.c for a kind of machine, linked with libocc."""
    cxx = cross_compiler(arch)
    assert cxx is not None, "looked for before"
    source, runtime = files("occ.compiler.standalone").joinpath("run_artifact.c").read_bytes(), libocc(cache, arch)
    key = digest(["runner", runtime.name, source])
    made = cache.path("tool", key, ".runner")
    if cache.has("tool", key, ".runner"):
        return made
    with cache.turn(key), cache.workspace() as folder:
        if not cache.has("tool", key, ".runner"):
            (Path(folder) / "run_artifact.c").write_bytes(source)
            flags = ["-O1", "-x", "c", f"-I{runtime / 'include'}", "run_artifact.c", "-x", "none"]
            library = str(runtime / "lib/libocc.a")
            run_all([[*cxx.command, *flags, library, *SYSTEM, "-o", "runner"]], Path(folder))
            os.chmod(cache.adopt("tool", key, Path(folder) / "runner", ".runner"), 0o755)
    return made
