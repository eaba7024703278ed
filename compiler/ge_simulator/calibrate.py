"""Finds nodes that a precision mode makes too inaccurate, by simulating both precisions.

Nodes that overflow or deviate are marked with `_keep_dtype`, if the chip has a kernel for it: the node itself, or if it
is in FLOAT already, the nearest preceding one that rounds. Then the part runs again, until nothing more can be marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from occ.compiler.compare import gaps, largest
from occ.compiler.ge_simulator.device import SimulatedDevice, precision_on, simulator
from occ.compiler.ge_simulator.precision import Computed, Precision
from occ.compiler.ge_simulator.reader import Node
from occ.runtime.dataclass import dataclass
from occ.runtime.device_part import DevicePart

_HALF_MAX = 65504.0  # the largest number of half precision
_HALF_LEAST = 2.0**-14  # the smallest with full precision; below it come steps of 6e-8, and then zero
_MOST_ROUNDS = 16


@dataclass(frozen=True)
class Loss:
    """How far a node's results in a precision mode are from those in FLOAT, over all samples.

    Attributes:
        largest: magnitude of the results in FLOAT.
        error: the largest difference relative to `largest`; infinite if a finite result is not finite in the mode.
        overflows: whether a value that is finite in FLOAT exceeds the range of a type that the node reads or writes.
        smallest: the smallest peak of the tensors that it reads or writes in half precision without full precision;
            otherwise infinite.
    """

    largest: float = 0.0
    error: float = 0.0
    overflows: bool = False
    smallest: float = float("inf")

    def with_sample(self, other: Loss) -> Loss:
        """This loss combined with that of another sample."""
        return Loss(
            max(self.largest, other.largest),
            max(self.error, other.error),
            self.overflows or other.overflows,
            min(self.smallest, other.smallest),
        )


@dataclass(frozen=True)
class Finding:
    """A node that overflows, or at which results start to deviate.

    Attributes:
        part, node, operator: its location.
        before: its loss in the mode.
        after: its remaining loss once nodes have been marked.
        remains: whether the loss still starts here: no kernel of the chip helps.
        kept: nodes that were marked because of it.
    """

    part: str
    node: str
    operator: str
    before: Loss
    after: Loss
    remains: bool = False
    kept: tuple[str, ...] = ()


class CalibratedPart:
    """A part of the device in FLOAT and in its precision mode.

    Args:
        part: of the manifest.
        files: of the artifact.

    Raises:
        RunError: as `simulator`.
    """

    def __init__(self, part: DevicePart, files: Mapping[str, bytes]) -> None:
        self.name = part.name
        self.chip = simulator(part, files, precision_on(part.precision, part.soc))
        self.precise = simulator(part, files, Precision())
        self.samples: list[list[np.ndarray]] = []

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Record a sample; its outputs are FLOAT, so that later parts see what the model defines."""
        self.samples.append([np.array(x) for x in inputs])
        return self.precise.run(inputs)

    def losses(self) -> dict[str, Loss]:
        """The precision loss of each node of the root graph, over the samples."""
        found: dict[str, Loss] = {}
        for inputs in self.samples:
            magnitudes: dict[tuple[str, int], float] = {}
            with np.errstate(all="ignore"):
                for (_, want), (node, got) in zip(self.precise.steps(inputs), self.chip.steps(inputs), strict=True):
                    magnitudes |= {(node.name, k): _largest(x) for k, x in enumerate(want)}
                    taken = [magnitudes.get(e, 0.0) for e in node.inputs if e is not None]
                    loss = self._loss(node, want, got, taken)
                    found[node.name] = found.get(node.name, Loss()).with_sample(loss)
        return found

    def _loss(self, node: Node, want: Sequence[np.ndarray], got: Sequence[np.ndarray], taken: Sequence[float]) -> Loss:
        computed = self.chip.computed.get(node, Computed())
        given = [_largest(x) for x in want]
        halves = [*(taken if computed.operands == "FLOAT16" else ()), *(given if computed.results == "FLOAT16" else ())]
        least = min((v for v in halves if 0 < v < _HALF_LEAST), default=float("inf"))
        error = max(map(_error, want, got), default=0.0)
        return Loss(max(given, default=0.0), error, max(halves, default=0.0) > _HALF_MAX, least)

    def search(self, tolerance: float) -> list[Finding]:
        """Mark nodes until none loses more than `tolerance` that can be avoided; returns the findings."""
        found: dict[str, Finding] = {}
        losses = self.losses()
        for _ in range(_MOST_ROUNDS):
            fresh: set[str] = set()
            for node in self._culprits(losses, tolerance):
                marks = tuple(n.name for n in self._markable(node) if n.name not in fresh)
                known = found.get(node.name, Finding(self.name, node.name, node.type, losses[node.name], Loss()))
                found[node.name] = replace(known, kept=(*known.kept, *marks))
                fresh |= {*marks}
            if not fresh:
                break
            self._mark(fresh)
            losses = self.losses()
        remains = {n.name for n in self._culprits(losses, tolerance)}
        return [replace(f, after=losses[name], remains=name in remains) for name, f in found.items()]

    def _culprits(self, losses: Mapping[str, Loss], tolerance: float) -> Iterator[Node]:
        """Nodes that overflow, and those at which the error exceeds the tolerance."""
        for node in self.chip.root.nodes:
            loss = losses.get(node.name, Loss())
            given = [losses[e[0]] for e in node.inputs if e is not None and e[0] in losses]
            if loss.overflows or (loss.error > tolerance >= max((g.error for g in given), default=0.0)):
                yield node

    def _markable(self, node: Node) -> Iterator[Node]:
        """The node, if marking changes how it is computed.

        Otherwise the nearest preceding nodes for which it does.
        """
        by_name = {n.name: n for n in self.chip.root.nodes}
        work, seen = [node], {node.name}
        while work:
            if self._gains(n := work.pop()):
                yield n
                continue
            before = [by_name[e[0]] for e in n.inputs if e is not None and e[0] not in seen]
            seen |= {b.name for b in before}
            work += before

    def _gains(self, node: Node) -> bool:
        now = self.chip.computed.get(node)
        if now is None or "_keep_dtype" in node.attrs:
            return False
        marked = replace(node, attrs={**node.attrs, "_keep_dtype": 1})
        return self.chip.precision.computed(marked) != now

    def _mark(self, names: set[str]) -> None:
        for node in self.chip.root.nodes:
            if node.name in names:
                node.attrs["_keep_dtype"] = 1
        self.chip.computed = self.chip.types()


def _largest(x: np.ndarray) -> float:
    """The largest finite magnitude; 0 for types other than FLOAT."""
    return largest(x) if x.dtype.kind == "f" else 0.0


def _error(want: np.ndarray, got: np.ndarray) -> float:
    """The largest gap relative to the largest value, where the FLOAT result is finite.

    0 for types other than FLOAT.
    """
    if want.dtype.kind != "f":
        return 0.0
    known = np.isfinite(want)
    return float(gaps(got[known], want[known]).max(initial=0.0)) / (largest(want) or 1.0)


@dataclass
class Calibrator(SimulatedDevice):
    """A simulated device that records precision loss; run the samples on it, then `search` the `parts`."""

    parts: list[CalibratedPart] = field(default_factory=list)

    def load(self, part: DevicePart, files: Mapping[str, bytes]) -> CalibratedPart:
        """Implements `SimulatedDevice.load`."""
        self.parts.append(made := CalibratedPart(part, files))
        return made
