"""Runs the plans of an artifact with its native kernels. May be called from many threads."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import numpy as np

from occ.runtime.attributes import decode_attrs
from occ.runtime.dims import symbols
from occ.runtime.errors import RunError
from occ.runtime.hostops import run_host
from occ.runtime.machine import flags
from occ.runtime.manifest import Constraint, Manifest, Plan, Step
from occ.runtime.native.control import CONTROL
from occ.runtime.native.entry import RUN, BoundCall, Entry, FunctionEntry
from occ.runtime.native.entry_block import Native
from occ.runtime.native.foreign import ForeignLibrary, run_foreign
from occ.runtime.native.frame import KernelCall, Segment, segment_of
from occ.runtime.native.host_steps import HostSteps
from occ.runtime.native.library import Library
from occ.runtime.native.loop_callbacks import run_tasks
from occ.runtime.native.program import Program
from occ.runtime.native.run_errors import kernel_error
from occ.runtime.native.workers import Workers
from occ.runtime.signature import Signature, bind_shapes

# Compiles an op now that its operands are there, and runs it: (text of the op, operands) -> results.
RunDeferred = Callable[[str, Sequence[Any]], list[Any]]


Observer = Callable[[KernelCall, int, int], None]  # a kernel that ran, from and to nanoseconds of `perf_counter_ns`

_EMPTY_CALLS = 101  # that tell what the way to a kernel costs


class NativeEngine:
    """Executes the plans of a manifest.

    Attributes:
        observer: called for each kernel of a run; kernels are then run one by one.
    """

    resident = False

    def __init__(
        self, manifest: Manifest, weights: Sequence[np.ndarray], code: bytes, threads: int,
        run_deferred: RunDeferred | None = None, files: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        self._foreign = _libraries(manifest, files or {})
        self.manifest, self.threads = manifest, threads
        self._weights, self._run_deferred = weights, run_deferred
        self._library = Library(code, manifest.name) if code else None
        if self._library is not None and self._library.made_for not in ("", manifest.code_digest):
            raise RunError(
                "OCC0502", "the manifest is not the one that the code was compiled for", "build the artifact again"
            )
        self._workers = Workers(threads)
        self._attrs: dict[int, Any] = {}
        self._main = self._program_of(manifest)
        special = map(manifest.at, range(len(manifest.special)))
        self._special = [(Signature.of(m), self._program_of(m)) for m in special]
        self._functions = {name: self._program(f.plan, f.constraints) for name, f in manifest.functions.items()}
        self.observer: Observer | None = None
        self._function_entries: dict[str, FunctionEntry] = {}
        self._native = self._shared()
        self._entry = None if self._native is None else Entry(self._native)

    def _shared(self) -> Native | None:
        """What the entries share, if the library has them and OCC_ENTRY does not ask for the Python runner."""
        if self._library is None or entry_choice() == "python" or not hasattr(self._library.dll, RUN):
            return None
        workers = self._workers if self._library.run is None and self.threads > 1 else None
        host = HostSteps(self.manifest, self._run_host_step)
        return Native(self.manifest, self._library, self._weights, self.threads, workers, host)

    def _run_host_step(self, step: Step, reads: list[Any], env: Mapping[str, int]) -> list[Any]:
        """A step that a native entry asks for."""
        if step.kind in CONTROL:
            attrs = decode_attrs(step.attrs)
            return CONTROL[step.kind](reads, attrs, lambda name, given: self._call_function(name, given, env))
        if step.kind == "copy":
            return reads
        return self._run_step(step, reads, env)

    def _call_function(self, name: str, inputs: Sequence[Any], env: Mapping[str, int]) -> list[Any]:
        arrays = [np.require(x, requirements="C") if isinstance(x, (np.ndarray, np.generic)) else x for x in inputs]
        entry = self._function_entries.get(name)
        if entry is None:
            assert self._native is not None
            entry = self._function_entries.setdefault(name, FunctionEntry(self._native, name))
        return entry(arrays, env)

    def quick(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """A run in native code, if the arrays are such as it takes as they are.

        None says to call `run`.

        Raises:
            RunError: as `run`.
        """
        if self._entry is None or self.observer is not None:
            return None
        return self._entry.quick(inputs, outputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[np.ndarray | None]) -> BoundCall | None:
        """A call of native code for many runs on the same, checked arrays; None where `run` has to do it."""
        if self._entry is None or self.observer is not None:
            return None
        return self._entry.bind(inputs, outputs)

    def _program_of(self, m: Manifest) -> Program:
        """The main plan of a manifest."""
        inside = {i.name for i in m.dims if i.label == "?"}  # sizes that no input shows
        return self._program(m.plan, [c for c in m.constraints if inside & (symbols(c.lhs) | symbols(c.rhs))])

    def _chosen(self, inputs: Sequence[Any], env: Mapping[str, int]) -> tuple[Program, Mapping[str, int]]:
        """The plan for inputs of these extents, with the values of its dims."""
        for signature, program in self._special:
            with suppress(RunError):
                return program, signature.bind(inputs)
        return self._main, env

    def _program(self, plan: Plan, constraints: Sequence[Constraint]) -> Program:
        return Program(plan, self._weights, self._library, self._run_kernels, self._run_step, constraints)

    def run(self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[np.ndarray | None]) -> list[Any]:
        """One run.

        Args:
            inputs: contiguous arrays, checked; sequences and optionals as Python has them.
            env: values of the symbolic dims.
            outputs: arrays to write into, None where one is to be made.

        Raises:
            RunError: a kernel fails, or a node meets data that it cannot work on.
        """
        if self._entry is not None and self.observer is None:
            return self._entry.run(inputs, outputs)
        program, known = self._chosen(inputs, env)
        return program.run(inputs, known, outputs)

    def call(self, name: str, inputs: Sequence[Any], env: Mapping[str, int]) -> list[Any]:
        """Run a function of the manifest.

        Raises:
            RunError: as `run`.
        """
        arrays = [np.require(x, requirements="C") if isinstance(x, (np.ndarray, np.generic)) else x for x in inputs]
        return self._functions[name].run(arrays, bind_shapes(self.manifest.functions[name].inputs, arrays, env))

    def peak(self) -> float:
        """Operations per second that multiply-adds of f32 reach on the threads of a run; 0 if that is not known."""
        probe = None if self._library is None else getattr(self._library.dll, "occ_fma_rate", None)
        if probe is None:
            return 0.0
        probe.restype, has = ctypes.c_double, flags()
        lanes = 16 if "avx512f" in has else 8 if {"avx2", "fma"} <= has else 0
        return float(max(probe(lanes) for _ in range(5))) * self.threads

    # kernels

    def _run_kernels(self, segment: Segment) -> None:
        assert self._library is not None
        if self.observer is not None and len(segment.calls) > 1:
            for call in segment.calls:
                self._run_kernels(segment_of([call]))
            return
        start = time.perf_counter_ns()
        self._run_segment(segment)
        if self.observer is not None:
            self.observer(segment.calls[0], start, time.perf_counter_ns())

    def call_cost(self) -> float:
        """Seconds of overhead of an observed kernel: the clock, and the way to Python and back."""
        if self._library is None or self._library.run is None:
            return 0.0
        nothing, spent = segment_of([]), list[int]()
        for _ in range(_EMPTY_CALLS):
            start = time.perf_counter_ns()
            self._run_segment(nothing)
            spent.append(time.perf_counter_ns() - start)
        return median(spent) * 1e-9

    def _run_segment(self, segment: Segment) -> None:
        assert self._library is not None
        if self._library.run is None:
            for call in segment.calls:
                self._run_range(call)
            return
        failed = self._library.run(len(segment.calls), segment.addresses, segment.blocks, self.threads)
        if failed:
            raise kernel_error(segment.calls[failed - 1].step, self._library.message)

    def _run_range(self, call: KernelCall) -> None:
        """A kernel that leaves its parallel loop to us; the interpreter lock is free while it runs."""
        code = run_tasks(self._workers, call.address, ctypes.addressof(call.args), call.tasks)
        if code:
            raise kernel_error(call.step, f"code {code}")

    # other steps

    def _run_step(self, step: Step, reads: list[Any], env: Mapping[str, int]) -> list[Any]:
        attrs = self._attrs.get(id(step))
        if attrs is None:
            attrs = self._attrs[id(step)] = decode_attrs(step.attrs)
        if step.kind == "deferred":
            return self._deferred(step, reads)
        if step.kind == "foreign":
            library, arguments = self._foreign[attrs.library], attrs.arguments
            run_foreign(library, step.name, arguments, reads, step.nodes, gives_code=attrs.gives_code)
            return []
        if step.kind in CONTROL:
            return CONTROL[step.kind](reads, attrs, lambda name, given: self.call(name, given, env))
        return run_host(step.name, reads, attrs, step.nodes)

    def _deferred(self, step: Step, reads: list[Any]) -> list[Any]:
        if self._run_deferred is None:
            nodes = ", ".join(step.nodes[:3]) or step.name
            raise RunError(
                "OCC0507",
                f"node `{nodes}` has to be compiled for the values of this run, and the compiler is not there",
                "load the artifact with `occ.load` where occ is installed, or fix the shapes with --shape and build again",
            )
        return self._run_deferred(step.attrs["text"], reads)


def _libraries(manifest: Manifest, files: Mapping[str, bytes]) -> dict[str, ForeignLibrary]:
    """The libraries of users that the steps of a manifest call.

    Raises:
        RunError: OCC0502 one is missing or does not load.
    """
    names = dict.fromkeys(str(s.attrs.get("library")) for p in manifest.plans for s in p.steps if s.kind == "foreign")
    for name in names:
        if name not in files:
            raise RunError("OCC0502", f"`{name}` is missing in the artifact", "build the artifact again")
    return {name: ForeignLibrary(files[name], name.rpartition("/")[2]) for name in names}


def entry_choice() -> str:
    """What runs plans: OCC_ENTRY, `native` (compiled, where there is a compiled plan) or `python`.

    Raises:
        RunError: OCC0501 the variable is something else.
    """
    given = os.environ.get("OCC_ENTRY", "") or "native"
    if given not in ("native", "python"):
        raise RunError("OCC0501", f"OCC_ENTRY is {given!r}", "set it to `native` or `python`")
    return given
