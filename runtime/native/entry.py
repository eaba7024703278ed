"""The native entry of a model: one call of compiled code that runs the plan.

`occ_model_run` takes an `occ_call`, which docs/native.md describes for C. It keeps nothing between calls: memory is what
the caller gives it, so that calls may run side by side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from occ.runtime.buffers import ALIGNMENT, aligned_bytes, raw_bytes
from occ.runtime.dims import symbols
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest, Step
from occ.runtime.native.library import Library
from occ.runtime.native.loop_callbacks import LoopCallbacks
from occ.runtime.native.workers import Workers
from occ.runtime.signature import numpy_dtype

ABI = 2
RUN, BEGIN = "occ_model_run", "occ_model_begin"  # a whole model; all but its last steps, which Python runs
MOST_AXES = 16  # of an output whose rank sizes decide; OCC_MAX_RANK of occ.h
_KEPT_SHAPES = 64  # sets of extents that are remembered
_KEPT_BLOCKS = 8  # idle calls with their memory
_LOST = "did not run, for the reason that Python has printed"
_TOGETHER = 4096  # bytes of outputs that share memory, which lives as long as any of them does

# What a call gives.
DONE, MEMORY, INPUTS, KERNEL, CHECK, MISFIT, VERSION = range(7)


class EntryCall(ctypes.Structure):
    """struct occ_call, see docs/native.md."""

    _fields_ = (
        ("abi", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("extents", ctypes.c_void_p),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("needed", ctypes.c_int64),
        ("plan", ctypes.c_int32),
        ("step", ctypes.c_int32),
        ("detail", ctypes.c_int32),
        ("tasks", ctypes.c_int32),
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("parallel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")
_addressof = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


# In the place of empty tensors: a kernel that joins several reads a first vector of each, and chooses after that.
_ROOM = aligned_bytes(2 * ALIGNMENT)


def address(array: np.ndarray) -> int:
    """Address of the first element of a contiguous array; 0 if it is not contiguous."""
    try:
        return _addressof(_first_byte(array))  # a quarter of the time that `array.ctypes.data` takes
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type that buffers do not know
        if not array.size:
            return _ROOM.ctypes.data
        return array.ctypes.data if array.flags.c_contiguous else 0


def _takes(given: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether kernels can write an output of that shape to an array of the caller, which nobody has checked yet."""
    return given.shape == shape and given.dtype == dtype and given.flags.c_contiguous and given.flags.writeable


