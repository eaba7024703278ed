"""A device part that runs operator by operator, with models of `atc --singleop`.

`device/NAME.program.json` lists the operators in order: the compiled entry, and the values that each reads and writes.
Values are numbered: the inputs of the part, then its constants, then results in order.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from occ.runtime.acl.arena import Arena, Block
from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.owner import Owner
from occ.runtime.acl.prototypes import FORMATS, SINGLE_OP_TYPES

Span = tuple[int, int]
_UNDEFINED = -1  # aclDataType and aclFormat of an optional input that is absent


class OperatorModel:
    """The operators of a part, ready to run.

    Attributes:
        name: of the part, for messages.
        outputs: numbers of the part's output values.
        operators: executed in order.
        constants: device memory of each constant.
        lock: held from before the operators are queued until they are done.
    """

    def __init__(
        self, device: AclDevice, arena: Arena, name: str, program: bytes, constants: np.ndarray,
        compiled: Sequence[np.ndarray]
    ) -> None:  # fmt: skip
        """Load the operators. Called with the device current.

        Args:
            device: to load them on.
            arena: holds the constants.
            name: for messages.
            program: the record of the part, JSON.
            constants: their bytes in order, u8[n].
            compiled: models of operators, which must live as long as the process.

        Raises:
            RunError: OCC0511 the constants do not fit; OCC0512 an operator does not load.
        """
        record = json.loads(program)
        self.device, self.name, self.outputs = device, name, list(record["outputs"])
        self.lock = threading.Lock()
        self._compiled = compiled
        self._owner = Owner()
        acl, doing = device.acl, f"loading the operators of part `{name}`"
        with self._owner:
            for data in compiled:
                acl.call("aclopLoad", data.ctypes.data, data.size, doing=doing)
            arrays = [constants[start : start + size] for start, size in record["constants"]]
            self.constants = [self._upload(arena, a) for a in arrays]
            known = {record["inputs"] + k: a for k, a in enumerate(arrays)}
            self.operators = [Operator(device, self._owner, o, known) for o in record["operators"]]
        self.inputs: int = record["inputs"]

    def _upload(self, arena: Arena, array: np.ndarray) -> Block:
        block = arena.take(array.nbytes)
        self._owner.add(arena.give, block)
        self.device.upload(block.address, array)
        return block

    def close(self) -> None:
        """Release the operators' resources; their models stay loaded, because AscendCL has no call to unload them.

        Raises:
            RunError: the driver reports an error, after everything was released.
        """
        self._owner.close()


class Operator:
    """One operator: descriptions of its operands and results, and its attributes, in AscendCL's form.

    Attributes:
        reads, writes: numbers of values, -1 for an optional input that is absent.
        sizes: bytes of each result.
    """

    def __init__(
        self, device: AclDevice, owner: Owner, record: Mapping[str, Any], constants: Mapping[int, np.ndarray]
    ) -> None:
        entry, self.name = record["entry"], str(record["name"])
        self.type, self.reads, self.writes = str(entry["op"]), list(record["reads"]), list(record["writes"])
        self._acl, self._owner, self.doing = device.acl, owner, f"running operator `{self.name}` ({self.type})"
        self._constants = constants
        pairs = zip(entry["input_desc"], self.reads, strict=True)
        self.inputs = _array([self._operand(d, value) for d, value in pairs])
        self.outputs = _array([self._desc(d) for d in entry["output_desc"]])
        self.sizes = [_nbytes(d) for d in entry["output_desc"]]
        self.attrs = self._attributes(entry.get("attr", []))

    def _desc(self, record: Mapping[str, Any]) -> int:
        number, _ = SINGLE_OP_TYPES.get(record["type"], (_UNDEFINED, 0))
        shape = record["shape"]
        dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        form = FORMATS.get(record["format"], _UNDEFINED)
        made: int = self._acl.make("aclCreateTensorDesc", number, len(shape), dims, form, doing=self.doing)
        self._owner.add(self._acl.value, "aclDestroyTensorDesc", made)
        return made

    def _operand(self, record: Mapping[str, Any], value: int) -> int:
        made = self._desc(record)
        if "dynamic_input" in record:
            self._acl.call("aclSetTensorDynamicInput", made, record["dynamic_input"].encode(), doing=self.doing)
        if record.get("is_const"):
            known = self._constants[value]
            self._acl.call("aclSetTensorConst", made, known.ctypes.data, known.nbytes, doing=self.doing)
        return made

    def _attributes(self, listed: Sequence[Mapping[str, Any]]) -> int:
        attrs: int = self._acl.make("aclopCreateAttr", doing=self.doing)
        self._owner.add(self._acl.value, "aclopDestroyAttr", attrs)
        for attr in listed:
            call, values = _attribute(attr["type"], attr["value"])
            self._acl.call(call, attrs, attr["name"].encode(), *values, doing=self.doing)
        return attrs


_SCALARS: dict[str, tuple[str, Any]] = {
    "int": ("Int", int), "float": ("Float", float), "bool": ("Bool", int), "string": ("String", str.encode),
    "data_type": ("DataType", lambda v: SINGLE_OP_TYPES[v][0]),
}  # fmt: skip
_ELEMENTS = {
    "list_int": ("ListInt", ctypes.c_int64), "list_float": ("ListFloat", ctypes.c_float),
    "list_bool": ("ListBool", ctypes.c_uint8), "list_string": ("ListString", ctypes.c_char_p),
}  # fmt: skip


def _attribute(kind: str, value: Any) -> tuple[str, tuple[Any, ...]]:
    """The call that sets an attribute, and its arguments after the name."""
    if kind in _SCALARS:
        suffix, convert = _SCALARS[kind]
        return f"aclopSetAttr{suffix}", (convert(value),)
    if kind == "list_list_int":
        rows = [(ctypes.c_int64 * max(1, len(row)))(*row) for row in value]
        counts = (ctypes.c_int * max(1, len(rows)))(*map(len, value))
        pointers = (ctypes.c_void_p * max(1, len(rows)))(*map(ctypes.addressof, rows))
        return "aclopSetAttrListListInt", (len(rows), counts, pointers)
    suffix, element = _ELEMENTS[kind]
    values = [v.encode() for v in value] if kind == "list_string" else value
    return f"aclopSetAttr{suffix}", (len(values), (element * max(1, len(values)))(*values))


def _nbytes(record: Mapping[str, Any]) -> int:
    return SINGLE_OP_TYPES[record["type"]][1] * int(np.prod(record["shape"], dtype=np.int64))


def _array(handles: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(handles)))(*handles)


class OperatorLaunch:
    """Runs the operators of a part once; see `Launch`."""

    def __init__(self, model: OperatorModel, arena: Arena, inputs: Sequence[Span], outputs: Sequence[Span]) -> None:
        """Prepare an execution; arguments as for `Launch`.

        Raises:
            RunError: OCC0511 there is no memory for intermediate values; OCC0512 the driver reports an error.
        """
        self._model, self._acl, self._arena = model, model.device.acl, arena
        self._owner = Owner()
        constants = [(b.address, b.size) for b in model.constants]
        self._values: dict[int, Span] = dict(enumerate([*inputs, *constants]))
        self._given: dict[int, Span] = {}
        self._copies: list[tuple[int, Span]] = []  # outputs that are not results of operators, or occur twice
        for value, span in zip(model.outputs, outputs, strict=True):
            if value in self._values or value in self._given:
                self._copies.append((value, span))
            else:
                self._given[value] = span
        with self._owner:
            self._buffers = [self._prepare(o) for o in model.operators]

    def _prepare(self, operator: Operator) -> tuple[Any, Any]:
        for value, size in zip(operator.writes, operator.sizes, strict=True):
            self._values[value] = self._given.get(value) or self._take(size)
        return self._list(operator, operator.reads), self._list(operator, operator.writes)

    def _take(self, size: int) -> Span:
        block = self._arena.take(size)
        self._owner.add(self._arena.give, block)
        return block.address, size

    def _list(self, operator: Operator, values: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
        made: list[int] = []
        for v in values:
            address, size = self._values[v] if v >= 0 else (None, 0)
            made.append(self._acl.make("aclCreateDataBuffer", address, size, doing=operator.doing))
            self._owner.add(self._release, made[-1])
        return _array(made)

    def start(self, stream: int, *, blocking: bool) -> None:
        """Queue the operators on a stream; with `blocking`, wait for each before the next.

        Raises:
            AclError: the driver rejects one of them, or with `blocking`, one failed.
        """
        device = self._model.device
        for operator, (reads, writes) in zip(self._model.operators, self._buffers, strict=True):
            n, m = len(operator.reads), len(operator.writes)
            described = operator.type.encode(), n, operator.inputs, reads, m, operator.outputs, writes
            self._acl.call("aclopExecuteV2", *described, operator.attrs, stream, doing=operator.doing)
            if blocking:
                device.synchronize(stream, f"operator `{operator.name}` ({operator.type})")
        for value, (target, _) in self._copies:
            source, size = self._values[value]
            device.copy(target, source, size, stream)

    def check(self, expected: Sequence[tuple[int, ...]]) -> None:
        """The shapes are those for which the operators were compiled."""

    def close(self) -> None:
        """Release the resources of the execution.

        Raises:
            RunError: the driver reports an error, after everything was released.
        """
        self._owner.close()

    def _release(self, buffer: int) -> None:
        self._acl.call("aclDestroyDataBuffer", buffer, doing=f"running part `{self._model.name}`")
