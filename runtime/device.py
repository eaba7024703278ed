"""Runs plans with device parts: on an accelerator, or on a simulator of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from occ.runtime.dims import evaluate
from occ.runtime.hostops import ROUTINES
from occ.runtime.manifest import DevicePart, Manifest, Step
from occ.runtime.session import Engine
from occ.runtime.signature import numpy_dtype


class Device(Protocol):
    """What runs device parts. Tensors and loaded parts are its own objects; the engine only passes them on."""

    def load(self, part: DevicePart, files: Mapping[str, bytes]) -> Any:
        """Make a part ready to run; `files` are the members of the artifact."""
        ...

    def allocate(self, dtype: str, shape: Sequence[int]) -> Any:
        """A tensor in device memory."""
        ...

    def free(self, tensor: Any) -> None:
        """Give a tensor back."""
        ...

    def upload(self, source: np.ndarray, target: Any, stream: int) -> None: ...

    def execute(self, part: Any, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None: ...

    def download(self, source: Any, target: np.ndarray, stream: int) -> None: ...

    def wait(self, stream: int, on: int) -> None: ...

    def sync(self, stream: int) -> None: ...

    def close(self) -> None:
        """Unload everything; the device is not used afterwards."""
        ...


class DeviceEngine:
    """Executes a plan with device parts and islands.

    Args:
        manifest: of the artifact.
        weights: constants that the plan copies.
        files: members of the artifact.
        device: where the parts run.
        islands: engines of the islands, by name; each takes and gives arrays by position.
    """

    def __init__(
        self, manifest: Manifest, weights: Sequence[np.ndarray], files: Mapping[str, bytes], device: Device,
        islands: Mapping[str, Engine],
    ) -> None:  # fmt: skip
        self.manifest, self.device = manifest, device
        self._weights, self._islands = weights, islands
        self._parts = {p.name: device.load(p, files) for p in manifest.parts}

    def run(
        self, inputs: Sequence[np.ndarray], env: Mapping[str, int], outputs: Sequence[np.ndarray | None]
    ) -> list[np.ndarray]:
        """One run; see `occ.runtime.native.NativeEngine.run`."""
        run = _Run(self, inputs, env, outputs)
        try:
            for step in self.manifest.plan.steps:
                run.step(step)
        finally:
            run.release()
        return run.results


class _Run:
    """The buffers of one run."""

    def __init__(
        self, engine: DeviceEngine, inputs: Sequence[np.ndarray], env: Mapping[str, int],
        outputs: Sequence[np.ndarray | None],
    ) -> None:  # fmt: skip
        self.engine, self.env = engine, env
        self.plan = engine.manifest.plan
        self.host: dict[int, np.ndarray] = {}  # by storage
        self.tensors: dict[int, Any] = {}
        self.results = [self._result(k) if o is None else o for k, o in enumerate(outputs)]
        given = {"input": inputs, "output": self.results, "weight": engine._weights}
        for k, s in enumerate(self.plan.storages):
            if s.kind in given:
                self.host[k] = given[s.kind][s.index]

    def _result(self, k: int) -> np.ndarray:
        info = self.engine.manifest.outputs[k]
        return np.empty(self._shape(info.shape), numpy_dtype(info.dtype))

    def _shape(self, shape: Sequence[Any]) -> tuple[int, ...]:
        return tuple(evaluate(e, self.env) for e in shape)

    def array(self, buffer: int) -> np.ndarray:
        """A host buffer."""
        b = self.plan.buffers[buffer]
        shape, dtype = self._shape(b.shape), numpy_dtype(b.dtype)
        if b.storage not in self.host:
            self.host[b.storage] = np.empty(shape, dtype)
        flat = self.host[b.storage].reshape(-1)
        return (flat.view(dtype) if flat.dtype != dtype else flat).reshape(shape)

    def tensor(self, buffer: int) -> Any:
        """A device buffer."""
        b = self.plan.buffers[buffer]
        if b.storage not in self.tensors:
            self.tensors[b.storage] = self.engine.device.allocate(b.dtype, self._shape(b.shape))
        return self.tensors[b.storage]

    def step(self, step: Step) -> None:
        """Run or start one step."""
        device, stream = self.engine.device, step.attrs.get("stream", 0)
        match step.kind:
            case "upload":
                device.upload(self.array(step.reads[0]), self.tensor(step.writes[0]), stream)
            case "device":
                ins, outs = ([self.tensor(b) for b in bs] for bs in (step.reads, step.writes))
                device.execute(self.engine._parts[step.name], ins, outs, stream)
            case "download":
                device.download(self.tensor(step.reads[0]), self.array(step.writes[0]), stream)
            case "wait":
                device.wait(stream, step.attrs["on"])
            case "sync":
                device.sync(stream)
            case _:
                self._on_host(step)

    def _on_host(self, step: Step) -> None:
        reads, writes = ([self.array(b) for b in bs] for bs in (step.reads, step.writes))
        if step.kind == "island":
            self.engine._islands[step.name].run(reads, self.env, writes)
            return
        results = reads if step.kind == "copy" else ROUTINES[step.name](reads, step.attrs, self.env)
        for target, value in zip(writes, results, strict=True):
            target[...] = value

    def release(self) -> None:
        """Give the device memory of the run back."""
        for tensor in self.tensors.values():
            self.engine.device.free(tensor)
        self.tensors.clear()
