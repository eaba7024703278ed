"""Runs plans with device parts: on an accelerator, or on a simulator of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from occ.runtime.attributes import decode_attrs
from occ.runtime.device_part import DevicePart
from occ.runtime.dims import evaluate, is_known
from occ.runtime.errors import RunError
from occ.runtime.hostops import run_host
from occ.runtime.manifest import Manifest, Step
from occ.runtime.resident import Resident
from occ.runtime.session import Engine
from occ.runtime.signature import bind_shapes, numpy_dtype

_ON_DEVICE = ("upload", "device", "download", "wait", "sync")


class DeviceRun(Protocol):
    """One run on a device. Streams are numbered within the run and not shared between runs."""

    def allocate(self, dtype: str, shape: Sequence[int]) -> Any:
        """A tensor in device memory, valid until the run is closed."""
        ...

    def adopt(self, resident: Resident) -> Any:
        """The caller's tensor as a tensor of the run, without a copy.

        Raises:
            RunError: it is on another device.
        """
        ...

    def upload(self, source: np.ndarray, target: Any, stream: int) -> None: ...

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Copy a tensor to another on the device."""
        ...

    def execute(self, part: Any, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None: ...

    def measure(
        self, part: Any, inputs: Sequence[Any], outputs: Sequence[Any], stream: int
    ) -> Sequence[tuple[int, ...]]:
        """Execute a part whose results have data-dependent extents, and wait for it.

        Args:
            part: the part.
            inputs: its operands.
            outputs: memory for its results, of the maximum extents.
            stream: where it runs.

        Returns:
            The extents of the results.

        Raises:
            RunError: one exceeds its memory, or as `execute` and `sync`.
        """
        ...

    def beginning(self, tensor: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """A prefix of a tensor, with the given shape."""
        ...

    def download(self, source: Any, target: np.ndarray, stream: int) -> None:
        """Copy to the host; `target` is complete after the next `sync` of the stream."""
        ...

    def wait(self, stream: int, on: int) -> None: ...

    def sync(self, stream: int) -> None: ...

    def finish(self) -> None:
        """Wait for all streams.

        Raises:
            RunError: queued work failed.
        """
        ...

    def close(self) -> None:
        """Release the run's memory, after waiting for its queued work."""
        ...


class Accelerator(Protocol):
    """The interface of devices.

    Tensors and loaded parts are its own objects, opaque to the engine.
    """

    def load(self, part: DevicePart, files: Mapping[str, bytes]) -> Any:
        """Make a part ready to run; `files` are the members of the artifact."""
        ...

    def begin(self) -> DeviceRun:
        """Start a run; thread-safe."""
        ...

    def close(self) -> None:
        """Unload everything; the device is not used afterwards."""
        ...


class DeviceEngine:
    """Executes a plan with device parts and CPU subgraphs.

    Args:
        manifest: of the artifact.
        weights: constants that the plan copies.
        files: members of the artifact.
        device: where the parts run; closed with the engine, or when a part does not load.
        cpu_subgraphs: engines of the CPU subgraphs, by name; arrays are passed by position.
    """

    resident = True

    def __init__(
        self, manifest: Manifest, weights: Sequence[np.ndarray], files: Mapping[str, bytes], device: Accelerator,
        cpu_subgraphs: Mapping[str, Engine],
    ) -> None:  # fmt: skip
        self.manifest, self.device = manifest, device
        self._weights, self._cpu_subgraphs = weights, cpu_subgraphs
        buffers, steps = manifest.plan.buffers, manifest.plan.steps
        self.on_host = {buffers[b].storage for s in steps if s.kind not in _ON_DEVICE for b in s.reads}
        try:
            self._parts = {p.name: device.load(p, files) for p in manifest.parts}
        except BaseException:
            device.close()
            raise

    def run(self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[Any]) -> list[Any]:
        """One run; see `occ.runtime.native.engine.NativeEngine.run`. Inputs and outputs may also be on the device.

        Raises:
            RunError: OCC0501 no gear has these extents; or raised by the device.
        """
        for part in self.manifest.parts:
            _check_gear(part, env)
        on_device = self.device.begin()
        try:
            run = _Run(self, on_device, inputs, env, outputs)
            for step in self.manifest.plan.steps:
                run.step(step)
            on_device.finish()
            results = run.finish()
        except BaseException:
            with suppress(RunError):  # the error in flight is the one to report
                on_device.close()
            raise
        on_device.close()
        return results

    def close(self) -> None:
        """Unload the parts and release the device.

        Raises:
            RunError: the driver reports an error.
        """
        self.device.close()


def _check_gear(part: DevicePart, env: Mapping[str, int]) -> None:
    for name, (least, most, step) in part.ranges.items():
        n = env.get(name, least)
        if n < least or n > most >= 0 or (n - least) % step:
            taken = f"{least} to {'any' if most < 0 else most}" + (f" in steps of {step}" if step > 1 else "")
            raise RunError("OCC0501", f"the model was built for other extents than {name}={n}", f"it takes {taken}")
    for name, (of, plus) in part.sums.items():
        if env.get(name, 0) != env.get(of, 0) + plus:
            found = f"{name}={env.get(name)} and {of}={env.get(of)}"
            raise RunError("OCC0501", f"the model was built for other extents than {found}", f"{name} is {of} + {plus}")
    if part.gears and not any(all(env.get(s) == n for s, n in gear.items()) for gear in part.gears):
        have = ", ".join(f"{s}={env.get(s)}" for s in part.gears[0])
        known = "; ".join(", ".join(f"{s}={n}" for s, n in gear.items()) for gear in part.gears)
        raise RunError("OCC0501", f"the model was built for other extents than {have}", f"its gears: {known}")


class CpuSubgraph:
    """A CPU subgraph as an engine: its sizes follow from its input arrays."""

    resident = False

    def __init__(self, manifest: Manifest, engine: Engine) -> None:
        self.manifest, self.engine = manifest, engine

    def run(self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[Any]) -> list[Any]:
        """One run; see `Engine`."""
        return self.engine.run(inputs, bind_shapes(self.manifest.inputs, inputs, env), outputs)


class _Run:
    """The buffers of one run, by storage.

    Outputs and storages of kind `host` with data-dependent extents exist once the step that produces them has run.
    """

    def __init__(
        self, engine: DeviceEngine, on_device: DeviceRun, inputs: Sequence[Any], env: Mapping[str, int],
        outputs: Sequence[Any],
    ) -> None:  # fmt: skip
        self.engine, self.device, self.env = engine, on_device, env
        self.plan = engine.manifest.plan
        self.host: dict[int, np.ndarray] = {}
        self.resident: dict[int, Resident] = {}
        self.tensors: dict[int, Any] = {}
        self.found: dict[int, tuple[int, ...]] = {}  # data-dependent extents of device buffers
        self.results = [self._result(k) if o is None else o for k, o in enumerate(outputs)]
        given = {"input": inputs, "output": self.results, "weight": engine._weights}
        for k, s in enumerate(self.plan.storages):
            if s.kind in given:
                value = given[s.kind][s.index]
                if isinstance(value, Resident):
                    self.resident[k] = value
                elif value is not None:
                    self.host[k] = value
        self._bind_outputs()

    def _bind_outputs(self) -> None:
        """Make parts write directly to outputs that the caller keeps on the device."""
        uploaded = {self._storage(s.writes[0]) for s in self.plan.steps if s.kind == "upload"}
        for s in self.plan.steps:
            if s.kind == "download" and (bound := self.resident.get(self._storage(s.writes[0]))) is not None:
                if not self._is_known(s.reads[0]):
                    continue
                source = self._storage(s.reads[0])
                if source not in self.tensors and source not in uploaded:
                    self.tensors[source] = self.device.adopt(bound)

    def _storage(self, buffer: int) -> int:
        return self.plan.buffers[buffer].storage

    def _is_known(self, buffer: int) -> bool:
        """Whether the extents of a buffer are known before its step runs."""
        return all(is_known(e, self.env) for e in self.plan.buffers[buffer].shape)

    def _result(self, k: int) -> np.ndarray | None:
        info = self.engine.manifest.outputs[k]
        if info.kind != "tensor" or not all(is_known(e, self.env) for e in info.shape):
            return None
        return np.empty(self._shape(info.shape), numpy_dtype(info.dtype))

    def _shape(self, shape: Sequence[Any]) -> tuple[int, ...]:
        return tuple(evaluate(e, self.env) for e in shape)

    def array(self, buffer: int) -> np.ndarray:
        """A host buffer; for a tensor that the caller keeps on the device, a copy."""
        b = self.plan.buffers[buffer]
        if b.storage in self.host and not self._is_known(buffer):
            return self.host[b.storage]
        shape, dtype = self._shape(b.shape), numpy_dtype(b.dtype)
        if b.storage not in self.host:
            bound = self.resident.get(b.storage)
            is_input = self.plan.storages[b.storage].kind == "input"
            self.host[b.storage] = np.asarray(bound) if is_input else np.empty(shape, dtype)
        flat = self.host[b.storage].reshape(-1)
        return (flat.view(dtype) if flat.dtype != dtype else flat).reshape(shape)

    def _is_sized(self, buffer: int) -> bool:
        """Whether a host buffer can be allocated before its step runs."""
        b = self.plan.buffers[buffer]
        kind = self.plan.storages[b.storage].kind
        return (
            b.dtype != ""
            and kind != "host"
            and (kind != "output" or b.storage in self.host or b.storage in self.resident)
        )

    def _value(self, buffer: int) -> Any:
        """A host buffer that a step reads, or that a step has produced."""
        storage = self._storage(buffer)
        return self.array(buffer) if self._is_sized(buffer) else self.host[storage]

    def tensor(self, buffer: int) -> Any:
        """A device buffer."""
        b = self.plan.buffers[buffer]
        if b.storage not in self.tensors:
            self.tensors[b.storage] = self.device.allocate(b.dtype, self._shape(b.shape))
        return self.tensors[b.storage]

    def step(self, step: Step) -> None:
        """Run or start one step."""
        device, stream = self.device, step.attrs.get("stream", 0)
        match step.kind:
            case "upload":
                self._upload(step, stream)
            case "device" if "max_shapes" in step.attrs:
                self._measure(step, stream)
            case "device":
                ins, outs = ([self.tensor(b) for b in bs] for bs in (step.reads, step.writes))
                device.execute(self.engine._parts[step.name], ins, outs, stream)
            case "download":
                self._download(step, stream)
            case "wait":
                device.wait(stream, step.attrs["on"])
            case "sync":
                device.sync(stream)
            case _:
                self._on_host(step)

    def _measure(self, step: Step, stream: int) -> None:
        """Run a part whose results have data-dependent extents."""
        outs: list[Any] = []
        for b, room in zip(step.writes, step.attrs["max_shapes"], strict=True):
            kind = self.plan.buffers[b].dtype
            outs.append(self.device.allocate(kind, self._shape(room)) if room else self.tensor(b))
        ins = [self.tensor(b) for b in step.reads]
        shapes = self.device.measure(self.engine._parts[step.name], ins, outs, stream)
        for b, room, tensor, shape in zip(step.writes, step.attrs["max_shapes"], outs, shapes, strict=True):
            if room:
                storage = self._storage(b)
                self.found[storage] = tuple(shape)
                self.tensors[storage] = self.device.beginning(tensor, self.plan.buffers[b].dtype, tuple(shape))

    def _upload(self, step: Step, stream: int) -> None:
        bound = self.resident.get(self._storage(step.reads[0]))
        target = self._storage(step.writes[0])
        if bound is not None and target not in self.tensors:
            self.tensors[target] = self.device.adopt(bound)
        else:
            self.device.upload(self.array(step.reads[0]), self.tensor(step.writes[0]), stream)

    def _download(self, step: Step, stream: int) -> None:
        source, bound = self.tensor(step.reads[0]), self.resident.get(self._storage(step.writes[0]))
        shape = self.found.get(self._storage(step.reads[0]))
        if shape is not None:
            self._fit(step, shape, bound)
        if bound is None:
            self.device.download(source, self.array(step.writes[0]), stream)
            return
        target = self.device.adopt(bound)
        if target != source:
            self.device.copy(source, target, stream)
        if self._storage(step.writes[0]) in self.engine.on_host:
            self.device.download(source, self.array(step.writes[0]), stream)

    def _fit(self, step: Step, shape: tuple[int, ...], bound: Resident | None) -> None:
        """Allocate the host buffer of a download, now that its extents are known.

        Raises:
            RunError: OCC0501 the caller keeps the result on the device, in a tensor with other extents.
        """
        if bound is not None and tuple(bound.shape) != shape:
            what = f"the data have decided that an output has the shape {list(shape)}, and {bound!r} is to hold it"
            raise RunError("OCC0501", what, "let the run allocate the output")
        storage = self._storage(step.writes[0])
        if bound is None or storage in self.engine.on_host:
            self.host[storage] = np.empty(shape, numpy_dtype(self.plan.buffers[step.writes[0]].dtype))

    def _on_host(self, step: Step) -> None:
        reads = [self._value(b) for b in step.reads]
        if step.kind == "cpu_subgraph":
            writes = [self.array(b) if self._is_sized(b) else None for b in step.writes]
            made = self.engine._cpu_subgraphs[step.name].run(reads, self.env, writes)
            self.host |= {self._storage(b): v for b, v in zip(step.writes, made, strict=True)}
            return
        if step.kind == "copy" and not self._is_sized(step.writes[0]):
            self.host[self._storage(step.writes[0])] = reads[0]
            return
        writes = [self.array(b) for b in step.writes]
        results = reads if step.kind == "copy" else run_host(step.name, reads, decode_attrs(step.attrs), step.nodes)
        for target, value in zip(writes, results, strict=True):
            target[...] = value

    def finish(self) -> list[Any]:
        """The results, with host-computed ones copied to the caller's device tensors."""
        for k, bound in self.resident.items():
            if self.plan.storages[k].kind == "output" and k in self.host:
                bound.write(self.host[k])
        made = {
            s.index: self.host[k] for k, s in enumerate(self.plan.storages) if s.kind == "output" and k in self.host
        }
        return [made[k] if r is None else r for k, r in enumerate(self.results)]
