"""Runs the plan of an artifact with its native kernels. May be called from many threads; each run takes a frame."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from occ.runtime.dims import evaluate
from occ.runtime.errors import RunError
from occ.runtime.frame import Call, Frame, Segment, segment_of
from occ.runtime.hostops import ROUTINES
from occ.runtime.library import Library
from occ.runtime.manifest import Manifest, Step
from occ.runtime.signature import numpy_dtype

_KEPT_SHAPES = 16  # sets of extents whose frames are kept
_KEPT_FRAMES = 4  # idle frames of one set


Observer = Callable[[Call, int, int], None]  # a kernel that ran, from and to nanoseconds of `perf_counter_ns`


class NativeEngine:
    """Executes a plan.

    Attributes:
        observer: told of each kernel of a run; kernels are then run one by one.
    """

    resident = False

    def __init__(self, manifest: Manifest, weights: Sequence[np.ndarray], code: bytes, threads: int) -> None:
        self.manifest, self.threads = manifest, threads
        self._weights = weights
        self._library = Library(code, manifest.name) if code else None
        self._frames: OrderedDict[tuple[int, ...], list[Frame]] = OrderedDict()
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self.observer: Observer | None = None

    def run(
        self, inputs: Sequence[np.ndarray], env: Mapping[str, int], outputs: Sequence[np.ndarray | None]
    ) -> list[np.ndarray]:
        """One run.

        Args:
            inputs: contiguous arrays, checked.
            env: values of the symbolic dims.
            outputs: arrays to write into, None where one is to be made.

        Raises:
            RunError: a kernel fails, or a node meets data that it cannot work on.
        """
        results = [self._result(k, env) if o is None else o for k, o in enumerate(outputs)]
        frame = self._take(env)
        try:
            self._run(frame, inputs, results)
        finally:
            self._give_back(frame)
        return results

    def _result(self, k: int, env: Mapping[str, int]) -> np.ndarray:
        info = self.manifest.outputs[k]
        return np.empty(tuple(evaluate(e, env) for e in info.shape), numpy_dtype(info.dtype))

    def peak(self) -> float:
        """Operations per second that multiply-adds of f32 reach on the threads of a run; 0 if that is not known."""
        probe = None if self._library is None else getattr(self._library.dll, "occ_fma_rate", None)
        if probe is None:
            return 0.0
        probe.restype = ctypes.c_double
        return float(max(probe() for _ in range(5))) * self.threads

    # frames

    def _take(self, env: Mapping[str, int]) -> Frame:
        key = tuple(env.values())
        with self._lock:
            idle = self._frames.setdefault(key, [])
            self._frames.move_to_end(key)
            while len(self._frames) > _KEPT_SHAPES:
                self._frames.popitem(last=False)
            if idle:
                return idle.pop()
        return Frame(self.manifest.plan, self._weights, env, self._library)

    def _give_back(self, frame: Frame) -> None:
        with self._lock:
            idle = self._frames.get(tuple(frame.env.values()))
            if idle is not None and len(idle) < _KEPT_FRAMES:
                idle.append(frame)

    # one run

    def _run(self, frame: Frame, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        kinds = {"input": inputs, "output": outputs}
        moving = {k: kinds[s.kind][s.index] for k, s in enumerate(frame.plan.storages) if s.kind in kinds}
        frame.attach({k: a.ctypes.data for k, a in moving.items()})
        for piece in frame.pieces:
            if isinstance(piece, Segment):
                self._run_kernels(piece)
                self._check(piece, frame, moving)
            else:
                self._run_step(piece, frame, moving)

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

    def _run_segment(self, segment: Segment) -> None:
        assert self._library is not None
        if self._library.run is None:
            for call in segment.calls:
                self._run_range(call)
            return
        failed = self._library.run(len(segment.calls), segment.addresses, segment.blocks, self.threads)
        if failed:
            raise _kernel_error(segment.calls[failed - 1].step, self._library.message)

    def _run_range(self, call: Call) -> None:
        """A kernel that leaves its parallel loop to us; the interpreter lock is free while it runs."""
        kernel = _RANGE(call.address)
        if self.threads == 1 or call.tasks < 2:
            code = kernel(call.args, 0, call.tasks)
        else:
            pool = self._pool()
            cuts = [call.tasks * k // self.threads for k in range(self.threads + 1)]
            first, *rest = pairwise(cuts)
            parts = [pool.submit(kernel, call.args, a, b) for a, b in rest if a < b]
            code = kernel(call.args, *first)
            code = next((c for c in [code, *(p.result() for p in parts)] if c), 0)
        if code:
            raise _kernel_error(call.step, f"code {code}")

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads - 1, "occ")
            return self._executor

    def _check(self, segment: Segment, frame: Frame, moving: Mapping[int, np.ndarray]) -> None:
        for call in segment.calls:
            if call.step.flag >= 0 and (code := int(frame.array(call.step.flag, moving)[()])):
                raise RunError("OCC0504", call.step.checks[code - 1])

    def _run_step(self, step: Step, frame: Frame, moving: Mapping[int, np.ndarray]) -> None:
        reads = [frame.array(b, moving) for b in step.reads]
        results = reads if step.kind == "copy" else ROUTINES[step.name](reads, step.attrs, frame.env)
        for b, value in zip(step.writes, results, strict=True):
            frame.array(b, moving)[...] = value


_RANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


def _kernel_error(step: Step, message: str) -> RunError:
    nodes = ", ".join(step.nodes[:3]) or step.name
    return RunError("OCC0505", f"the kernel of node `{nodes}` failed: {message}")
