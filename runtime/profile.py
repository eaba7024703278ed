"""Kernel profile of a run: time, operations and bytes, as a table, JSON or Chrome trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median, quantiles
from typing import Any

from occ.runtime.dataclass import dataclass
from occ.runtime.machine import TILES
from occ.runtime.manifest import Manifest
from occ.runtime.native.engine import NativeEngine
from occ.runtime.native.host_steps import KernelRun
from occ.runtime.session import Session

WIDTH = 80  # columns of tables
UNSTEADY = 0.15  # spread from which times are unreliable
_BLOCK = 0.02  # seconds for which short runs are repeated
_SHORT = 1_000_000  # nanoseconds in kernels below which the clock itself makes single runs differ


def clipped(line: str) -> str:
    """A line truncated to the width of tables."""
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def disturbed(spread: float) -> str:
    """A warning about times that vary a lot between runs; empty for steady ones."""
    if spread <= UNSTEADY:
        return ""
    return f"unsteady (spread {spread:.0%}): something else uses the processors; measure again"


@dataclass(frozen=True)
class Event:
    """One kernel of one run.

    Attributes:
        kernel: symbol of the kernel.
        nodes: ONNX nodes that it computes.
        start, seconds: its start, relative to the run's, and its duration.
        gflops: arithmetic operations, in 1e9 per second.
        gbytes: bytes of the tensors that it reads and writes, in 1e9 per second.
        share: relative to the peak of the multiply-adds that the kernel uses, on the threads of the run; None if
            unknown.
    """

    kernel: str
    nodes: tuple[str, ...]
    start: float
    seconds: float
    gflops: float
    gbytes: float
    share: float | None


@dataclass(frozen=True)
class Profile:
    """The kernels of a run, in order.

    Attributes:
        model: its name.
        threads: of the run.
        seconds: of the whole run without profiling; the rest is spent between kernels.
        peak: peak f32 multiply-add operations per second on these threads, in 1e9; 0 if unknown.
        spread: variation between runs: the interquartile range, of whole runs or of the sums of their kernels, relative
            to the median. If it is large, something else uses the processors.
    """

    model: str
    threads: int
    seconds: float
    peak: float
    events: tuple[Event, ...]
    spread: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def as_trace(self) -> dict[str, Any]:
        """For chrome://tracing and ui.perfetto.dev (Trace Event Format, complete events)."""
        events = [
            {
                "name": ", ".join(e.nodes[:3]) or e.kernel, "cat": "kernel", "ph": "X", "pid": 1, "tid": 1,
                "ts": e.start * 1e6, "dur": e.seconds * 1e6,
                "args": {"kernel": e.kernel, "nodes": list(e.nodes), "GFLOP/s": e.gflops, "GB/s": e.gbytes},
            }
            for e in self.events
        ]  # fmt: skip
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"model": self.model}}

    def table(self, most: int = 40) -> str:
        """The slowest kernels, slowest first; iterations of a loop are one line, with their number."""
        total = sum(e.seconds for e in self.events) or 1.0
        lines = [f"{'ms':>9} {'%':>5} {'GFLOP/s':>8} {'GB/s':>7} {'peak':>5}  kernel: nodes"]
        rows = self._by_kernel()
        for e, calls in sorted(rows, key=lambda row: -row[0].seconds)[:most]:
            share = "" if e.share is None else f"{e.share:.0%}"
            nodes = "".join(c if c.isprintable() else "?" for c in ", ".join(e.nodes[:4]))[:90]
            head = f"{e.seconds * 1e3:9.3f} {e.seconds / total:5.1%} {e.gflops:8.1f} {e.gbytes:7.1f} {share:>5}  "
            name = e.kernel.removesuffix("_argv") + (f" x{calls}" if calls > 1 else "")
            lines.append(clipped(f"{head}{name}: {nodes}"))
        left = len(rows) - most
        if left > 0:
            lines.append(f"and {left} more")
        lines.append(
            f"{len(self.events)} kernels take {total * 1e3:.3f} ms, a run {self.seconds * 1e3:.3f} ms, "
            f"threads: {self.threads}"
        )
        return "\n".join(filter(None, (*lines, disturbed(self.spread))))

    def _by_kernel(self) -> list[tuple[Event, int]]:
        """The calls of a kernel for the same nodes as one event, with their number: whole times, and mean rates."""
        calls: dict[tuple[str, tuple[str, ...]], list[Event]] = {}
        for e in self.events:
            calls.setdefault((e.kernel, e.nodes), []).append(e)
        return [(_joined(row), len(row)) for row in calls.values()]


