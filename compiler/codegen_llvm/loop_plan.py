"""The loop structure of a te stage: its vector axis, unrolled axis and parallel axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import FOLDS, ORDERED, Expr, Load, Reduce
from occ.compiler.ir.te.function import TeStage, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.walks import walk

_BLOCK = 8192  # elements per task of a one-dimensional stage
_ROWS = 4


@dataclass(frozen=True)
class LoopPlan:
    """The loops of one stage.

    Attributes:
        vector: axis of the lanes (an axis of the stage or of its reduction), or empty for scalar code.
        width: number of lanes.
        tile: axis of which `rows` positions are computed together, or empty.
        rows: that number.
        parallel: axis of the caller's range, or empty.
        block: elements of a task if the vector axis is the only one, otherwise 0.
    """

    vector: str = ""
    width: int = 0
    tile: str = ""
    rows: int = 1
    parallel: str = ""
    block: int = 0

    def tasks(self, s: TeStage) -> Dim:
        """Extent of the parallel loop."""
        if self.block:
            return dim.ceildiv(s.axes[0].extent, self.block)
        return next((a.extent for a in s.axes if a.name == self.parallel), 1)


def plan_loops(s: TeStage, sources: Mapping[str, tuple[Dim, ...]], vector_bits: int) -> LoopPlan:
    """The loops of a stage.

    Args:
        s: the stage.
        sources: shapes of everything that it loads.
        vector_bits: width of a vector register.
    """
    reductions = [n for n in walk(s.expr) if isinstance(n, Reduce)]
    arg = any(r.kind in ORDERED for r in reductions)
    # A fold's reads depend on the previous step: scalars, which processors overlap across rows.
    candidates = [s.axes[-1].name] if s.axes and not any(r.kind in FOLDS for r in reductions) else []
    if not arg:
        candidates += [r.axes[-1].name for r in reductions if r.axes]
    vector = max(candidates, key=lambda a: _score(a, s, sources), default="")
    width = max(vector_bits // max((_bits(n) for n in walk(s.expr)), default=32), 2)
    if vector and _extent(vector, s) is not None and (_extent(vector, s) or 0) < 2:
        vector = ""
    outer = [a.name for a in s.axes if a.name != vector]
    if not outer and vector and reductions == []:
        return LoopPlan(vector, width, block=_BLOCK)
    tile = _tile_axis(s, sources, vector) if reductions else ""
    if len(s.axes) > 1 and any(r.kind == "settle" for r in reductions):
        tile = s.axes[0].name  # rows with similar access: what one has read is in cache for the next
    parallel = next((a.name for a in s.axes if a.name not in (vector, tile)), tile)
    return LoopPlan(vector, width if vector else 0, tile, _ROWS if tile else 1, parallel)


def _bits(e: Expr) -> int:
    """Register width of a data value; index arithmetic does not count."""
    return min(e.dtype.bits, 64) if isinstance(e, (Load, Reduce)) and e.dtype.is_float else 32


def _extent(axis: str, s: TeStage) -> int | None:
    found = next(a.extent for a in (*s.axes, *reduce_axes(s.expr)) if a.name == axis)
    return found if isinstance(found, int) else None


def _steps(axis: str, s: TeStage, sources: Mapping[str, tuple[Dim, ...]]) -> list[Dim | None]:
    """The stride of each load along an axis; None if it is not constant."""
    symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
    loads = [n for n in walk(s.expr) if isinstance(n, Load)]
    if isinstance(symbols[axis], int):
        return [None] * len(loads)
    return [step(load, axis, symbols, sources) for load in loads]


def _score(axis: str, s: TeStage, sources: Mapping[str, tuple[Dim, ...]]) -> float:
    """How efficiently lanes along an axis read memory."""
    extent = _extent(axis, s)
    score = sum(2.0 if step == 1 else 1.0 if step == 0 else -4.0 for step in _steps(axis, s, sources))
    if extent is not None and extent < 8:
        score -= 3.0
    return score + (0.5 if axis in {a.name for a in s.axes} else 0.0)


def _tile_axis(s: TeStage, sources: Mapping[str, tuple[Dim, ...]], vector: str) -> str:
    """The innermost other axis along which some load does not move: rows share it."""
    for a in reversed(s.axes):
        if a.name == vector or (isinstance(a.extent, int) and a.extent < _ROWS):
            continue
        if any(step == 0 for step in _steps(a.name, s, sources)):
            return a.name
    return ""
