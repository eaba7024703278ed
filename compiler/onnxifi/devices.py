"""Ascend devices for ONNXIFI, driven by this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import count
from math import prod
from mmap import mmap

import numpy as np
from onnx import ModelProto

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_cann.output.toolkit import compile_parts
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.native_entry.model_metadata import DTYPES
from occ.compiler.onnxifi.models import check_outputs
from occ.compiler.onnxifi.statuses import Refused, Status
from occ.compiler.targets.registry import all_targets, on_device
from occ.runtime.acl import process
from occ.runtime.dims import evaluate
from occ.runtime.errors import RunError
from occ.runtime.manifest import TensorInfo
from occ.runtime.session import Session
from occ.runtime.signature import bind_shapes, numpy_dtype

_ALIGNMENT = 64  # of tensors in shared memory
_HBM = 1  # ACL_HBM_MEM, the memory of a device


class Devices:
    """The devices of this machine, and the models that are open on them."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._sessions: dict[str, Session] = {}
        self._numbers = count(1)

    @property
    def busy(self) -> bool:
        """Whether models are open, which end with this process."""
        return bool(self._sessions)

    def listing(self) -> str:
        """A line for each device: target, bytes of memory, name."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for number in count():
            try:
                device = process.acquire(number)
            except RunError as e:
                if e.code == "OCC0407":
                    return
                raise
            try:
                with device.current():
                    free, total = ctypes.c_size_t(), ctypes.c_size_t()
                    device.acl.status("aclrtGetMemInfo", _HBM, ctypes.byref(free), ctypes.byref(total))
                yield f"{_target_of(device.soc)} {total.value} {device.soc}"
            finally:
                process.release(device)

    def options(self, target: str, number: int) -> dict[str, str]:
        """The build options for a device; none for a target that runs on this CPU."""
        if not on_device(target):
            return {}
        device = process.acquire(number)
        try:
            return {"soc_version": device.soc}
        finally:
            process.release(device)

    def open(self, model: ModelProto, target: str, number: int) -> str:
        """Compile a model and load it onto a device; returns its number, and a line for each input and output."""
        c = Compilation(model, Settings(target, options=self.options(target, number)))
        artifact = compile_parts(c.artifact(), self.cache, 1, lambda _: None)
        check_outputs(model, artifact.manifest.outputs)
        name = str(next(self._numbers))
        self._sessions[name] = open_session(artifact, options={"device_id": number})
        m = artifact.manifest
        ports = [*(_port("in", i) for i in m.inputs), *(_port("out", o) for o in m.outputs)]
        return "\n".join([name, *ports])

    def close(self, name: str) -> None:
        self._session(name).close()
        del self._sessions[name]

    def extents(self, name: str, words: Sequence[str]) -> str:
        """The output extents for given input extents."""
        outputs = self._outputs(self._session(name), [_shape(w) for w in words])
        return "\n".join(",".join(map(str, s)) or "-" for s in outputs)

    def run(self, name: str, words: Sequence[str], file: int) -> str:
        """Run on tensors in shared memory, inputs before outputs, each at a multiple of 64 bytes."""
        session, shapes = self._session(name), [_shape(w) for w in words]
        m = session.artifact.manifest
        outputs = self._outputs(session, shapes)
        data, at = np.frombuffer(mmap(file, 0), np.uint8), 0
        arrays: list[np.ndarray] = []
        for info, shape in zip([*m.inputs, *m.outputs], [*shapes, *outputs], strict=True):
            dtype = numpy_dtype(info.dtype)
            size = prod(shape) * dtype.itemsize
            arrays.append(data[at : at + size].view(dtype).reshape(shape))
            at += -(-size // _ALIGNMENT) * _ALIGNMENT
        results = session.run({i.name: x for i, x in zip(m.inputs, arrays, strict=False)})
        for place, result in zip(arrays[len(m.inputs) :], results.values(), strict=True):
            place[...] = result
        return "\n".join(",".join(map(str, s)) or "-" for s in outputs)

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            raise Refused(Status.BACKEND_UNAVAILABLE, "the process in which the model ran has ended")
        return self._sessions[name]

    @staticmethod
    def _outputs(session: Session, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        m = session.artifact.manifest
        # Only shapes matter: arrays with a shape, but without memory.
        arrays = [np.broadcast_to(np.zeros((), np.uint8), s) for s in shapes]
        env = bind_shapes(m.inputs, arrays, {})
        return [tuple(evaluate(e, env) for e in o.shape) for o in m.outputs]


def _port(direction: str, info: TensorInfo) -> str:
    extents = ",".join(str(e if isinstance(e, int) else -1) for e in info.shape)
    return f"{direction} {1 + DTYPES.index(info.dtype)} {extents or '-'} {info.name}"


def _shape(word: str) -> tuple[int, ...]:
    return () if word == "-" else tuple(int(e) for e in word.rstrip(",").split(","))


def _target_of(soc: str) -> str:
    """The target of a SoC, by the prefix of its family."""
    names = [t.name for t in all_targets() if soc.lower().startswith(t.name)]
    return max(names, key=len, default="ascend310p")
