"""A manifest with several plans: one for all sizes, others specialised to certain shapes.

They share weights with equal bytes, kernels with equal names, which identify their contents, and one library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from occ.compiler.ir.module import Module, nodes_of
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.plan.plan import stored_weights
from occ.runtime.artifact import weight_infos
from occ.runtime.dataclass import dataclass
from occ.runtime.manifest import Function, Manifest, Plan, Specialisation, Step

_CALLED = ("then_branch", "else_branch", "body")  # attributes of steps that refer to functions


@dataclass(frozen=True)
class Planned:
    """A manifest with its weights and te functions for code generation.

    Attributes:
        manifest: of all plans.
        weights: in the manifest's order.
        functions: the kernels of all plans.
        nodes: the ONNX nodes of each kernel.
    """

    manifest: Manifest
    weights: Sequence[np.ndarray]
    functions: Sequence[TeFunc]
    nodes: Mapping[str, Sequence[str]]


def planned(modules: Sequence[Module], manifest_of: Callable[[Module], Manifest]) -> Planned:
    """The plans of modules in one manifest.

    Args:
        modules: lowered; the first is for all sizes, the others for certain extents. Names of their functions may
            change.
        manifest_of: the manifest of one of them.
    """
    whole, *others = modules
    functions, nodes = dict(whole.te), nodes_of(whole)
    for k, m in enumerate(others):
        _rename(m, functions, k)
        functions |= m.te
        nodes |= nodes_of(m)
    made = manifest_of(whole)
    weights = [w.data for w in stored_weights(whole)]
    if not others:
        return Planned(made, weights, list(functions.values()), nodes)
    names = [w.name for w in made.weights]
    known = {_digest(w): k for k, w in enumerate(weights)}
    special: list[Specialisation] = []
    inner = dict(made.functions)
    for k, m in enumerate(others):
        own = manifest_of(m)
        place: list[int] = []
        for info, w in zip(own.weights, stored_weights(m), strict=True):
            digest = _digest(w.data)
            if digest not in known:
                known[digest] = len(weights)
                weights.append(w.data)
                names.append(f"{info.name}.{k}")
            place.append(known[digest])
        calls = {n: f"{n}.{k}" for n in own.functions}
        inner |= {calls[n]: _moved_function(f, place, calls) for n, f in own.functions.items()}
        plan = _moved(own.plan, place, calls)
        special.append(Specialisation(own.dims, own.inputs, own.outputs, own.constraints, plan))
    infos = weight_infos(names, [w.nbytes for w in weights])
    manifest = replace(made, weights=infos, functions=inner, special=special)
    return Planned(manifest, weights, list(functions.values()), nodes)


def _digest(w: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(w).reshape(-1).view(np.uint8).data).digest()


def _rename(m: Module, taken: Mapping[str, TeFunc], k: int) -> None:
    """Rename functions whose schedule differs from others of the same name."""
    names = {n: f"{n}_s{k}" for n, f in m.te.items() if n in taken and taken[n] != f}
    if not names:
        return
    m.te = {names.get(n, n): f.with_name(names.get(n, n)) for n, f in m.te.items()}
    for op in m.walk():
        if op.attrs.get("te") in names:
            op.attrs["te"] = names[op.attrs["te"]]


def _moved_function(f: Function, place: Sequence[int], calls: Mapping[str, str]) -> Function:
    return replace(f, plan=_moved(f.plan, place, calls))


def _moved(plan: Plan, place: Sequence[int], calls: Mapping[str, str]) -> Plan:
    """A plan among others: where its weights are, and the names of the functions that it runs."""
    storages = [replace(s, index=place[s.index]) if s.kind == "weight" else s for s in plan.storages]
    return replace(plan, storages=storages, steps=[_calling(s, calls) for s in plan.steps])


def _calling(step: Step, calls: Mapping[str, str]) -> Step:
    changed: dict[str, Any] = {n: calls[step.attrs[n]] for n in _CALLED if step.attrs.get(n) in calls}
    return replace(step, attrs={**step.attrs, **changed}) if changed else step
