"""The loop structure of a te stage: its vector axis, unrolled axis and parallel axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from occ.compiler.codegen_llvm.dot_products import dot_of
from occ.compiler.codegen_llvm.lane_steps import flat_offset, lane_step
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.tiles import TILE_ROWS
from occ.compiler.codegen_llvm.transposed_loads import tile_width, transposed_axis
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import FOLDS, ORDERED, Expr, Index, Load, Reduce, Select
from occ.compiler.ir.te.function import TeStage, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, step, to_dim
from occ.compiler.ir.te.piecewise import Part, parts
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.walks import children, walk
from occ.runtime.dataclass import dataclass

_BLOCK = 8192  # elements per task of a one-dimensional stage
_ROWS = 4
# How efficiently lanes a stride apart are read: one element, a vector, or what is chosen from a few vectors.
_STRIDES: dict[Dim | None, float] = {1: 2.0, 0: 1.0, -1: 1.5, 2: 0.5, -2: 0.5, 3: 0.0, -3: 0.0, 4: 0.0, -4: 0.0}
_OWN = 1.5  # how much better lanes along an axis of the stage are: sums of several rows share what they read
_MOST_PARTS = 8
_LONGEST = 2000  # nodes of the expressions of a tile, whose code grows with them


@dataclass(frozen=True)
class LoopPlan:
    """The loops of one stage.

    Attributes:
        vector: axis of the lanes (an axis of the stage or of its reduction), or empty for scalar code.
        width: number of lanes.
        tile: axis of which `rows` positions are computed together, or empty.
        rows: that number.
        columns: vectors of a row that are computed together; then the loop over these is outside of the one over rows.
        parallel: axis of the caller's range, or empty.
        block: elements of a task if the vector axis is the only one, otherwise 0.
        transposed: whether loads of a tile are transposed in registers.
    """

    vector: str = ""
    width: int = 0
    tile: str = ""
    rows: int = 1
    columns: int = 1
    parallel: str = ""
    block: int = 0
    transposed: bool = False

    def tasks(self, s: TeStage) -> Dim:
        """Extent of the parallel loop."""
        if self.block:
            return dim.ceildiv(s.axes[0].extent, self.block)
        extent = next((a.extent for a in s.axes if a.name == self.parallel), 1)
        return dim.ceildiv(extent, self.rows) if self.parallel and self.parallel == self.tile else extent


def plan_loops(s: TeStage, sources: Mapping[str, tuple[Dim, ...]], machine: CodeMachine) -> LoopPlan:
    """The loops of a stage.

    Args:
        s: the stage.
        sources: shapes of everything that it loads.
        machine: the machine that code is generated for.
    """
    reductions = [n for n in walk(s.expr) if isinstance(n, Reduce)]
    width = lanes_of([s.expr], machine)
    vector, width = _lanes(s, reductions, sources, width)
    if vector and _extent(vector, s) is not None and (_extent(vector, s) or 0) < 2:
        vector = ""
    outer = [a.name for a in s.axes if a.name != vector]
    if not outer and vector and reductions == []:
        return LoopPlan(vector, width, block=_BLOCK)
    if outer and vector and not reductions:
        across, itemsize = transposed_axis(s, vector, sources)
        if across:
            n = tile_width(width, itemsize, machine.vector_bits, copies=isinstance(s.expr, Load))
            parallel = next((a.name for a in s.axes if a.name not in (vector, across)), across)
            return LoopPlan(vector, n, across, n, 1, parallel, transposed=True)
    tile, rows, columns = _tile(s, reductions, vector, width, sources, machine)
    parallel = next((a.name for a in s.axes if a.name not in (vector, tile)), tile)
    return LoopPlan(vector, width if vector else 0, tile, rows, columns, parallel)


def lanes_of(exprs: Sequence[Expr], machine: CodeMachine) -> int:
    """Lanes of the vectors that compute some expressions."""
    return max(machine.vector_bits // max((_bits(n) for e in exprs for n in walk(e)), default=32), 2)


def row_parts(s: TeStage, plan: LoopPlan) -> tuple[Part, ...]:
    """The parts of a stage along its last axis whose code is written out."""
    whole = Part(0, s.axes[-1].extent, s.expr)
    if plan.vector != s.axes[-1].name or any(isinstance(n, Reduce) for n in walk(s.expr)):
        return (whole,)
    found = parts(s, clamps=True)
    total = sum(1 for p in found for _ in walk(p.expr))
    return found if 1 < len(found) <= _MOST_PARTS and total <= _LONGEST else (whole,)


def _lanes(s: TeStage, reductions: list[Reduce], sources: Mapping[str, tuple[Dim, ...]], width: int) -> tuple[str, int]:
    """The axis of the lanes, or "", and their number, at most `width`."""
    # A fold's reads depend on the previous step: scalars, which processors overlap across rows.
    candidates = [s.axes[-1].name] if s.axes and not any(r.kind in FOLDS for r in reductions) else []
    symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
    for r in reductions if candidates else ():
        if (dot := dot_of(r, candidates[0], width, symbols, sources)) is not None:
            return candidates[0], dot.width
    if not any(r.kind in ORDERED or _chooses_by_position(r, s) for r in reductions):
        candidates += [r.axes[-1].name for r in reductions if r.axes]
    return max(candidates, key=lambda a: _score(a, s, sources, width), default=""), width


def _chooses_by_position(r: Reduce, s: TeStage) -> bool:
    """Whether each lane takes the terms up to its own, which are read once for all lanes."""
    if not isinstance(r.body, Select) or not s.axes or not r.axes:
        return False
    last, tested = s.axes[-1].name, _compared(r.body.cond)
    shared = all(n.name != last for n in walk(r.body.then) if isinstance(n, Index))
    return shared and tested == {last, r.axes[-1].name}


def _compared(e: Expr) -> set[str]:
    """Axes whose positions an expression itself depends on, and not only what it loads there."""
    found: set[str] = set()
    seen: set[int] = set()
    todo = [e]
    while todo:
        n = todo.pop()
        if id(n) in seen or isinstance(n, Load):
            continue
        seen.add(id(n))
        if isinstance(n, Index):
            found.add(n.name)
        todo += children(n)
    return found


def _tile(
    s: TeStage,
    reductions: list[Reduce],
    vector: str,
    width: int,
    sources: Mapping[str, tuple[Dim, ...]],
    machine: CodeMachine,
) -> tuple[str, int, int]:
    """The axis of a tile, or "", its positions on it, and its vectors."""
    if not reductions:
        return "", 1, 1
    if len(s.axes) > 1 and any(r.kind == "settle" for r in reductions):
        return s.axes[0].name, _ROWS, 1  # rows with similar access: what one has read is in cache for the next
    tile = _tile_axis(s, sources, vector)
    if vector and s.axes and vector == s.axes[-1].name and all(r.kind in COMBINE for r in reductions):
        shared = _sharing_axis(s, reductions, vector, width, sources)
        if shared or not tile:
            return shared, *_tile_sizes(s, vector, width, shared, machine)
    return tile, _ROWS if tile else 1, 1


def _sharing_axis(
    s: TeStage, reductions: list[Reduce], vector: str, width: int, sources: Mapping[str, tuple[Dim, ...]]
) -> str:
    """The innermost axis whose positions all reduce the same vectors, with different factors; or ""."""
    symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
    read = [n for r in reductions for n in walk(r.body) if isinstance(n, Load)]
    vectors = [n for n in read if _step(n, vector, symbols, sources, width) != 0]
    for a in reversed(s.axes[:-1]):
        steps = [_step(n, a.name, symbols, sources, 1) for n in vectors]
        if a.extent != 1 and len(vectors) < len(read) and vectors and all(n == 0 for n in steps):
            return a.name
    return ""


def _tile_sizes(s: TeStage, vector: str, width: int, tile: str, machine: CodeMachine) -> tuple[int, int]:
    """Rows and vectors of a row whose sums are in registers at the same time.

    All of them read the same few vectors, and each of these many elements: what limits them is arithmetic.
    """
    most = 24 if machine.registers >= 32 else 12  # the others hold a vector of each column, and an element of a row
    most = max(min(most, _LONGEST // sum(1 for _ in walk(s.expr))), _ROWS)
    extent, height = _extent(vector, s), _extent(tile, s) if tile else 1
    height = max(height, 1) if height is not None else None  # no rows: nothing runs
    if height == 0:
        return 1, 1  # nothing is computed
    count = 8 if extent is None else max(-(-extent // width), 1)
    wide = 4 if machine.registers >= 32 else 2
    if height is not None and height * wide < most:
        columns = min(count, most // height, 8)
        return height, next((c for c in range(columns, columns // 2, -1) if count % c == 0), columns)
    columns = next((c for c in (wide, wide - 1, wide + 1) if c and count % c == 0), min(wide, count))
    rows = max(most // columns, 1)
    if height is None:
        known = dim.factor_of(next((a.extent for a in s.axes if a.name == tile), 1))
        return next((n for n in TILE_ROWS if known % n == 0 and n * columns <= most), rows), columns
    return min(range(max(rows - 2, 1), rows + 1), key=lambda n: (-height % n, -n)), columns


def _bits(e: Expr) -> int:
    """Register width of a data value; index arithmetic does not count."""
    return min(e.dtype.bits, 64) if isinstance(e, (Load, Reduce)) and e.dtype.is_float else 32


def _extent(axis: str, s: TeStage) -> int | None:
    found = next(a.extent for a in (*s.axes, *reduce_axes(s.expr)) if a.name == axis)
    return found if isinstance(found, int) else None


def _steps(axis: str, s: TeStage, sources: Mapping[str, tuple[Dim, ...]], width: int = 1) -> list[Dim | None]:
    """The stride of each load along an axis, in vectors of `width`; None if it is not constant."""
    symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
    loads = [n for n in walk(s.expr) if isinstance(n, Load)]
    if isinstance(symbols[axis], int):
        return [None] * len(loads)
    return [_step(load, axis, symbols, sources, width) for load in loads]


def _step(
    load: Load, axis: str, symbols: Mapping[str, Dim], sources: Mapping[str, tuple[Dim, ...]], width: int
) -> Dim | None:
    found = step(load, axis, symbols, sources)
    index = [d for i in load.index if (d := to_dim(i, symbols)) is not None]
    if found is not None or len(index) < len(load.index):
        return found
    return lane_step(flat_offset(index, sources[load.source]), axis, width)


def _score(axis: str, s: TeStage, sources: Mapping[str, tuple[Dim, ...]], width: int) -> float:
    """How efficiently lanes along an axis read memory."""
    extent, is_summed = _extent(axis, s), axis not in {a.name for a in s.axes}
    score = sum(_STRIDES.get(step, -4.0) for step in _steps(axis, s, sources, width))
    if extent is not None and extent < 8:
        score -= 3.0 if is_summed else 4.0 * (1 - extent / 8)
    return score if is_summed else score + _OWN


def _tile_axis(s: TeStage, sources: Mapping[str, tuple[Dim, ...]], vector: str) -> str:
    """The innermost other axis along which some load does not move: rows share it."""
    for a in reversed(s.axes):
        if a.name == vector or (isinstance(a.extent, int) and a.extent < _ROWS):
            continue
        if any(step == 0 for step in _steps(a.name, s, sources)):
            return a.name
    return ""
