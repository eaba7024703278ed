"""Comparison of a quantised model with the original: size, run time, and differences, by occ and by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from typing import Any

import numpy as np
from onnx import ModelProto

from occ.benchmark import PEERS, Timing, measure
from occ.compiler.compare import difference
from occ.quantization.losses import Loss
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.profile import UNSTEADY
from occ.runtime.session import Session

Arrays = Mapping[str, np.ndarray]
FLOATS, CODES = "floats", "codes"


@dataclass(frozen=True)
class Difference:
    """The deviation of an output.

    Attributes:
        largest: maximum over its elements, relative to the largest original value.
        mean: root mean square of the difference, relative to that of the original output.
    """

    largest: float
    mean: float

    @classmethod
    def of(cls, got: np.ndarray, expected: np.ndarray) -> Difference:
        """The difference of two arrays; infinite if their shapes or types differ."""
        largest = difference(got, expected)
        if not np.isfinite(largest) or expected.dtype.kind not in "fiub" or not expected.size:
            return cls(largest, largest)
        exact = expected.astype(np.float64)
        scale = float(np.sqrt(np.mean(np.square(exact)))) or 1.0
        return cls(largest, float(np.sqrt(np.mean(np.square(got.astype(np.float64) - exact)))) / scale)


@dataclass
class Comparison:
    """The effects of quantising a model.

    Attributes:
        bytes_before, bytes_after: of the files.
        threads: of a run.
        times: of a run, by runtime and `floats` or `codes`: `occ floats`.
        differences: of the quantised outputs from the original ones, by runtime and output.
        losses: of the nodes, largest first.
        notes: what could not be compared, and why.
    """

    bytes_before: int
    bytes_after: int
    threads: int = 1
    times: dict[str, Timing] = field(default_factory=dict)
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        rows = [
            {"runtime": name, "output": output, **asdict(d)}
            for name, outputs in self.differences.items()
            for output, d in outputs.items()
        ]
        return asdict(self) | {"differences": rows, "speed": {name: self.speed(name) for name in self.differences}}

    def speed(self, runtime: str) -> float | None:
        """The speed-up of the quantised model; None if it was not measured.

        Processor time on one thread, wall clock on more.
        """
        floats, codes = (self.times.get(f"{runtime} {kind}") for kind in (FLOATS, CODES))
        if floats is None or codes is None:
            return None
        return floats.cpu_ratio / codes.cpu_ratio if self.threads == 1 else floats.ratio / codes.ratio

    def lines(self, most: int = 5) -> list[str]:
        """A table for people: a line per runtime, then a line for each output, then the nodes that lose most."""
        share = self.bytes_after / max(self.bytes_before, 1)
        made = [f"size     {_size(self.bytes_before)} to {_size(self.bytes_after)} ({share:.0%})"]
        for name, outputs in self.differences.items():
            made.append(f"{name:12}{self._speed(name)}".rstrip())
            made += [
                f"{'':12}{o}: largest difference {d.largest:.2e} of the largest value, root mean square {d.mean:.2e}"
                for o, d in outputs.items()
            ]
        if any(t.spread > UNSTEADY for t in self.times.values()):
            made.append("unsteady: blocks of runs took very different times, since something else uses the processors")
        if self.losses:
            made.append(
                "nodes with the largest error (root mean square of each alone); --keep NAME leaves one in floats"
            )
            made += [
                f"{'':8} {one.error:.1e}  {one.node}  ({one.type}, {_size(one.weights)} of weights)"
                for one in self.losses[:most]
            ]
        return [*made, *(f"note     {n}" for n in self.notes)]

    def _speed(self, runtime: str) -> str:
        factor = self.speed(runtime)
        if factor is None:
            return ""
        floats, codes = (self.times[f"{runtime} {kind}"] for kind in (FLOATS, CODES))
        return f"{factor:.2f} times as fast as in floats ({floats.ms:.3f} to {codes.ms:.3f} ms a run)"


def _size(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 1 << 20 else f"{n / 2**10:.1f} KiB"


Model = str | ModelProto  # a path, or a message with its weights inside
Opened = Callable[[Model], Session]


def compare(made: Comparison, floats: Model, codes: Model, inputs: Arrays, opened: Opened | None, rounds: int) -> None:
    """Run both models on the samples, and record differences and times.

    Args:
        made: the result to fill in.
        floats, codes: the models.
        inputs: of a run.
        opened: makes a session of occ; None where the target does not run here.
        rounds: blocks of runs of each; 0 to skip timing.

    Raises:
        CompileError, RunError: a model cannot be compiled, or run.
    """
    runners: dict[str, Callable[[], Any]] = {}
    results: dict[str, dict[str, Arrays]] = {}
    makers: dict[str, Callable[[Model], Any]] = {"occ": opened} if opened is not None else {}
    makers |= {PEERS[0]: lambda model: _Onnxruntime(model, made.threads)}
    for runtime, maker in makers.items():
        both = {kind: maker(model) for kind, model in ((FLOATS, floats), (CODES, codes))}
        try:
            results[runtime] = {kind: dict(one.run(inputs)) for kind, one in both.items()}
        except RunError:
            raise
        except Exception as e:  # onnxruntime raises its own
            made.notes.append(f"{runtime} does not run the model: {(str(e).splitlines() or [''])[0][:160]}")
            continue
        runners |= {f"{runtime} {kind}": (lambda one=one: one.run(inputs)) for kind, one in both.items()}
    for runtime, found in results.items():
        made.differences[runtime] = {
            name: Difference.of(np.asarray(found[CODES][name]), np.asarray(x)) for name, x in found[FLOATS].items()
        }
    if rounds:
        made.times = measure(runners, rounds)


class _Onnxruntime:
    """An onnxruntime session with the interface of occ's."""

    def __init__(self, model: Model, threads: int) -> None:
        import onnxruntime

        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        taken = model if isinstance(model, str) else model.SerializeToString()
        self._session: Any = onnxruntime.InferenceSession(taken, options, providers=["CPUExecutionProvider"])
        self._names = [o.name for o in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name."""
        return dict(zip(self._names, self._session.run(self._names, dict(inputs)), strict=True))
