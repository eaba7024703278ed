"""A compiled model (`.om`) on the device: loading, inputs, outputs, gears."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from occ.runtime.acl.arena import Arena, Block
from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.prototypes import (
    ALL_INPUTS,
    DATA_TYPES,
    DTYPE_OF,
    FORMAT_ND,
    GEAR_INPUT,
    Batches,
    ImageSizes,
    IODims,
)
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelTensor:
    """An input or output as the model describes it.

    Attributes:
        dims: extents, -1 for a variable one.
        size: bytes for the largest gear; 0 if the shape is open.
        number: its aclDataType.
    """

    name: str
    number: int
    dims: Shape
    size: int

    @property
    def dtype(self) -> str:
        return DTYPE_OF.get(self.number, f"aclDataType {self.number}")

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join('?' if d < 0 else str(d) for d in self.dims)}]"


@dataclass(frozen=True)
class Gears:
    """The sets of extents that a model was compiled for.

    Attributes:
        kind: `batch`, `image` or `dims`.
        choices: per gear the batch; height and width; or all extents of all inputs, concatenated.
        input: index of the hidden input that selects the gear.
    """

    kind: str
    choices: tuple[Shape, ...]
    input: int


class Model:
    """A loaded model.

    Attributes:
        name: for messages.
        inputs: without the hidden input of the gears.
        gears: or None.
        lock: held from before an execution is queued until it is done: AscendCL requires executions of one model to be
            sequential.
    """

    def __init__(self, device: AclDevice, arena: Arena, name: str, source: Path | np.ndarray) -> None:
        """Load a model. Called with the device current.

        Args:
            device: to load it on.
            arena: holds its weights and work space.
            name: for messages.
            source: a file, or its bytes u8[n], which must live as long as the model.

        Raises:
            RunError: OCC0511 it does not fit into device memory; OCC0510 or OCC0512 it does not load.
        """
        self.device, self.name, self._acl = device, name, device.acl
        self._arena, self._source = arena, source
        self.lock = threading.Lock()
        self._owner = Owner()
        with self._owner:
            self.bytes = self._load()
            self._describe()

    def _load(self) -> int:
        """Load the model into arena memory; returns the bytes that it takes there."""
        work, weight = ctypes.c_size_t(), ctypes.c_size_t()
        sizes = ctypes.byref(work), ctypes.byref(weight)
        number = ctypes.c_uint32()
        doing = f"loading part `{self.name}`"
        if isinstance(self._source, Path):
            path = str(self._source).encode()
            self._acl.call("aclmdlQuerySize", path, *sizes, doing=doing)
            call, where = "aclmdlLoadFromFileWithMem", (path, ctypes.byref(number))
        else:
            data = self._source.ctypes.data, self._source.size
            self._acl.call("aclmdlQuerySizeFromMem", *data, *sizes, doing=doing)
            call, where = "aclmdlLoadFromMemWithMem", (*data, ctypes.byref(number))
        larger, smaller = sorted((work, weight), key=lambda n: -n.value)  # the larger first: otherwise fragmentation
        blocks = {id(n): self._take(n.value) for n in (larger, smaller)}
        memory = [v for n in (work, weight) for v in (blocks[id(n)].address, n.value)]
        self._acl.call(call, *where, *memory, doing=doing)
        self.id = number.value
        self._owner.add(self._unload)
        return work.value + weight.value

    def _take(self, size: int) -> Block:
        block = self._arena.take(size)
        self._owner.add(self._arena.give, block)
        return block

    def _describe(self) -> None:
        doing = f"reading the description of part `{self.name}`"
        self._desc = self._acl.make("aclmdlCreateDesc", doing=doing)
        self._owner.add(self._destroy_desc)
        self._acl.call("aclmdlGetDesc", self._desc, self.id, doing=doing)
        listed = self._tensors("Input", doing)
        hidden = next((k for k, t in enumerate(listed) if t.name == GEAR_INPUT), None)
        self.inputs = [t for t in listed if t.name != GEAR_INPUT]
        self.outputs = self._tensors("Output", doing)
        self.gear_bytes = listed[hidden].size if hidden is not None else 0
        self.gears = self._gears(hidden) if hidden is not None else None
        for tensor in (*listed, *self.outputs):
            self._check_size(tensor, doing)

    def _tensors(self, side: str, doing: str) -> list[ModelTensor]:
        acl, desc = self._acl, self._desc
        made: list[ModelTensor] = []
        for k in range(acl.value(f"aclmdlGetNum{side}s", desc)):
            dims = IODims()
            acl.call(f"aclmdlGet{side}Dims", desc, k, ctypes.byref(dims), doing=doing)
            name = acl.make(f"aclmdlGet{side}NameByIndex", desc, k, doing=doing).decode("utf-8", "replace")
            number = DATA_TYPES["i64"] if name == GEAR_INPUT else acl.value(f"aclmdlGet{side}DataType", desc, k)
            size = acl.value(f"aclmdlGet{side}SizeByIndex", desc, k)
            made.append(ModelTensor(name, number, tuple(dims.dims[: dims.count]), size))
        return made

    def _check_size(self, tensor: ModelTensor, doing: str) -> None:
        """Check a size of 0: correct for empty tensors and open shapes, otherwise a failure."""
        is_open = self.gears is None and any(d < 0 for d in tensor.dims)
        if not tensor.size and not is_open and 0 not in tensor.dims:
            raise RunError("OCC0512", f"{doing} failed: AscendCL reports no size for `{tensor.name}`")

    def open_format(self, k: int) -> int:
        """The aclFormat of an input with an open shape; ND if the model does not state it."""
        found: int = self._acl.value("aclmdlGetInputFormat", self._desc, k)
        return found if found >= 0 else FORMAT_ND

    def _gears(self, hidden: int) -> Gears:
        """The gears, by querying each kind in turn: a model has one."""
        acl, doing = self._acl, f"reading the gears of part `{self.name}`"
        batches, images = Batches(), ImageSizes()
        acl.call("aclmdlGetDynamicBatch", self._desc, ctypes.byref(batches), doing=doing)
        if batches.count:
            return Gears("batch", tuple((b,) for b in batches.values[: batches.count]), hidden)
        acl.call("aclmdlGetDynamicHW", self._desc, ALL_INPUTS, ctypes.byref(images), doing=doing)
        if images.count:
            return Gears("image", tuple(tuple(images.values[k]) for k in range(images.count)), hidden)
        count = ctypes.c_size_t()
        acl.call("aclmdlGetInputDynamicGearCount", self._desc, ALL_INPUTS, ctypes.byref(count), doing=doing)
        dims = (IODims * max(1, count.value))()
        acl.call("aclmdlGetInputDynamicDims", self._desc, ALL_INPUTS, dims, count.value, doing=doing)
        return Gears("dims", tuple(tuple(d.dims[: d.count]) for d in dims[: count.value]), hidden)

    def choose(self, shapes: Sequence[Shape]) -> Shape | None:
        """The gear for the shapes of the inputs, or None for a model without gears.

        Raises:
            RunError: OCC0501 there is no such gear.
        """
        if self.gears is None:
            return None
        if self.gears.kind == "dims":
            wanted = tuple(n for s in shapes for n in s)
        else:
            free = [
                n for t, s in zip(self.inputs, shapes, strict=True) for d, n in zip(t.dims, s, strict=True) if d < 0
            ]
            wanted = tuple(free[: len(self.gears.choices[0])])
        if wanted in self.gears.choices:
            return wanted
        listed = ", ".join("x".join(map(str, c)) for c in self.gears.choices)
        raise RunError(
            "OCC0501",
            f"part `{self.name}` was compiled for {self.gears.kind} gears {listed}, not {'x'.join(map(str, wanted))}",
            "pad the input to one of them, or build with this gear too",
        )

    def current_dims(self, k: int) -> Shape:
        """Extents of an output in the last execution of a model with gears."""
        dims = IODims()
        doing = f"asking part `{self.name}` for the shape of its output"
        self._acl.call("aclmdlGetCurOutputDims", self._desc, k, ctypes.byref(dims), doing=doing)
        return tuple(dims.dims[: dims.count])

    def close(self) -> None:
        """Unload the model. Called with the device current, and with nothing of it queued.

        Raises:
            RunError: the driver reports an error, after everything was released.
        """
        self._owner.close()

    def _unload(self) -> None:
        self._acl.call("aclmdlUnload", self.id, doing=f"unloading part `{self.name}`")

    def _destroy_desc(self) -> None:
        self._acl.call("aclmdlDestroyDesc", self._desc, doing=f"releasing the description of part `{self.name}`")