def _joined(calls: Sequence[Event]) -> Event:
    seconds = sum(e.seconds for e in calls)
    gflops, gbytes, share = (
        sum(rate * e.seconds for rate, e in zip(rates, calls, strict=True)) / (seconds or 1.0)
        for rates in ([e.gflops for e in calls], [e.gbytes for e in calls], [e.share or 0.0 for e in calls])
    )
    known = any(e.share is not None for e in calls)
    return replace(calls[0], seconds=seconds, gflops=gflops, gbytes=gbytes, share=share if known else None)


# Operands of other types per lane in the time of an f32 multiply-add: four bytes, or a pair of bf16.
_DOT_BYTES = ("avx512_zen4", "avx512_sapphirerapids", "avxvnni", "arm_dot_prod")
_DOT_BF16 = ("avx512_zen4", "avx512_sapphirerapids")
_IN_TILES = 32.0  # AMX multiplies 1,024 pairs of bytes in a cycle, two units of 512 bits 32 of f32
_IN_PAIRS = 2.0  # without such an instruction, x86 multiplies pairs of 16 bits, to which bytes are widened
_IN_THREE = 4 / 3  # others multiply bytes, add them in pairs, and add those to the sum


def speed_over_f32(dtypes: Sequence[str], m: Manifest) -> float:
    """The ratio to f32 multiply-adds of the instructions that a kernel with such operands uses.

    Args:
        dtypes: element types of what it reads.
        m: of the model; only target `cpu` has instructions for byte and bf16 products.
    """
    bytes_, halves = (sum(d in kinds for d in dtypes) for kinds in (("u8", "i8"), ("bf16",)))
    if m.target == "cpu" and bytes_ > 1:
        if TILES in m.machine.split("-"):
            return _IN_TILES
        without = _IN_PAIRS if m.machine.startswith("x86") else _IN_THREE
        return 4.0 if any(f in m.machine for f in _DOT_BYTES) else without
    if m.target == "cpu" and halves > 1 and any(f in m.machine for f in _DOT_BF16):
        return 2.0
    return 0.5 if "f64" in dtypes else 1.0


def _operands(m: Manifest) -> dict[int, list[str]]:
    """Element types that each step reads, by its identity."""
    return {id(s): [p.buffers[b].dtype for b in s.reads if b >= 0] for p in m.plans for s in p.steps}


def profile(session: Session, inputs: Mapping[str, Any], runs: int = 7) -> Profile | None:
    """Run a model several times and time its kernels; medians over the runs.

    None if its engine has no kernels.

    Raises:
        RunError: as `Session.run`.
    """
    engine = session.engine
    if not isinstance(engine, NativeEngine):
        return None
    session.run(inputs)
    blocks = timed_blocks(lambda: session.run(inputs), runs)
    cost = int(engine.call_cost() * 1e9)
    observed: list[list[tuple[KernelRun, int, int]]] = []
    for _ in range(runs):
        row: list[tuple[KernelRun, int, int]] = []
        engine.observer = lambda call, start, end, row=row: row.append((call, start, max(end - cost, start + 1)))
        try:
            session.run(inputs)
        finally:
            engine.observer = None
        observed.append(row)
    peak = engine.peak() * 1e-9
    operands = _operands(engine.manifest)
    rows = zip(*observed, strict=False)
    events = tuple(
        _event(row, peak * speed_over_f32(operands.get(id(row[0][0].step), ()), engine.manifest)) for row in rows
    )
    first = events[0].start if events else 0.0
    shifted = tuple(replace(e, start=e.start - first) for e in events)
    sums = [sum(end - start for _, start, end in row) for row in observed]
    spread = max(spread_of(blocks), spread_of(sums) if median(sums) > _SHORT else 0.0)
    return Profile(session.artifact.manifest.name, session.threads, median(blocks), peak, shifted, spread)


def timed_blocks(run: Callable[[], object], blocks: int) -> list[float]:
    """Seconds of a run in each of several blocks of repeated runs, which hides the cost of the clock."""
    made: list[float] = []
    for _ in range(blocks):
        start, count = time.perf_counter(), 0
        while not count or time.perf_counter() - start < _BLOCK:
            run()
            count += 1
        made.append((time.perf_counter() - start) / count)
    return made


def spread_of(values: Sequence[float]) -> float:
    """The interquartile range relative to the median; 0 without values."""
    if len(values) < 2 or not median(values):
        return 0.0
    first, middle, third = quantiles(values, n=4)
    return (third - first) / middle


def _event(samples: Sequence[tuple[KernelRun, int, int]], peak: float) -> Event:
    call, start, _ = samples[-1]
    seconds = max(median(b - a for _, a, b in samples), 1) * 1e-9
    gflops = call.operations / seconds * 1e-9
    share = gflops / peak if peak else None
    return Event(
        call.step.name, tuple(call.step.nodes), start * 1e-9, seconds, gflops, call.traffic / seconds * 1e-9, share
    )
