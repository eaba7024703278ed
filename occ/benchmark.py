"""Benchmarks against other runtimes: checked outputs, interleaved runs, the same inputs.

Runs of one runtime are taken in blocks, with a pause before each: idle workers of another runtime spin for some
milliseconds after their last run and would take a core from the runtime timed next. Ratios are between adjacent blocks,
so that varying load on the machine affects both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from numbers import Integral
from statistics import median
from typing import Any

import numpy as np

from occ.compiler.compare import difference
from occ.runtime.dataclass import dataclass
from occ.runtime.profile import UNSTEADY, spread_of
from occ.runtime.session import Session

PEERS = ("onnxruntime", "openvino")
PAUSE = 0.06  # seconds before each block
BLOCK = 0.05  # minimum seconds of the timed runs of a block
Arrays = Mapping[str, np.ndarray]
Runner = Callable[[], Any]


class Unavailable(Exception):
    """A peer is not installed or does not support the model."""


@dataclass(frozen=True)
class Runs:
    """Wall-clock time of single runs, in milliseconds.

    Attributes:
        count: runs.
        least, median, p90, p99: the minimum, and the times that 50 %, 90 % and 99 % of the runs do not exceed.
        per_second: throughput: sequential runs divided by their total time.
    """

    count: int
    least: float
    median: float
    p90: float
    p99: float
    per_second: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Runs:
        """Statistics of the times of runs, at least one."""
        least, middle, p90, p99 = (float(x) * 1e3 for x in np.percentile(seconds, (0, 50, 90, 99)))
        return cls(len(seconds), least, middle, p90, p99, len(seconds) / max(sum(seconds), 1e-12))

    def line(self) -> str:
        """A line of text with the times."""
        return (
            f"min {self.least:.3f}, median {self.median:.3f}, p90 {self.p90:.3f}, p99 {self.p99:.3f} ms, "
            f"{self.per_second:.1f} runs/s ({self.count} runs)"
        )


@dataclass(frozen=True)
class Timing:
    """The time of a run.

    Attributes:
        ms: median over the blocks of each block's median, wall clock.
        spread: interquartile range of the blocks, relative to the median.
        cpu_ms: the same for processor time of the calling thread, which other processes affect less.
        ratio: median over the blocks of its wall time over the first runner's in the same round; 1 for the first.
        cpu_ratio: the same for processor time; only meaningful on one thread.
        runs: single runs, over all blocks; None if they were not timed individually.
    """

    ms: float
    spread: float
    cpu_ms: float
    ratio: float = 1.0
    cpu_ratio: float = 1.0
    runs: Runs | None = None

    @property
    def steadiness(self) -> str:
        """The spread, in five characters or a word."""
        return f"+-{self.spread:4.0%}" if self.spread <= UNSTEADY else "unsteady"


@dataclass
class Comparison:
    """One model on one number of threads.

    Attributes:
        threads: of a run.
        times: by runtime, occ first.
        differences: of the outputs from each peer, relative to the largest value.
        reasons: why a peer has no ratio.
        inputs: of the runs, a text each: `x: f32[1,3,320,320]`.
    """

    threads: int
    times: dict[str, Timing] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report: settings, then lines for each runtime.

        It states a speed-up only if the outputs agree and the times are steady.
        """
        made = list(self.inputs)
        for name, t in self.times.items():
            head = f"{name:12} {self.threads} thread{'s' if self.threads > 1 else ' '} {t.ms:10.3f} ms {t.steadiness}"
            made.append(head if name == "occ" else f"{head}  {self._verdict(name, t)}")
            if t.runs is not None:
                made.append(f"{'':12} {t.runs.line()}")
        made += [f"{name:12} {reason}" for name, reason in self.reasons.items() if name not in self.times]
        if any(t.spread > UNSTEADY for t in self.times.values()):
            made.append(
                "unsteady: blocks of runs took very different times, since something else uses the processors; "
                "run the benchmark again"
            )
        return made

    def _verdict(self, name: str, t: Timing) -> str:
        """A peer next to occ, or why there is no ratio."""
        if name in self.reasons:
            return f"no comparison: {self.reasons[name]}"
        if max(t.spread, self.times["occ"].spread) > UNSTEADY:
            return f"no comparison: spread above {UNSTEADY:.0%}, not trustworthy"
        return f"occ is {t.ratio:.2f}x as fast (outputs differ by {self.differences[name]:.1e})"