def _room(size: int) -> int:
    """Bytes to allocate for an output: it begins aligned, and at least one vector follows it."""
    return -(-size // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT


def _beginning(made: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first elements of an array in another shape; in memory of its own if that is much less."""
    found = made.reshape(-1)[: prod(shape)].reshape(shape)
    return found.copy() if 2 * found.size < made.size else found


def _into(made: np.ndarray, given: np.ndarray | None, k: int) -> np.ndarray:
    """An output in the array that the caller wants it in.

    Raises:
        RunError: OCC0501 that has another shape.
    """
    if given is None or made is given:
        return made
    if given.shape != made.shape:
        raise RunError("OCC0501", f"output {k} is {list(made.shape)}, the given array {list(given.shape)}")
    given[...] = made
    return given


class _Extents:
    """What is known of runs on inputs of certain extents.

    Attributes:
        outputs: of each output the extents, the element type, and the bytes to allocate for it.
        needed: bytes of memory that a run needs.
        together: bytes of all outputs, where they are few; 0 where each has memory of its own.
    """

    __slots__ = ("address", "extents", "needed", "outputs", "together")

    def __init__(self, extents: ctypes.Array[ctypes.c_int64]) -> None:
        self.extents, self.address = extents, ctypes.addressof(extents)
        self.outputs: list[tuple[tuple[int, ...], np.dtype[Any], int]] = []
        self.needed = self.together = 0


class _Block:
    """A call with the arrays that it points at. One run at a time uses it."""

    __slots__ = ("address", "call", "capacity", "inputs", "lent", "memory", "outputs", "results")

    def __init__(self, entry: Entry) -> None:
        self.inputs = (ctypes.c_void_p * max(1, len(entry.ranks)))()
        self.outputs = (ctypes.c_void_p * max(1, len(entry.dtypes)))()
        self.results = (ctypes.c_int64 * max(1, entry.results))()
        self.call = EntryCall(
            abi=ABI, threads=entry.threads, weights=ctypes.addressof(entry.weights),
            inputs=ctypes.addressof(self.inputs), outputs=ctypes.addressof(self.outputs),
            results=ctypes.addressof(self.results),
        )  # fmt: skip
        self.lent = None
        if entry.workers is not None:
            self.lent = LoopCallbacks(self.call, entry.workers)
            self.call.parallel = self.lent.address
        self.address = ctypes.addressof(self.call)
        self.capacity, self.memory = 0, None

    def grow(self, size: int) -> None:
        self.memory = None
        self.memory = aligned_bytes(size)
        self.call.memory, self.call.capacity = self.memory.ctypes.data, size
        self.capacity = size

    def make(self, known: _Extents, given: Sequence[np.ndarray | None] | None) -> list[np.ndarray]:
        """Point at outputs, those of the caller where kernels can write there."""
        made: list[np.ndarray] = []
        for k, (shape, dtype, size) in enumerate(known.outputs):
            y = None if given is None else given[k]
            if y is None or not _takes(y, shape, dtype) or (at := address(y)) % ALIGNMENT:
                raw = raw_bytes(size)  # kernels write at aligned addresses
                at = address(raw)
                start = -at % ALIGNMENT
                at += start
                y = np.ndarray(shape, dtype, raw, start)
            self.outputs[k] = at
            made.append(y)
        return made

    def make_together(self, known: _Extents) -> list[np.ndarray]:
        """Point at small outputs, which share one piece of memory: to allocate it costs more than to fill it."""
        raw = np.empty(known.together, np.uint8)
        at = _addressof(_first_byte(raw))
        start = -at % ALIGNMENT
        made: list[np.ndarray] = []
        for k, (shape, dtype, size) in enumerate(known.outputs):
            self.outputs[k] = at + start
            made.append(np.ndarray(shape, dtype, raw, start))
            start += size
        return made


class Entry:
    """Runs a model through its native entry. May be called from many threads.

    Args:
        manifest: of the model.
        library: with the entry.
        weights: constants.
        threads: of one run.
        workers: run the parallel loops of kernels that leave those to their caller; None for the others.
        name: of the entry, `RUN` or `BEGIN`.
    """

    def __init__(
        self,
        manifest: Manifest,
        library: Library,
        weights: Sequence[np.ndarray],
        threads: int,
        workers: Workers | None = None,
        name: str = RUN,
    ) -> None:
        self.threads, self.workers, self._library = threads, workers, library
        self._arrays = weights
        self.weights = (ctypes.c_void_p * max(1, len(weights)))(*(w.ctypes.data for w in weights))
        self.names = [i.name for i in manifest.inputs]
        self.ranks = [len(i.shape) for i in manifest.inputs]
        self._takes = [numpy_dtype(i.dtype) for i in manifest.inputs]
        self._kinds = [np.ndarray] * len(self.names)
        self._gives = [o.name for o in manifest.outputs]
        self.dtypes = [numpy_dtype(o.dtype) for o in manifest.outputs]
        self._out_ranks = [-1 if o.kind == "unranked" else len(o.shape) for o in manifest.outputs]
        rows = [1 + MOST_AXES if rank < 0 else rank for rank in self._out_ranks]
        self.results = sum(rows)
        shown = {e for i in manifest.inputs for e in i.shape if isinstance(e, str)}
        self._decided = [
            (k, sum(rows[:k]), rows[k])
            for k, o in enumerate(manifest.outputs)
            if any(symbols(e) - shown for e in o.shape)
        ]  # outputs of which a run reports the extents; before, the entry reports their upper bounds
        self._plans = manifest.plans
        self._known: dict[tuple[tuple[int, ...], ...], _Extents] = {}
        self._idle: list[_Block] = []
        self._run = getattr(library.dll, name)
        self._run.argtypes = [ctypes.c_void_p]

    def quick(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """A run on arrays that kernels take as they are; None if they do not fit.

        This is most of what a model of a few operations costs, so loops over operands are those of builtin functions.
        """
        if len(inputs) != len(self.names):
            return None
        try:
            arrays = list(map(inputs.__getitem__, self.names))
            if list(map(type, arrays)) != self._kinds or list(map(_dtype_of, arrays)) != self._takes:
                return None
            shapes = tuple(map(_shape_of, arrays))
            known = self._known.get(shapes) or self._learn(shapes)
        except (KeyError, TypeError):
            return None
        if known is None:
            return None
        given = None
        if outputs:
            given = list(map(outputs.get, self._gives))
            if not self._takes_outputs(given, known, len(outputs)):
                return None
        found = self._call(arrays, known, given)
        return None if found is None else dict(zip(self._gives, found))  # noqa: B905 - as many, by construction

    def _takes_outputs(self, given: Sequence[Any], known: _Extents, count: int) -> bool:
        """Whether kernels can write to all of `count` arrays, of outputs whose extents are known before a run."""
        if self._decided:
            return False
        for y, (shape, dtype, _) in zip(given, known.outputs):  # noqa: B905 - as many, by construction
            if y is not None:
                if type(y) is not np.ndarray or not _takes(y, shape, dtype):
                    return False
                count -= 1
        return not count

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None]) -> BoundCall | None:
        """A call on checked arrays, for many runs; None if a run defines the extents of an output."""
        known = self._known.get(shapes := tuple([x.shape for x in inputs])) or self._learn(shapes)
        if known is None or self._decided:
            return None
        block = _Block(self)
        block.grow(max(known.needed, ALIGNMENT))
        for k, x in enumerate(inputs):
            block.inputs[k] = address(x)
        block.call.extents = known.address
        made = block.make(known, outputs)
        given = [m if g is None else g for m, g in zip(made, outputs, strict=True)]
        return BoundCall(self, block, (inputs, known), given, made)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        """A run on arrays that are checked; None if the Python runner has to say what is wrong with it.

        Raises:
            RunError: a kernel fails, or a node meets data that it cannot work on.
        """
        shapes = tuple([x.shape for x in inputs])
        known = self._known.get(shapes) or self._learn(shapes)
        return None if known is None else self._call(inputs, known, outputs)

    def _call(
        self, inputs: Sequence[np.ndarray], known: _Extents, given: Sequence[np.ndarray | None] | None
    ) -> list[np.ndarray] | None:
        try:
            block = self._idle.pop()
        except IndexError:
            block = _Block(self)
        if block.capacity < known.needed:
            block.grow(known.needed)
        for k, x in enumerate(inputs):
            if not (at := address(x)):
                return None
            block.inputs[k] = at
        made = block.make_together(known) if given is None and known.together else block.make(known, given)
        block.call.extents = known.address
        code = self._run(block.address)
        if code:
            return self._failed(code, block)
        if block.lent is not None and block.call.detail:
            raise RunError("OCC0505", f"a parallel loop of the model {_LOST}")
        for k, at, rank in self._decided:
            made[k] = _beginning(made[k], tuple(block.results[at : at + rank]))
        if len(self._idle) < _KEPT_BLOCKS:
            self._idle.append(block)
        return made if given is None else [_into(y, g, k) for k, (y, g) in enumerate(zip(made, given, strict=True))]

    def _learn(self, shapes: tuple[tuple[int, ...], ...]) -> _Extents | None:
        """Ask the entry about inputs of new extents; None if it does not take them."""
        if [len(s) for s in shapes] != self.ranks:
            return None
        flat = [n for s in shapes for n in s]
        made = _Extents((ctypes.c_int64 * max(1, len(flat)))(*flat))
        block = _Block(self)
        block.call.extents = made.address
        if self._run(block.address) != MEMORY:
            return None
        sizes, at = block.results[:], 0
        for rank, dtype in zip(self._out_ranks, self.dtypes, strict=True):
            first, count = (at, rank) if rank >= 0 else (at + 1, sizes[at])
            shape = tuple(sizes[first : first + count])
            if min(shape, default=0) < 0:
                return None
            at += rank if rank >= 0 else 1 + MOST_AXES
            made.outputs.append((shape, dtype, _room(prod(shape) * dtype.itemsize)))
        made.needed, total = block.call.needed, sum(size for _, _, size in made.outputs)
        made.together = total if total <= _TOGETHER else 0
        if len(self._known) >= _KEPT_SHAPES:
            self._known.clear()
        self._known[shapes] = made
        return made

    def _failed(self, code: int, block: _Block) -> None:
        if code not in (KERNEL, CHECK):
            return
        call = block.call
        if block.lent is not None and block.lent.raised:
            raise block.lent.raised[0]
        step = self._plans[call.plan].steps[call.step]
        if code == CHECK:
            raise check_error(step, call.detail)
        if block.lent is not None and step.tasks is not None and block.lent.codes != [call.detail]:
            raise kernel_error(step, f"its parallel loop {_LOST}")
        raise kernel_error(step, self._library.message if self._library.run is not None else f"code {call.detail}")


class BoundCall:
    """A call of an entry with memory of its own, whose arrays stay where they are.

    One thread at a time runs it.

    Attributes:
        outputs: the arrays that a run writes, those of the caller where they were given.
    """

    def __init__(
        self, entry: Entry, block: _Block, held: Any, outputs: Sequence[np.ndarray], made: Sequence[np.ndarray]
    ) -> None:
        self.outputs = outputs
        self._entry, self._block, self._held = entry, block, held
        self._run, self._address = entry._run, block.address
        self._copied = [
            (y, m) for y, m in zip(outputs, made, strict=True) if y is not m
        ]  # outputs that are not aligned

    def __call__(self) -> None:
        """Run once.

        Raises:
            RunError: a kernel fails, or a node meets data that it cannot work on.
        """
        code = self._run(self._address)
        if code:
            self._entry._failed(code, self._block)
            raise RunError("OCC0505", f"the entry of the model ended with code {code}")
        if self._block.lent is not None and self._block.call.detail:
            raise RunError("OCC0505", f"a parallel loop of the model {_LOST}")
        for y, m in self._copied:
            y[...] = m


def check_error(step: Step, k: int) -> RunError:
    """The error of a failed data check, even where the plan lists fewer checks."""
    return RunError("OCC0504", step.checks[k - 1] if k <= len(step.checks) else f"check {k} of `{step.name}` fails")


def kernel_error(step: Step, message: str) -> RunError:
    """A kernel gave an error code."""
    nodes = ", ".join(step.nodes[:3]) or step.name
    return RunError("OCC0505", f"the kernel of node `{nodes}` failed: {message}")
