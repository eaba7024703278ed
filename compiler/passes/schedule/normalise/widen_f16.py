"""Widens 16-bit floats once in memory, if a sum of products would widen them for every product."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Axis, Cast, Expr, Load, Reduce, cast
from occ.compiler.ir.te.function import AnyStage, Scatter, TeFunc, TeStage, position
from occ.compiler.ir.te.walks import transform, walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.stage_facts import contraction
from occ.compiler.targets.machine import Machine

_HALF = ("f16", "bf16")


def widen_f16(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """16-bit floats that sums of products broadcast are widened to f32 once, in memory.

    Values do not change, since every 16-bit float is an f32. The operand along which lanes run, usually the weights, is
    widened in registers as it streams in. Pairs of bf16 that one instruction multiplies are left alone.

    `pad[i] = x[i]  acc[i, j] = sum[r](cast<f32>(pad[i + r]) * cast<f32>(w[r, j]))` -->
    `pad[i] = cast<f32>(x[i])  acc[i, j] = sum[r](pad[i + r] * cast<f32>(w[r, j]))`
    """
    made = _stages(_parameters(f))
    return Declined("no sum of products broadcasts 16-bit floats") if made.stages == f.stages else made


def _parameters(f: TeFunc) -> TeFunc:
    """Inserts a stage that widens a parameter that a contraction broadcasts."""
    params = {p.name: p for p in f.params}
    made: dict[str, TeStage] = {}
    stages: list[AnyStage] = []
    for s in f.stages:
        found = contraction(s, f) if isinstance(s, TeStage) else None
        p = params.get(found.a.source) if found is not None else None
        if found is None or found.dot or p is None or p.type.dtype.name not in _HALF or p.type.layout.tiles:
            stages.append(s)
            continue
        if p.name not in made:
            axes = tuple(Axis(f"{p.name}w{k}", n) for k, n in enumerate(p.type.dims))
            made[p.name] = TeStage(f"{p.name}wide", axes, cast(F32, Load(p.name, position(axes), p.type.dtype)))
            stages.append(made[p.name])
        assert isinstance(s, TeStage)
        stages.append(replace(s, expr=_read_wide(s.expr, found.a.source, made[p.name].name)))
    return replace(f, stages=tuple(stages)) if made else f


def _stages(f: TeFunc) -> TeFunc:
    """Widens a stage without a sum if all its readers widen it."""
    results = {r.name for r in f.results}
    sums = [contraction(s, f) for s in f.stages if isinstance(s, TeStage)]
    paired = {c.a.source for c in sums if c is not None and c.dot}
    for s in f.stages:
        if isinstance(s, Scatter) or s.name in results or s.dtype.name not in _HALF:
            continue
        if any(isinstance(n, Reduce) for n in walk(s.expr)) or not _all_widen(s.name, f) or s.name in paired:
            continue
        # by name: a stage that reads an already widened one is a copy by now
        readers = [_widened(r) if r.name == s.name else _reader(r, s.name) for r in f.stages]
        f = replace(f, stages=tuple(readers))
    return f


def _widened(s: AnyStage) -> TeStage:
    assert isinstance(s, TeStage), "a scatter writes in its own type"
    return replace(s, expr=cast(F32, s.expr))


def _all_widen(name: str, f: TeFunc) -> bool:
    read = casts = 0
    for r in f.stages:
        for e in r.exprs:
            for n in walk(e):
                read += isinstance(n, Load) and n.source == name
                casts += _is_wide(n, name)
        if isinstance(r, Scatter) and any(isinstance(n, Load) and n.source == name for e in r.exprs for n in walk(e)):
            return False
    return 0 < read == casts


def _is_wide(n: Expr, source: str) -> bool:
    return isinstance(n, Cast) and n.dtype == F32 and isinstance(n.arg, Load) and n.arg.source == source


def _reader(s: AnyStage, source: str) -> AnyStage:
    return s if isinstance(s, Scatter) else replace(s, expr=_read_wide(s.expr, source, source))


def _read_wide(e: Expr, source: str, wide: str) -> Expr:
    def visit(n: Expr) -> Expr | None:
        if _is_wide(n, source):
            assert isinstance(n, Cast)
            assert isinstance(n.arg, Load)
            return Load(wide, n.arg.index, F32)
        return None

    return transform(e, visit)
