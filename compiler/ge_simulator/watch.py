"""A simulated device that records the result of every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from occ.compiler.ge_simulator.device import SimulatedDevice, precision_on, simulator
from occ.compiler.ge_simulator.simulate import Simulator
from occ.runtime.dataclass import dataclass
from occ.runtime.device_part import DevicePart


@dataclass
class _WatchedPart:
    graph: Simulator
    seen: dict[str, list[np.ndarray]]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            self.seen |= {node.name: made for node, made in self.graph.steps(inputs)}
        return [self.seen[name][k] for name, k in self.graph.root.outputs]


@dataclass
class Watcher(SimulatedDevice):
    """Run a session on it; afterwards `seen` has the results of the root graphs' nodes by name."""

    seen: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def load(self, part: DevicePart, files: Mapping[str, bytes]) -> _WatchedPart:
        """Implements `SimulatedDevice.load`."""
        return _WatchedPart(simulator(part, files, precision_on(part.precision, part.soc)), self.seen)
