"""Steps of a plan that Python runs at the request of a native entry (docs/native.md)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from occ.runtime.buffers import aligned
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.manifest import Buffer, Manifest, Plan, Step
from occ.runtime.native.call import BEGIN, END, FIND, OUTPUT, STORE, UNKNOWN, EntryCall, symbol_names
from occ.runtime.signature import numpy_dtype

RunStep = Callable[[Step, list[Any], Mapping[str, int]], list[Any]]

_Shown = tuple[int, list[int], list[int]]  # address, extents, strides in elements

_FIRST = 0x0CC5_0000_0000_0000  # marks handles, distinct from anything else in memory
_MANY = 1024  # values of a run from which unused ones are collected


@dataclass(frozen=True)
class KernelRun:
    """A kernel that ran.

    Attributes:
        traffic: bytes of tensors read and written.
        operations: arithmetic operations performed.
    """

    step: Step
    traffic: int
    operations: int


Observer = Callable[[KernelRun, int, int], None]  # a kernel that ran, from and to nanoseconds of `perf_counter_ns`


@dataclass(frozen=True)
class _Operand:
    """A buffer of a step.

    Attributes:
        handle: what is there is the number of a value: a sequence, an optional, a map, texts, a tensor of unknown rank.
        rank: of a tensor; 0 of values of which that is not known.
        fixed: it is a constant.
        count: how many numbers describe it: extents, and strides if it may not be dense.
    """

    dtype: np.dtype[Any]
    rank: int
    handle: bool
    opaque: bool
    strided: bool
    fixed: bool
    count: int

    @classmethod
    def of(cls, plan: Plan, b: Buffer) -> _Operand:
        handle = b.opaque or b.dtype == "str"
        strided, fixed = bool(b.strides) and not handle, plan.storages[b.storage].kind == "weight"
        count = 0 if b.opaque else len(b.shape) * (2 if strided else 1)
        return cls(numpy_dtype(b.dtype), len(b.shape), handle, b.opaque, strided, fixed, count)


class _Row:
    """Operands of a step, as a call describes them."""

    def __init__(self, operands: Sequence[_Operand | None]) -> None:
        self.operands = operands
        self.keeps = any(o is not None and o.handle for o in operands)
        self._places: list[tuple[int, int, int] | None] = []
        at = 0
        for o in operands:
            end = at if o is None else at + o.count
            self._places.append(None if o is None else (at, min(at + o.rank, end), end))
            at = end
        self._pointers, self._sizes = ctypes.c_void_p * len(operands), ctypes.c_int64 * at if at else None

    def of(self, call: EntryCall) -> list[_Shown]:
        """The address, extents and strides of each operand."""
        if not self._places:
            return []
        sizes = self._sizes.from_address(call.sizes)[:] if self._sizes is not None else []
        return [
            (0, [], []) if at is None else (p or 0, sizes[at[0] : at[1]], sizes[at[1] : at[2]])
            for p, at in zip(self._pointers.from_address(call.values), self._places, strict=True)
        ]


@dataclass(frozen=True)
class _Rows:
    """Operands of a step: those that it reads, those that it writes, and both."""

    reads: _Row
    writes: _Row
    all: _Row


class Values:
    """Python's state for one run: values by handle, results that wait for memory, unbounded outputs.

    Args:
        memory: the bytes of the call that contain handles.
    """

    def __init__(self, memory: Callable[[], Sequence[np.ndarray]]) -> None:
        self.observer: Observer | None = None
        self.kept: list[Any] = []
        self._begun = 0
        self.outputs: dict[int, np.ndarray] = {}
        self._values: dict[int, Any] = {}
        self._memory, self._next, self._limit = memory, _FIRST, _MANY

    def clear(self) -> None:
        """Clear everything, after a run."""
        if self._values or self.outputs:
            self.kept, self.outputs, self._values, self._limit = [], {}, {}, _MANY

    def observe(self, call: EntryCall, step: Step) -> None:
        """Record the begin of a kernel, or report its end to the observer."""
        now = time.perf_counter_ns()
        if call.request == END and self.observer is not None:
            self.observer(KernelRun(step, call.wanted, call.got), self._begun, now)
        self._begun = time.perf_counter_ns()

    def put(self, value: Any, address: int) -> None:
        """Keep a value, and write its handle to an address."""
        self._values[self._next] = value
        ctypes.c_int64.from_address(address).value = self._next
        self._next += 1

    def at(self, address: int) -> Any:
        """The value whose handle is at an address."""
        return self._values[ctypes.c_int64.from_address(address).value]

    def forget_lost(self, call: EntryCall) -> None:
        """Drop values whose handles no longer occur, such as those of earlier loop iterations, if there are many."""
        if len(self._values) < self._limit or call.needed > call.capacity:  # functions may have heap memory
            return
        words = [m[: m.size // 64 * 64].view(np.int64)[::8] for m in self._memory()]  # they are at aligned addresses
        seen = {int(n) for w in words for n in w[(w >= _FIRST) & (w < self._next)]}
        self._values = {n: v for n, v in self._values.items() if n in seen}
        self._limit = max(_MANY, 2 * len(self._values))


class HostSteps:
    """Runs what a native entry requests. Thread-safe.

    Args:
        manifest: of the model.
        run_step: runs a step on arrays and values, with known sizes for functions that may need them.
    """

    def __init__(self, manifest: Manifest, run_step: RunStep) -> None:
        self._plans, self._run_step, self._names = manifest.plans, run_step, symbol_names(manifest)
        self._rows: dict[tuple[int, int], _Rows] = {}

    def answer(self, call: EntryCall, values: Values) -> int:
        """Fulfil a request of a call; returns 1.

        Raises:
            RunError: a node cannot process its data, or a result does not match the plan.
        """
        plan = self._plans[call.plan]
        if call.request == OUTPUT:
            b = plan.buffers[plan.outputs[call.step]]
            shape = _numbers(call.sizes, len(b.shape))
            values.outputs[call.step] = made = aligned(shape, numpy_dtype(b.dtype))
            pointers = (ctypes.c_void_p * len(plan.outputs)).from_address(call.outputs)
            pointers[call.step] = made.ctypes.data
            return 1
        step = plan.steps[call.step]
        if call.request in (BEGIN, END):
            values.observe(call, step)
            return 1
        rows = self._rows.get(key := (call.plan, call.step)) or self._of(plan, step, key)
        reads, writes = rows.reads.operands, rows.writes.operands
        if call.request == STORE:
            _store(step, writes, rows.writes.of(call), values.kept, values)
            values.kept = []
            return 1
        values.forget_lost(call)
        shown = (rows.all if call.request != FIND else rows.reads).of(call)
        given = [_value(o, x, values) for o, x in zip(reads, shown[: len(reads)], strict=True)]
        if rows.writes.keeps:  # it may outlive the memory that it is in
            given = [_lasting(o, x) for o, x in zip(reads, given, strict=True)]
        if call.request == FIND:
            values.kept = self._run_step(step, given, self._env(call))
            _tell_found(step, values.kept, call.found)
            return 1
        if step.kind == "foreign":
            made = [_value(o, x, values) for o, x in zip(writes, shown[len(reads) :], strict=True)]
            if any(x.size for x in made):
                self._run_step(step, [*given, *made], {})
            return 1
        _store(step, writes, shown[len(reads) :], self._run_step(step, given, self._env(call)), values)
        return 1

    def _of(self, plan: Plan, step: Step, key: tuple[int, int]) -> _Rows:
        reads, writes = (
            [None if b < 0 else _Operand.of(plan, plan.buffers[b]) for b in row] for row in (step.reads, step.writes)
        )
        made = self._rows[key] = _Rows(_Row(reads), _Row(writes), _Row([*reads, *writes]))
        return made

    def _env(self, call: EntryCall) -> Mapping[str, int]:
        """The sizes known at a control-flow step."""
        if not call.symbols:
            return {}
        listed = zip(self._names, _numbers(call.symbols, len(self._names)), strict=True)
        return {name: n for name, n in listed if n != UNKNOWN}


def _numbers(address: int | None, count: int) -> list[int]:
    return (ctypes.c_int64 * count).from_address(address)[:] if address and count else []


def _value(o: _Operand | None, shown: _Shown, values: Values) -> Any:
    """An operand as a Python value; None if it is absent."""
    if o is None:
        return None
    address, shape, strides = shown
    if o.handle:
        value = values.at(address)
        return value if o.opaque else np.asarray(value, object).reshape(shape)
    return _array(address, o.dtype, shape, strides)


def _array(address: int, dtype: np.dtype[Any], shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """A tensor in the memory of a run."""
    if 0 in shape:
        return np.empty(shape, dtype)
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if strides else prod(shape)
    raw: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.ndarray(shape, dtype, raw, 0, [s * dtype.itemsize for s in strides] or None)


def _lasting(o: _Operand | None, x: Any) -> Any:
    return x if o is None or o.handle or o.fixed else x.copy()


def _tell_found(step: Step, results: Sequence[Any], found: int) -> None:
    """The sizes that a step produced: extents of its results."""
    numbers = (ctypes.c_int64 * len(step.binds)).from_address(found)
    for at, (write, axis, _) in enumerate(step.binds):
        if axis >= np.ndim(results[write]):
            raise misfit(step, f"a result of rank {np.ndim(results[write])}")
        numbers[at] = np.shape(results[write])[axis]


def _store(
    step: Step, operands: Sequence[_Operand | None], targets: Sequence[_Shown], results: Sequence[Any], values: Values
) -> None:
    for o, (address, shape, strides), value in zip(operands, targets, results, strict=True):
        if o is None:
            continue
        if not o.opaque:
            value = _fitting(value, o.dtype, shape, step)
        if o.handle:
            values.put(value, address)
        elif value.size:
            _array(address, o.dtype, shape, strides)[...] = value


def _fitting(value: Any, dtype: np.dtype[Any], shape: Sequence[int], step: Step) -> np.ndarray:
    """A result as the plan expects it.

    Raises:
        RunError: OCC0503 it has another shape.
    """
    array = np.asarray(value)
    if step.kind in ("scan", "loop") and array.size == 0 and 0 in shape:
        return np.empty(shape, array.dtype)  # without iterations, its other extents are undefined too
    if array.shape != tuple(shape) and step.kind != "copy":
        raise misfit(step, f"a result of shape {list(array.shape)} where the build expected {list(shape)}")
    return array if array.dtype == dtype and array.flags.c_contiguous else np.require(array, dtype, "C")


def misfit(step: Step, what: str) -> RunError:
    """Fail because a step produced sizes that exceed the plan's memory."""
    nodes = ", ".join(step.nodes[:3]) or step.name
    return RunError(
        "OCC0503",
        f"node `{nodes}` gave {what}",
        "the build assumed that two sizes are equal, but they are not; fix them with --dim or --shape",
    )
