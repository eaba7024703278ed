"""Normalises gathers of single elements into a stage of positions and one that loads."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dtype import I32, I64
from occ.compiler.ir.te.expr import Axis, Load, cast, clamp, wrap
from occ.compiler.ir.te.function import AnyStage, Param, TeFunc, TeStage, loads, position
from occ.compiler.ir.te.index import axis_symbols, to_dim
from occ.compiler.ir.te.roles import POSITIONS
from occ.compiler.ir.te.walks import replace_indices
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.targets.machine import Machine

_SHORT = 64  # elements of a row that are loaded as fast in one stage


def separate_positions(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Gathers of single elements become positions, which vectors compute and clamp, and loads, which they cannot do.

    `out[i, j] = x[i, p(index[i, j])]` --> `at[i, j] = cast<i32>(min(max(p(index[i, j]), 0), n - 1))`,
    `out[i, j] = x[i, at[i, j]]`.
    """
    params = {p.name: p for p in f.params}
    stages: list[AnyStage] = []
    for s in f.stages:
        k = _place(s, params) if isinstance(s, TeStage) else None
        stages += _separated(s, k, params) if isinstance(s, TeStage) and k is not None else [s]
    if len(stages) == len(f.stages):
        return Declined("it gathers no single elements")
    return replace(f, stages=tuple(stages))


def _place(s: TeStage, params: dict[str, Param]) -> int | None:
    """The axis along which a stage does nothing but load elements at positions of their own."""
    if not isinstance(e := s.expr, Load) or e.source not in params:
        return None
    if not 32 <= e.dtype.bits <= 64 or nominal(s.axes[-1].extent if s.axes else 1) < _SHORT:
        return None
    symbols = axis_symbols(s.axes)
    found = [k for k, i in enumerate(e.index) if to_dim(i, symbols) is None]
    own = len(found) == 1 and any(n.index == position(s.axes) for n in loads(e.index[found[0]]))
    return found[0] if own else None


def _separated(s: TeStage, k: int, params: dict[str, Param]) -> list[AnyStage]:
    assert isinstance(s.expr, Load)
    axes = tuple(Axis(f"{a.name}p", a.extent) for a in s.axes)
    at = replace_indices(s.expr.index[k], dict(zip((a.name for a in s.axes), position(axes), strict=True)))
    last = wrap(params[s.expr.source].type.dims[k] - 1)
    positions = TeStage(f"{s.name}at", axes, cast(I32, clamp(at, 0, last)), s.note, POSITIONS)
    found = cast(I64, Load(positions.name, position(s.axes), I32))
    index = (*s.expr.index[:k], found, *s.expr.index[k + 1 :])
    return [positions, replace(s, expr=replace(s.expr, index=index))]