def compare(
    session: Session,
    model: bytes | str,
    inputs: Arrays,
    peers: Sequence[str],
    *,
    rounds: int = 9,
    tolerance: float = 1e-4,
) -> Comparison:
    """Compare a session with peers on the same model, inputs and number of threads.

    Args:
        session: the model compiled by occ.
        model: path or bytes of the ONNX model.
        inputs: by name.
        peers: out of `PEERS`.
        rounds: blocks per runtime.
        tolerance: relative difference of outputs above which no speed-up is stated.
    """
    made = Comparison(session.threads, inputs=[_shown(n, x) for n, x in inputs.items()])
    ours = session.run(inputs)
    if not isinstance(rounds, Integral) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}; it takes at least 1")
    runners: dict[str, Runner] = {"occ": lambda: session.run(inputs)}
    for name in peers:
        try:
            run, outputs = _MAKERS[name](model, inputs, list(ours), session.threads)
        except Unavailable as e:
            made.reasons[name] = str(e)
            continue
        worst = max((difference(ours[k], outputs[k]) for k in ours), default=0.0)
        made.differences[name] = worst
        if not worst <= tolerance:
            made.reasons[name] = f"outputs differ by {worst:.1e} of the largest value"
        runners[name] = run
    made.times = measure(runners, rounds)
    return made


def _shown(name: str, x: Any) -> str:
    """An input as text, with its extents."""
    x = np.asarray(x)
    return f"{name}: {x.dtype}[{','.join(map(str, x.shape))}]"


def measure(runners: Mapping[str, Runner], rounds: int) -> dict[str, Timing]:
    """Time runners in interleaved blocks; ratios are relative to the first one."""
    counts: dict[str, int] = {}
    for name, run in runners.items():
        run()
        start = time.perf_counter()
        run()
        counts[name] = min(max(int(BLOCK / max(time.perf_counter() - start, 1e-6)), 1), 2000)
    wall: dict[str, list[float]] = {n: [] for n in runners}
    cpu: dict[str, list[float]] = {n: [] for n in runners}
    runs: dict[str, list[float]] = {n: [] for n in runners}
    names = list(runners)
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            samples, used = _block(runners[name], counts[name])
            wall[name].append(median(samples))
            cpu[name].append(median(used))
            runs[name] += samples
    ours = wall[names[0]], cpu[names[0]]
    return {n: replace(timing((wall[n], cpu[n]), ours), runs=Runs.of(runs[n])) for n in names}


def timing(samples: tuple[Sequence[float], Sequence[float]], ours: tuple[Sequence[float], Sequence[float]]) -> Timing:
    """Statistics of timed blocks.

    Args:
        samples: seconds of each block, wall clock and processor time.
        ours: the first runtime's in the same rounds.
    """
    (wall, cpu), (our_wall, our_cpu) = samples, ours
    return Timing(median(wall) * 1e3, spread_of(wall), median(cpu) * 1e3, _ratio(wall, our_wall), _ratio(cpu, our_cpu))


def _block(run: Runner, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each run, wall clock and processor time."""
    time.sleep(PAUSE)
    run()
    samples: list[float] = []
    used: list[float] = []
    for _ in range(count):
        w, c = time.perf_counter(), time.thread_time()
        run()
        used.append(time.thread_time() - c)
        samples.append(time.perf_counter() - w)
    return samples, used


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return median(t / max(o, 1e-9) for t, o in zip(theirs, ours, strict=True))


# The peers. Each maker returns a function that runs the model once, and the outputs by name.


def _onnxruntime(model: bytes | str, inputs: Arrays, names: list[str], threads: int) -> tuple[Runner, Arrays]:
    try:
        import onnxruntime
    except ImportError:
        raise Unavailable("not installed: `pip install onnxruntime`") from None
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    try:
        session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found = session.run(names, dict(inputs))
    except Exception as e:
        raise Unavailable(f"does not run the model: {_first_line(e)}") from None
    return lambda: session.run(names, inputs), dict(zip(names, found, strict=True))


def _openvino(model: bytes | str, inputs: Arrays, names: list[str], threads: int) -> tuple[Runner, Arrays]:
    try:
        import openvino  # pyright: ignore[reportMissingImports] - only for the comparison
    except ImportError:
        raise Unavailable("not installed: `pip install openvino`") from None
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        # Otherwise products with compressed weights round their other operand to 8 bits, which the model does not
        # allow.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    try:
        core: Any = openvino.Core()
        compiled = core.compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()
        ports = {n: next(p for p in compiled.inputs if n in p.get_names()) for n in inputs}
        tensors = {ports[n]: openvino.Tensor(np.ascontiguousarray(a)) for n, a in inputs.items()}
        results = request.infer(tensors, share_outputs=False)
        outputs = {n: np.array(results[next(p for p in compiled.outputs if n in p.get_names())]) for n in names}
    except Exception as e:
        raise Unavailable(f"does not run the model: {_first_line(e)}") from None
    return lambda: request.infer(tensors, share_outputs=True), outputs


def _first_line(e: Exception) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0][:160]


_MAKERS = {"onnxruntime": _onnxruntime, "openvino": _openvino}
