"""A plan in execution: its phases, their frames, and the values of one run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.runtime.buffers import ALIGNMENT, aligned
from occ.runtime.dims import DimExpr, evaluate, symbols
from occ.runtime.errors import RunError
from occ.runtime.forks import renew_in_children
from occ.runtime.manifest import Constraint, Plan, Step
from occ.runtime.native.frame import Frame, Segment, phases
from occ.runtime.native.run_errors import check_error
from occ.runtime.signature import check_constraints, numpy_dtype

if TYPE_CHECKING:
    from occ.runtime.native.library import Library

_KEPT_SHAPES = 16  # sets of extents whose frames are kept, per phase
_KEPT_FRAMES = 4  # idle frames of one set

RunKernels = Callable[[Segment], None]
RunStep = Callable[[Step, list[Any], Mapping[str, int]], list[Any]]


@dataclass
class _Run:
    """What one run holds."""

    env: dict[str, int]
    moving: dict[int, Any]  # storage -> value, for what is in no arena of the phase at hand
    outputs: list[np.ndarray | None]
    unchecked: Sequence[Constraint]
    frames: list[tuple[int, Frame]] = field(default_factory=list)


class Program:
    """Runs one plan. May be used by many threads; each run takes frames of its own.

    Args:
        plan: the plan.
        weights: constants.
        library: the kernels.
        kernels: runs a segment of kernels.
        step: runs a step that is not a kernel, on arrays; returns arrays or opaque values.
        constraints: what the plan assumes of sizes.
    """

    def __init__(
        self, plan: Plan, weights: Sequence[np.ndarray], library: Library | None, kernels: RunKernels, step: RunStep,
        constraints: Sequence[Constraint] = (),
    ) -> None:  # fmt: skip
        self.plan, self._constraints = plan, constraints
        self._weights, self._library, self._kernels, self._step = weights, library, kernels, step
        self._phases = phases(plan)
        self._symbols = sorted(_symbols(plan).union(*(symbols(c.lhs) | symbols(c.rhs) for c in constraints)))
        self._open: dict[tuple[Any, ...], list[Constraint]] = {}  # what no phase could check yet, by its sizes
        self._frames: OrderedDict[tuple[Any, ...], list[Frame]] = OrderedDict()
        self.renew()
        renew_in_children(self)
        self._made = [self._output(k, s.index) for k, s in enumerate(plan.storages) if s.kind == "output"]

    def renew(self) -> None:
        """See `occ.runtime.forks`."""
        self._lock = threading.Lock()

    def run(
        self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[np.ndarray | None] | None = None
    ) -> list[Any]:
        """One run.

        Args:
            inputs: contiguous arrays or opaque values, in order.
            env: values of the symbolic dims that are known.
            outputs: arrays to write into, None where one is to be made.

        Raises:
            RunError: a kernel fails, or a node meets data that it cannot work on.
        """
        given = list(outputs) if outputs is not None else [None] * len(self.plan.outputs)
        moving = {k: inputs[s.index] for k, s in enumerate(self.plan.storages) if s.kind == "input"}
        run = _Run(dict(env), moving, list(given), self._constraints)
        try:
            for phase in range(len(self._phases)):
                self._phase(phase, run)
            return self._results(run, given)
        finally:
            self._give_back(run)

    # one phase

    def _phase(self, phase: int, run: _Run) -> None:
        key = self._key(phase, run.env)
        if run.unchecked:
            run.unchecked = self._check_sizes(key, run)
        self._make_outputs(run)
        frame = self._take(key, run.env)
        run.frames.append((phase, frame))
        for storage, value in run.moving.items():
            frame.attach(storage, value)
        run.moving.update(frame.lent)
        for piece in frame.pieces:
            if isinstance(piece, Segment):
                self._kernels(piece)
                _check(piece, frame, run.moving)
            else:
                self._run_step(piece, frame, run)

    def _output(self, storage: int, index: int) -> tuple[int, int, tuple[Any, ...], frozenset[str], np.dtype]:
        """What is to be known of an output in every run: storage, position, extents, the symbols in them, and dtype."""
        b = self.plan.buffers[self.plan.outputs[index]]
        return storage, index, tuple(b.shape), frozenset(n for e in b.shape for n in symbols(e)), numpy_dtype(b.dtype)

    def _make_outputs(self, run: _Run) -> None:
        """Outputs that kernels write, as soon as their extents are known.

        Halide takes it that a kernel can read its own results in whole vectors; an array of the caller that is
        elsewhere is filled at the end.
        """
        for k, index, extents, names, dtype in self._made:
            if k in run.moving or any(name not in run.env for name in names):
                continue
            shape = tuple(evaluate(e, run.env) for e in extents) if names else extents
            made = run.outputs[index]
            if made is None or made.shape != shape or made.ctypes.data % ALIGNMENT:
                made = run.outputs[index] = aligned(shape, dtype)
            run.moving[k] = made

    def _run_step(self, step: Step, frame: Frame, run: _Run) -> None:
        reads = [None if b < 0 else frame.array(b, run.moving) for b in step.reads]
        if any(self.plan.buffers[b].opaque for b in step.writes):
            reads = [
                x.copy() if isinstance(x, np.ndarray) and frame.owns(x) else x for x in reads
            ]  # a sequence may outlive the arena's contents
        if step.kind == "foreign":
            writes = [frame.array(b, run.moving) for b in step.writes]
            if any(x.size for x in writes):
                self._step(step, [*reads, *writes], run.env)
            return
        if step.kind == "copy":
            target, source = (frame.array(b, run.moving) for b in (*step.writes, *step.reads))
            if target.ctypes.data != source.ctypes.data:  # a caller may have put it where it belongs
                target[...] = source
            return
        results = self._step(step, reads, run.env)
        self._bind(step, results, run)
        for b, value in zip(step.writes, results, strict=True):
            buffer = self.plan.buffers[b]
            storage = self.plan.storages[buffer.storage]
            if storage.kind != "host":
                frame.array(b, run.moving)[...] = value
                continue
            if not buffer.opaque:
                value = _fitting(value, buffer.dtype, [evaluate(e, run.env) for e in buffer.shape], step)
                value = value.copy() if frame.owns(value) else value
                frame.attach(buffer.storage, value)
            run.moving[buffer.storage] = value

    def _bind(self, step: Step, results: Sequence[Any], run: _Run) -> None:
        """Take the sizes that a step found: elements of the result of `sizes`, extents of those of others."""
        if step.name == "sizes":
            self._take_elements(step, results[0], run.env)
            return
        for write, axis, name in step.binds:
            if axis >= np.ndim(results[write]):
                raise _misfit(step, f"a result of rank {np.ndim(results[write])}")
            size = results[write].shape[axis]
            if run.env.setdefault(name, size) != size:
                raise _misfit(step, f"an extent of {size} where {run.env[name]} was expected")

    def _take_elements(self, step: Step, found: np.ndarray, env: dict[str, int]) -> None:
        env.update((name, int(found[k])) for _, k, name in step.binds)
        for n, e in zip(found, step.attrs["finds"], strict=True):
            if evaluate(e, env) != n:
                raise _misfit(step, f"a size of {n} where {evaluate(e, env)} was expected")

    def _results(self, run: _Run, given: Sequence[np.ndarray | None]) -> list[Any]:
        results: list[Any] = []
        for k, b in enumerate(self.plan.outputs):
            buffer = self.plan.buffers[b]
            storage = self.plan.storages[buffer.storage]
            value = self._weights[storage.index] if storage.kind == "weight" else run.moving[buffer.storage]
            if storage.kind in ("weight", "input") and isinstance(value, np.ndarray):
                value = value.copy()
            if isinstance(value, np.ndarray) and not buffer.opaque:
                value = _shaped(value, buffer.dtype, [evaluate(e, run.env) for e in buffer.shape])
            target = given[k]
            if target is not None and target is not value:
                if target.shape != value.shape:
                    raise RunError(
                        "OCC0501", f"output {k} is {list(value.shape)}, the given array {list(target.shape)}"
                    )
                target[...] = value
                value = target
            results.append(value)
        return results

    # frames

    def _key(self, phase: int, env: Mapping[str, int]) -> tuple[Any, ...]:
        return (phase, *(env.get(s) for s in self._symbols))

    def _check_sizes(self, key: tuple[Any, ...], run: _Run) -> list[Constraint]:
        """What cannot be checked yet. For sizes that have been there before, all that can be checked has been."""
        found = self._open.get(key)
        if found is None:
            found = check_constraints(run.unchecked, run.env)
            if len(self._open) >= _KEPT_SHAPES * len(self._phases):
                self._open.clear()
            self._open[key] = found
        return found

    def _take(self, key: tuple[Any, ...], env: Mapping[str, int]) -> Frame:
        with self._lock:
            idle = self._frames.setdefault(key, [])
            self._frames.move_to_end(key)
            while len(self._frames) > _KEPT_SHAPES * len(self._phases):
                self._frames.popitem(last=False)
            if idle:
                return idle.pop()
        return Frame(self.plan, self._phases[key[0]], self._weights, env, self._library)

    def _give_back(self, run: _Run) -> None:
        with self._lock:
            for phase, frame in run.frames:
                idle = self._frames.get(self._key(phase, frame.env))
                if idle is not None and len(idle) < _KEPT_FRAMES:
                    idle.append(frame)


def _check(segment: Segment, frame: Frame, moving: Mapping[int, Any]) -> None:
    for call in segment.calls:
        if call.step.flag >= 0 and (code := int(frame.array(call.step.flag, moving)[()])) > 0:
            raise check_error(call.step, code)


def _fitting(value: Any, dtype: str, shape: Sequence[int], step: Step) -> np.ndarray:
    """A result of a host step as the plan expects it."""
    array = np.asarray(value)
    if step.kind in ("scan", "loop") and array.size == 0 and 0 in shape:
        return np.empty(shape, array.dtype)  # what no iteration gave has none of its other extents either
    if array.shape != tuple(shape):
        raise _misfit(step, f"a result of shape {list(array.shape)} where the build expected {list(shape)}")
    return np.require(array, numpy_dtype(dtype), "C")


def _shaped(value: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """A result as the signature has it; weights of an artifact are bytes.

    Raises:
        RunError: OCC0502 the manifest says something else of its size.
    """
    try:
        return value.view(numpy_dtype(dtype)).reshape(shape)
    except ValueError:
        text = f"an output of {value.nbytes} bytes is not {dtype}{list(shape)}"
        raise RunError("OCC0502", text, "build the artifact again") from None


def _misfit(step: Step, what: str) -> RunError:
    nodes = ", ".join(step.nodes[:3]) or step.name
    return RunError(
        "OCC0503",
        f"node `{nodes}` gave {what}",
        "the build took two sizes as equal that are not; fix them with --dim or --shape",
    )


def _symbols(plan: Plan) -> set[str]:
    found: set[str] = set()
    exprs: list[DimExpr] = [e for b in plan.buffers for e in (*b.shape, *b.strides, b.start)]
    exprs += [s.size for s in plan.storages]
    exprs += [e for s in plan.steps for e in (*s.dims, s.tasks) if e is not None]
    for e in exprs:
        found |= symbols(e)
    return found
