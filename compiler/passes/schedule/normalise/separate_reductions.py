"""Normalises results that are bare reductions into a reduction and a copy of it."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.te.expr import Axis, Load, Reduce
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, position
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.targets.machine import Machine


def separate_reductions(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Results that are bare reductions become copies of a reduction, which can then be tiled.

    `out[i] = sum[r](x)` --> `out_acc[i] = sum[r](x)  out[i] = out_acc[i]`
    """
    results = {r.name for r in f.results}
    stages: list[AnyStage] = []
    for s in f.stages:
        if isinstance(s, TeStage) and s.name in results and isinstance(s.expr, Reduce) and s.expr.kind in COMBINE:
            inner = replace(s, name=f"{s.name}acc")
            axes = tuple(Axis(f"{a.name}c", a.extent) for a in s.axes)
            copied = Load(inner.name, position(axes), s.dtype)
            stages += [inner, TeStage(s.name, axes, copied, s.note)]
        else:
            stages.append(s)
    if len(stages) == len(f.stages):
        return Declined("no result is a bare reduction")
    return replace(f, stages=tuple(stages))
