"""Runs the plans of an artifact with its native kernels. Thread-safe."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from occ.runtime.attributes import decode_attrs
from occ.runtime.errors import RunError
from occ.runtime.hostops import run_host
from occ.runtime.machine import flags
from occ.runtime.manifest import Manifest, Step
from occ.runtime.native.bound_call import BoundCall
from occ.runtime.native.call import ENTRY
from occ.runtime.native.control import CONTROL, run_control
from occ.runtime.native.entry import Entry, FunctionEntry
from occ.runtime.native.entry_block import Native
from occ.runtime.native.foreign import ForeignLibrary, run_foreign
from occ.runtime.native.host_steps import HostSteps, Observer
from occ.runtime.native.library import Library
from occ.runtime.native.workers import Workers

# Compiles an op once its operands are known, and runs it: (text of the op, operands) -> results.
RunDeferred = Callable[[str, Sequence[Any]], list[Any]]


class NativeEngine:
    """Executes a manifest through its native entry, including steps that are not compiled."""

    resident = False

    def __init__(
        self, manifest: Manifest, weights: Sequence[np.ndarray], code: bytes, threads: int,
        run_deferred: RunDeferred | None = None, files: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        self._foreign = _libraries(manifest, files or {})
        self.manifest, self.threads, self._run_deferred = manifest, threads, run_deferred
        library = Library(code, manifest.name)
        if library.made_for not in ("", manifest.code_digest):
            raise RunError("OCC0502", "the manifest does not match the code", "build the artifact again")
        if not hasattr(library.dll, ENTRY):
            raise RunError("OCC0502", "the code of the artifact has no native entry", "build the artifact again")
        workers = Workers(threads) if library.run is None and threads > 1 else None
        host = HostSteps(manifest, self._run_step)
        self._native = Native(manifest, library, weights, threads, workers, host)
        self._entry = Entry(self._native)
        self._functions: dict[str, FunctionEntry] = {}
        self._attrs: dict[int, Any] = {}

    @property
    def observer(self) -> Observer | None:
        """Called for each kernel of a run, with its times; None for nothing."""
        return self._native.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._native.observer = observer

    def quick(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """A run on arrays that compiled code can use directly; None if only `run` can do it.

        Raises:
            RunError: as `run`.
        """
        return self._entry.quick(inputs, outputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[np.ndarray | None]) -> BoundCall | None:
        """A native call for many runs on the same, checked arrays; None if only `run` can do it."""
        return self._entry.bind(inputs, outputs)

    def run(self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[np.ndarray | None]) -> list[Any]:
        """Run the model once; returns its outputs.

        Args:
            inputs: contiguous arrays, checked; sequences and optionals as Python values.
            env: values of the symbolic dims, which the entry computes by itself.
            outputs: arrays to write into, None for those to be allocated.

        Raises:
            RunError: a kernel fails, or a node cannot process its data.
        """
        return self._entry.run(inputs, outputs)

    def peak(self) -> float:
        """Peak f32 multiply-add operations per second on the threads of a run; 0 if unknown."""
        probe = getattr(self._native.library.dll, "occ_fma_rate", None)
        if probe is None:
            return 0.0
        probe.restype, has = ctypes.c_double, flags()
        lanes = 16 if "avx512f" in has else 8 if {"avx2", "fma"} <= has else 0
        return float(max(probe(lanes) for _ in range(5))) * self.threads

    def call_cost(self) -> float:
        """Overhead in seconds of an observed kernel: the clock, and calling the observer."""
        return self._entry.call_cost()

    def _run_step(self, step: Step, reads: list[Any], env: Mapping[str, int]) -> list[Any]:
        """A step that the entry requests."""
        attrs = self._attrs.get(id(step))
        if attrs is None:
            attrs = self._attrs[id(step)] = decode_attrs(step.attrs)
        match step.kind:
            case "deferred":
                return self._deferred(step, reads)
            case "foreign":
                library, arguments = self._foreign[attrs.library], attrs.arguments
                run_foreign(library, step.name, arguments, reads, step.nodes, gives_code=attrs.gives_code)
                return []
            case "copy":
                return reads
            case kind if kind in CONTROL:
                return run_control(kind, reads, attrs, lambda name, given: self._call(name, given, env), step.nodes)
            case _:
                return run_host(step.name, reads, attrs, step.nodes)

    def _call(self, name: str, inputs: Sequence[Any], env: Mapping[str, int]) -> list[Any]:
        """The results of a function of the manifest."""
        arrays = [np.require(x, requirements="C") if isinstance(x, (np.ndarray, np.generic)) else x for x in inputs]
        entry = self._functions.get(name)
        if entry is None:
            entry = self._functions.setdefault(name, FunctionEntry(self._native, name))
        return entry(arrays, env)

    def _deferred(self, step: Step, reads: list[Any]) -> list[Any]:
        if self._run_deferred is None:
            nodes = ", ".join(step.nodes[:3]) or step.name
            raise RunError(
                "OCC0507",
                f"node `{nodes}` must be compiled for the values of this run, but the compiler is missing",
                "load the artifact with `occ.load` where occ is installed, or fix the shapes with --shape and build "
                "again",
            )
        return self._run_deferred(step.attrs["text"], reads)


def _libraries(manifest: Manifest, files: Mapping[str, bytes]) -> dict[str, ForeignLibrary]:
    """The user libraries that the steps of a manifest call.

    Raises:
        RunError: OCC0502 one is missing or does not load.
    """
    names = dict.fromkeys(str(s.attrs.get("library")) for p in manifest.plans for s in p.steps if s.kind == "foreign")
    for name in names:
        if name not in files:
            raise RunError("OCC0502", f"`{name}` is missing in the artifact", "build the artifact again")
    return {name: ForeignLibrary(files[name], name.rpartition("/")[2]) for name in names}
