"""Trailing host steps of a plan (texts, maps, sequences), which Python runs after the native entry.

Classifiers that scikit-learn's converter writes end so: in the names of classes, and in a map from each name to its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from occ.runtime.attributes import decode_attrs
from occ.runtime.hostops import run_host
from occ.runtime.manifest import Manifest, Plan, Step, TensorInfo


class LastSteps:
    """Host steps to whose results nothing else looks.

    Args:
        plan: of the whole model.
        steps: in order.
        buffers: what the rest of the plan gives, in order.
        names: of the outputs of the model.
    """

    def __init__(self, plan: Plan, steps: Sequence[Step], buffers: Sequence[int], names: Sequence[str]) -> None:
        places = {-1: 0} | {b: k for k, b in enumerate(buffers, 1)}
        for b in (b for s in steps for b in s.writes):
            places[b] = len(places)
        self.count, self._names = len(buffers), list(names)
        self._steps = [(s.name, [places[b] for b in s.reads], decode_attrs(s.attrs), s.nodes) for s in steps]
        self._outputs = [places[b] for b in plan.outputs]

    def run(self, made: Iterable[np.ndarray]) -> dict[str, Any]:
        """The outputs by name, from the results of the rest.

        Raises:
            RunError: a node met data that it cannot work on.
        """
        values: list[Any] = [None, *made]  # operands that are absent, then buffers in the order in which they are made
        for name, reads, attrs, nodes in self._steps:
            values += run_host(name, [values[k] for k in reads], attrs, nodes)
        return dict(zip(self._names, [values[k] for k in self._outputs]))  # noqa: B905 - as many, by construction


def without_last_steps(m: Manifest) -> tuple[Manifest, LastSteps] | None:
    """A model without its last steps, and those.

    None if it has none, or if what they read is in no dense tensor.
    """
    if m.special or m.engine != "native":
        return None
    plan = m.plan
    last = _last(plan)
    written = {b for s in last for b in s.writes}
    read = dict.fromkeys(b for s in last for b in s.reads if b >= 0 and b not in written)
    if not last or any(plan.buffers[b].opaque or plan.buffers[b].strides for b in read):
        return None
    kept = [k for k, b in enumerate(plan.outputs) if b not in written]
    outputs = [m.outputs[k] for k in kept]
    buffers = [plan.outputs[k] for k in kept]
    for b in (b for b in read if b not in buffers):
        outputs.append(TensorInfo(_unlike(f"tensor {b}", m), plan.buffers[b].dtype, plan.buffers[b].shape))
        buffers.append(b)
    places = {k: at for at, k in enumerate(kept)}
    storages = [replace(s, index=places.get(s.index, 0)) if s.kind == "output" else s for s in plan.storages]
    ids = set(map(id, last))
    rest = replace(plan, storages=storages, steps=[s for s in plan.steps if id(s) not in ids], outputs=buffers)
    return replace(m, outputs=outputs, plan=rest), LastSteps(plan, last, buffers, [o.name for o in m.outputs])


def _last(plan: Plan) -> list[Step]:
    """The host steps whose results no step reads but such as come last themselves.

    Results of sizes that a run finds stay.
    """
    needed: set[int] = set()
    found: list[Step] = []
    for s in reversed(plan.steps):
        if s.kind == "host" and not s.binds and needed.isdisjoint(plan.buffers[b].storage for b in s.writes):
            found.append(s)
        else:
            needed |= {plan.buffers[b].storage for b in s.reads if b >= 0}
    return found[::-1]


def _unlike(name: str, m: Manifest) -> str:
    """A name that no output of the model has."""
    while any(o.name == name for o in m.outputs):
        name += "'"
    return name
