"""What the stand-in device computes: the simulator runs what the stand-in for atc has put into a model."""

from __future__ import annotations

import json

import numpy as np
from ascend_standin import Described

from occ.compiler.ge_simulator.device import precision_on
from occ.compiler.ge_simulator.reader import Node, Tensor
from occ.compiler.ge_simulator.simulate import Simulator, kernels
from occ.runtime.acl.prototypes import FORMATS


def simulate(payload: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Run what the stand-in for atc has put into a model."""
    head, _, rest = payload.partition(b"\n")
    told = json.loads(head)
    beside, end = {}, len(rest)
    for name, size in reversed(told["sizes"].items()):
        beside[name], end = rest[end - size : end], end - size
    return Simulator(rest[:end], beside, precision_on(told["precision"], told["soc"])).run(arrays)


def simulate_operator(
    kind: str, attrs: dict[str, object], ins: Described, outs: Described, arrays: list[np.ndarray | None]
) -> list[np.ndarray]:
    """Run one operator with the simulator's kernel for it."""
    names = {number: name for name, number in FORMATS.items()}
    described = [[Tensor("", None, shape, names.get(f, "ND")) for f, shape in side] for side in (ins, outs)]
    made = kernels()[kind](Node(kind, kind, [], attrs, *described, []), arrays)
    return list(made) if isinstance(made, (list, tuple)) else [np.asarray(made)]
