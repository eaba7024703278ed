"""One execution of a device model: datasets, gear selection, output shapes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from occ.runtime.acl.arena import Arena
from occ.runtime.acl.model import Model, ModelTensor, Shape
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.prototypes import IODims
from occ.runtime.errors import RunError

Span = tuple[int, int]  # address on the device, bytes


class Launch:
    """Executes a model once: created, started, and closed when it is done, all with the device current."""

    def __init__(
        self, model: Model, arena: Arena, inputs: Sequence[Span], outputs: Sequence[Span], shapes: Sequence[Shape]
    ) -> None:
        """Prepare an execution.

        Args:
            model: the model; the caller holds its lock until the execution is done.
            arena: holds the hidden input of a model with gears.
            inputs: device memory of each input, in the order of the model.
            outputs: device memory for each output.
            shapes: extents of each input.

        Raises:
            RunError: OCC0501 there is no gear for these extents; OCC0512 the driver reports an error.
        """
        self._model, self._acl = model, model.device.acl
        self._doing = f"running part `{model.name}`"
        gear = model.choose(shapes)
        self._owner = Owner()
        with self._owner:
            spans = list(inputs)
            if model.gears is not None:
                block = arena.take(model.gear_bytes)
                self._owner.add(arena.give, block)
                spans.insert(model.gears.input, (block.address, model.gear_bytes))
            self._inputs = self._dataset(spans)
            self._outputs = self._dataset(outputs)
            if gear is not None:
                self._set_gear(gear)
            elif any(d < 0 for t in model.inputs for d in t.dims):
                for k, (tensor, shape) in enumerate(zip(model.inputs, shapes, strict=True)):
                    self._set_shape(k, tensor, shape)

    def _dataset(self, spans: Sequence[Span]) -> int:
        acl = self._acl
        dataset = acl.make("aclmdlCreateDataset", doing=self._doing)
        self._owner.add(self._release, "aclmdlDestroyDataset", dataset)
        for address, size in spans:
            buffer = acl.make("aclCreateDataBuffer", address, max(1, size), doing=self._doing)
            self._owner.add(self._release, "aclDestroyDataBuffer", buffer)
            acl.call("aclmdlAddDatasetBuffer", dataset, buffer, doing=self._doing)
        return dataset

    def _set_gear(self, gear: Shape) -> None:
        gears = self._model.gears
        assert gears is not None
        call, values = "aclmdlSetDynamicBatchSize", tuple(gear)
        if gears.kind == "image":
            call = "aclmdlSetDynamicHWSize"
        elif gears.kind == "dims":
            dims = IODims(b"", len(gear))
            dims.dims[: len(gear)] = gear
            call, values = "aclmdlSetInputDynamicDims", (ctypes.byref(dims),)
        self._acl.call(call, self._model.id, self._inputs, gears.input, *values, doing=self._doing)

    def _set_shape(self, k: int, tensor: ModelTensor, shape: Shape) -> None:
        """Set the extents of an input of a model with open shapes."""
        dims, form = (ctypes.c_int64 * max(1, len(shape)))(*shape), self._model.open_format(k)
        desc = self._acl.make("aclCreateTensorDesc", tensor.number, len(shape), dims, form, doing=self._doing)
        self._owner.add(self._acl.value, "aclDestroyTensorDesc", desc)
        self._acl.call("aclmdlSetDatasetTensorDesc", self._inputs, desc, k, doing=self._doing)

    def start(self, stream: int | None, *, blocking: bool) -> None:
        """Queue the execution on a stream; with `blocking`, which needs none, return when it is done.

        Raises:
            AclError: the driver refuses, or with `blocking`, the execution failed.
        """
        if blocking:
            self._acl.call("aclmdlExecute", self._model.id, self._inputs, self._outputs, doing=self._doing)
        else:
            self._acl.call("aclmdlExecuteAsync", self._model.id, self._inputs, self._outputs, stream, doing=self._doing)

    def shapes(self) -> list[Shape]:
        """Extents of the outputs, after the execution is done."""
        model = self._model
        if model.gears is not None:
            return [model.current_dims(k) for k in range(len(model.outputs))]
        return [t.dims if all(d >= 0 for d in t.dims) else self._dataset_shape(k) for k, t in enumerate(model.outputs)]

    def _dataset_shape(self, k: int) -> Shape:
        desc = self._acl.make("aclmdlGetDatasetTensorDesc", self._outputs, k, doing=self._doing)
        extent = ctypes.c_int64()
        shape: list[int] = []
        for axis in range(self._acl.value("aclGetTensorDescNumDims", desc)):
            self._acl.call("aclGetTensorDescDimV2", desc, axis, ctypes.byref(extent), doing=self._doing)
            shape.append(extent.value)
        return tuple(shape)

    def check(self, expected: Sequence[Shape]) -> None:
        """Compare the actual extents with the plan's.

        Raises:
            RunError: OCC0512 they differ, so memory was read wrongly.
        """
        for tensor, got, want in zip(self._model.outputs, self.shapes(), expected, strict=True):
            if got != tuple(want):
                raise RunError(
                    "OCC0512", f"output `{tensor.name}` of part `{self._model.name}` has shape {got}, not {tuple(want)}"
                )

    def output_shapes(self, most: Sequence[Shape]) -> list[Shape]:
        """The actual extents, if they are data-dependent.

        Raises:
            RunError: OCC0512 they exceed the allocated memory.
        """
        found = self.shapes()
        for tensor, got, room in zip(self._model.outputs, found, most, strict=True):
            if len(got) != len(room) or any(not 0 <= n <= d for n, d in zip(got, room, strict=True)):
                what = (
                    f"output `{tensor.name}` of part `{self._model.name}` has shape {got}, and room for {tuple(room)}"
                )
                raise RunError("OCC0512", what)
        return found

    def close(self) -> None:
        """Release the datasets.

        Raises:
            RunError: the driver reports an error, after everything was released.
        """
        self._owner.close()

    def _release(self, call: str, handle: int) -> None:
        self._acl.call(call, handle, doing=self._doing)
