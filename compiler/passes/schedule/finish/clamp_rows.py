"""Keeps a tile with a guarded tail from reading outside of the tensor."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.te.expr import Binary, Expr, Index, Load, minimum, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.rules.packed_contraction import packed_contraction
from occ.compiler.passes.schedule.stage_facts import contraction, extent_of
from occ.compiler.passes.schedule.variants.skinny_gemm import skinny_gemm
from occ.compiler.targets.machine import Machine

_TILED_BY = (packed_contraction.__name__, skinny_gemm.__name__)


def clamp_rows(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Clamps rows that product tiles with a guarded tail read past the end of an axis.

    The results of such rows are not stored.
    """
    guarded = {(d.stage, d.args[0]) for d in f.schedule if d.call == "bound_extent" and d.rule in _TILED_BY}
    stages: list[AnyStage] = []
    for s in f.stages:
        found = contraction(s, f) if isinstance(s, TeStage) else None
        tile = next((a for a in (found.tile, *found.outer) if (s.name, a) in guarded), "") if found is not None else ""
        if found is None or not tile:
            stages.append(s)
            continue
        assert isinstance(s, TeStage)
        last = wrap(extent_of(s, tile) - 1)

        def clamp(n, source=found.a.source, axis=tile, last=last):
            if isinstance(n, Load) and n.source == source:
                return Load(n.source, tuple(transform(i, lambda x: _at_most(x, axis, last)) for i in n.index), n.dtype)
            return None

        stages.append(replace(s, expr=transform(s.expr, clamp)))
    if all(made is s for made, s in zip(stages, f.stages, strict=True)):
        return Declined("no product has tiles that may reach past its last row")
    return replace(f, stages=tuple(stages))


def _at_most(e: Expr, axis: str, last: Expr) -> Expr | None:
    """The replacement of the position on an axis; one that is clamped already stays."""
    if isinstance(e, Index) and e.name == axis:
        return minimum(e, last)
    if isinstance(e, Binary) and e.op == "min" and e.rhs == last and e.lhs == minimum(Index(axis), last):
        return e.lhs
    return None
