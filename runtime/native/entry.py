"""Calls of the compiled entry function of a model by ctypes, with callbacks into Python for host operators.

`occ_model_run` takes an `occ_call`, which docs/native.md describes for C. It is stateless: the caller provides all
memory, so calls may run concurrently.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

import numpy as np

from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dims import symbols
from occ.runtime.errors import RunError
from occ.runtime.manifest import TensorInfo
from occ.runtime.native.bound_call import BoundCall
from occ.runtime.native.call import (
    CALL,
    END,
    ENTRY,
    MEMORY,
    MOST_AXES,
    RANK_OF_VALUE,
    UNKNOWN,
    VERSION,
    symbol_names,
)
from occ.runtime.native.entry_block import (
    HANDLE,
    OPEN,
    POOLED,
    Block,
    Extents,
    Native,
    address,
    beginning,
    room_of,
    takes,
)
from occ.runtime.native.run_errors import LOST, failure
from occ.runtime.signature import bind_shapes, numpy_dtype

_EMPTY_CALLS = 101  # kernels timed to measure observer overhead
_KEPT_SHAPES = 64  # cached sets of extents
_KEPT_BLOCKS = 8  # idle calls with their memory
_MOST_GROWN = 1 << 30  # bytes of heap memory of a run that the next one gets in advance

_TEXTS = frozenset((str, bytes))
_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")


def _into(made: np.ndarray, given: np.ndarray | None, k: int) -> np.ndarray:
    """An output in the caller's array.

    Raises:
        RunError: OCC0501 it has another shape.
    """
    if given is None or made is given:
        return made
    if given.shape != made.shape:
        raise RunError("OCC0501", f"output {k} is {list(made.shape)}, the given array {list(given.shape)}")
    given[...] = made
    return given


class _Runner:
    """Runs compiled code on arrays and values. Thread-safe.

    Args:
        native: shared by all entries.
        symbol: of the code.
        inputs, outputs: element type, rank and whether Python keeps the value, for each.
    """

    def __init__(
        self, native: Native, symbol: str, inputs: Sequence[tuple[str, int, bool]],
        outputs: Sequence[tuple[str, int, bool]]
    ) -> None:  # fmt: skip
        self._native, self._weights = native, native.addresses()
        self._handles = {k for k, (_, _, handle) in enumerate(inputs) if handle}
        self._ranks = [rank for _, rank, _ in inputs]
        self._out_ranks, self._kept = [rank for _, rank, _ in outputs], [handle for _, _, handle in outputs]
        self._dtypes = [numpy_dtype(dtype) for dtype, _, _ in outputs]
        self._rows = [1 + MOST_AXES if rank < 0 else rank for rank in self._out_ranks]
        self._decided: list[tuple[int, int, int]] = []
        self._more = 0
        self._known: dict[Any, Extents] = {}
        self._idle: list[Block] = []
        self._run = getattr(native.library.dll, symbol)
        self._run.argtypes = [ctypes.c_void_p]

    def _block(self) -> Block:
        block = Block(self._native, self._weights, len(self._ranks), len(self._rows), sum(self._rows), self._more)
        self._prepare(block)
        return block

    def _prepare(self, block: Block) -> None:
        """Set in a call what it is to run."""

    def _call(
        self, inputs: Sequence[Any], known: Extents, given: Sequence[np.ndarray | None] | None
    ) -> list[Any] | None:
        """A run; None if an array is not contiguous."""
        try:
            block = self._idle.pop()
        except IndexError:
            block = self._block()
        if block.values.observer is not self._native.observer:
            block.observe(self._native.observer)
        if block.capacity < known.needed:
            block.grow(known.needed)
        for k, x in enumerate(inputs):
            if k in self._handles:
                block.values.put(x, at := block.cell(k))
            elif not (at := address(x)):
                return None
            block.inputs[k] = at
        made = block.make_pooled(known) if given is None and known.pooled else block.make(known, given, len(inputs))
        block.call.extents = known.address
        self._prepare(block)
        self.execute(block)
        for k in known.late:
            if known.outputs[k][0] is HANDLE:
                made[k] = self._of_host(block, k, inputs)
            elif (by_host := block.values.outputs.get(k)) is not None:
                made[k], known.room[k] = by_host, by_host.nbytes
        for k, at, rank in self._decided:
            if known.outputs[k][0] is not HANDLE:
                room, shape = made[k].nbytes, tuple(block.results[at : at + rank])
                made[k] = beginning(made[k], shape, own=given is None)
                if 2 * made[k].nbytes < room:  # the next run is given that much in advance
                    known.room.pop(k, None)
        block.values.clear()
        if block.call.needed > block.capacity:
            block.grow(min(block.call.needed, max(_MOST_GROWN, block.capacity)))
        if len(self._idle) < _KEPT_BLOCKS:
            self._idle.append(block)
        return made if given is None else [_into(y, g, k) for k, (y, g) in enumerate(zip(made, given, strict=True))]

    def _of_host(self, block: Block, k: int, inputs: Sequence[Any]) -> Any:
        """An output that Python keeps."""
        value = block.values.at(block.cell(len(inputs) + k))
        rank = self._out_ranks[k]
        if rank > 0:  # texts
            at = sum(self._rows[:k])
            value = value.reshape(block.results[at : at + rank])
        taken = isinstance(value, np.ndarray) and any(value is x or value.base is x for x in inputs)
        return value.copy() if taken else value

    def _learn(self, key: Any, flat: Sequence[int]) -> Extents | None:
        """Query the entry about inputs with new extents; None if it rejects them."""
        made = Extents((ctypes.c_int64 * max(1, len(flat)))(*flat))
        block = self._block()
        block.call.extents = made.address
        code = self._run(block.address)
        if code == VERSION:
            raise RunError("OCC0502", "the code of the artifact is of another version of occ", "build it again")
        if code != MEMORY:
            return None
        sizes, at = block.results[:], 0
        for rank, row, dtype, handle in zip(self._out_ranks, self._rows, self._dtypes, self._kept, strict=True):
            first, count = (at, rank) if rank >= 0 else (at + 1, sizes[at])
            shape: Any = tuple(sizes[first : first + max(count, 0)])
            at += row
            if handle or (rank < 0 and count == RANK_OF_VALUE):
                shape = HANDLE
            elif UNKNOWN in shape:
                shape = OPEN
            elif min(shape, default=0) < 0:
                return None
            made.outputs.append((shape, dtype, 0 if isinstance(shape, str) else room_of(shape, dtype)))
        made.needed, total = block.call.needed, sum(size for _, _, size in made.outputs)
        made.late = [k for k, (shape, _, _) in enumerate(made.outputs) if isinstance(shape, str)]
        made.pooled = total if total <= POOLED and not made.late else 0
        if len(self._known) >= _KEPT_SHAPES:
            self._known.clear()
        self._known[key] = made
        return made

    def execute(self, block: Block) -> None:
        """Run a prepared call.

        Raises:
            RunError: a kernel fails, a node cannot process its data, or a callback was lost. What a callback raised.
        """
        code = self._run(block.address)
        if code == MEMORY:  # the caller of a bound call has changed its extents
            block.grow(block.call.needed + block.call.needed // 8)
            code = self._run(block.address)
        if code or block.call.detail:
            raise self._failed(code, block)

    def _failed(self, code: int, block: Block) -> BaseException:
        """What a run raises that ended with a code, or has lost a callback."""
        if block.raised:
            return block.raised[0]
        return (
            failure(self._native, code, block.call) if code else RunError("OCC0505", f"a callback of the model {LOST}")
        )


class Entry(_Runner):
    """Runs a model through its native entry. Thread-safe."""

    def __init__(self, native: Native) -> None:
        m = native.manifest
        super().__init__(native, ENTRY, list(map(_taken, m.inputs)), list(map(_returned, m.outputs)))
        self.names = [i.name for i in m.inputs]
        self._tensors = [i.kind == "tensor" for i in m.inputs]
        self._takes = [numpy_dtype(i.dtype) for i in m.inputs]
        self._kinds = [np.ndarray] * len(self.names)
        self._gives = [o.name for o in m.outputs]
        shown = {e for i in m.inputs for e in i.shape if isinstance(e, str)}
        self._decided = [
            (k, sum(self._rows[:k]), self._rows[k])
            for k, o in enumerate(m.outputs)
            if any(symbols(e) - shown for e in o.shape)
        ]  # outputs with extents known after a run; before, the entry returns upper bounds

    def quick(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """A run on arrays that kernels can use directly; None if they are unsuitable.

        This dominates the cost of small models, so loops over operands use builtin functions.
        """
        if len(inputs) != len(self.names):
            return None
        try:
            arrays = list(map(inputs.__getitem__, self.names))
            if list(map(type, arrays)) != self._kinds or list(map(_dtype_of, arrays)) != self._takes:
                return None
            if self._handles and not all(self._tensors[k] and _are_texts(arrays[k]) for k in self._handles):
                return None
            shapes = tuple(map(_shape_of, arrays))
            known = self._known.get(shapes) or self._of_shapes(shapes)
        except (KeyError, TypeError):
            return None
        if known is None:
            return None
        given = None
        if outputs:
            if not hasattr(outputs, "get"):
                return None
            given = list(map(outputs.get, self._gives))
            if not self._takes_outputs(given, known, len(outputs)):
                return None
        found = self._call(arrays, known, given)
        return None if found is None else dict(zip(self._gives, found))  # noqa: B905 - as many, by construction

    def _takes_outputs(self, given: Sequence[Any], known: Extents, count: int) -> bool:
        """Whether kernels can write to all of `count` arrays, for outputs with known extents."""
        if self._decided:
            return False
        for y, (shape, dtype, _) in zip(given, known.outputs):  # noqa: B905 - as many, by construction
            if y is not None:
                if type(y) is not np.ndarray or not takes(y, shape, dtype):
                    return False
                count -= 1
        return not count

    def call_cost(self) -> float:
        """Seconds from the begin of a kernel to its end, for an observer that does nothing."""
        block, spent = self._block(), list[int]()
        if not self._native.manifest.plan.steps:
            return 0.0
        block.observe(lambda _, start, end: spent.append(end - start))
        block.call.request = END  # each starts the next
        for _ in map(block.steps.function, [block.address] * _EMPTY_CALLS):
            pass
        return median(spent[1:]) * 1e-9

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None]) -> BoundCall | None:
        """A call on checked arrays, for many runs; None if runs have to allocate an output, or are observed."""
        if self._handles or self._decided or any(self._kept):
            return None
        known = self._known.get(shapes := tuple([x.shape for x in inputs])) or self._of_shapes(shapes)
        if known is None or known.late or self._native.observer is not None:
            return None
        block = self._block()
        block.grow(max(known.needed, ALIGNMENT))
        for k, x in enumerate(inputs):
            block.inputs[k] = address(x)
        made = block.make(known, outputs, len(inputs))
        given = [m if g is None else g for m, g in zip(made, outputs, strict=True)]
        return BoundCall(self.execute, block, inputs, given, made)

    def run(self, inputs: Sequence[Any], outputs: Sequence[np.ndarray | None]) -> list[Any]:
        """A run on checked arrays and values.

        Raises:
            RunError: a kernel fails, or a node cannot process its data.
        """
        shapes = tuple([x.shape if tensor else () for x, tensor in zip(inputs, self._tensors, strict=True)])
        known = self._known.get(shapes) or self._of_shapes(shapes)
        if known is None:
            raise RunError("OCC0503", f"the model does not take inputs of the shapes {list(map(list, shapes))}")
        found = self._call(inputs, known, outputs)
        assert found is not None, "inputs have been checked"
        return found

    def _of_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> Extents | None:
        if [len(s) for s in shapes] != self._ranks:
            return None
        return self._learn(shapes, [n for s in shapes for n in s])


class FunctionEntry(_Runner):
    """Runs a function of a model, for control flow in Python. Thread-safe.

    Args:
        native: what all entries share.
        name: of the function.
    """

    def __init__(self, native: Native, name: str) -> None:
        m = native.manifest
        f = m.functions[name]
        kinds = [
            [(b.dtype, len(b.shape), b.opaque or b.dtype == "str") for b in map(f.plan.buffers.__getitem__, row)]
            for row in (f.plan.inputs, f.plan.outputs)
        ]
        super().__init__(native, CALL, *kinds)
        self._number = 1 + sorted(m.functions).index(name)
        self._infos, self._names = f.inputs, symbol_names(m)
        self._more = len(self._names)
        self._decided = [(k, sum(self._rows[:k]), self._rows[k]) for k in range(len(self._rows)) if not self._kept[k]]

    def _prepare(self, block: Block) -> None:
        block.call.plan = self._number

    def __call__(self, inputs: Sequence[Any], env: Mapping[str, int]) -> list[Any]:
        """The results, on contiguous arrays and values; `env` are sizes known to the caller.

        Raises:
            RunError: a kernel fails, or a node cannot process its data.
        """
        known = bind_shapes(self._infos, inputs, env)
        values = tuple([known.get(name, 0) for name in self._names])
        extents = self._known.get(values) or self._learn(values, values)
        if extents is None:
            raise RunError("OCC0503", f"a function of the model does not take sizes of {known}")
        found = self._call(inputs, extents, None)
        assert found is not None, "arguments are contiguous"
        return found


def _are_texts(x: np.ndarray) -> bool:
    """Whether an array of objects is one of texts, in the order of its memory."""
    return x.flags.c_contiguous and _TEXTS.issuperset(map(type, x.reshape(-1).tolist()))


def _taken(i: TensorInfo) -> tuple[str, int, bool]:
    tensor = i.kind == "tensor"
    return i.dtype, len(i.shape) if tensor else 0, not tensor or i.dtype == "str"


def _returned(o: TensorInfo) -> tuple[str, int, bool]:
    unranked = o.kind == "unranked"
    return o.dtype, -1 if unranked else len(o.shape), (o.kind != "tensor" or o.dtype == "str") and not unranked
