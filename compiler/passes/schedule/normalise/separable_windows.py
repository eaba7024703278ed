"""Splits 2-D windows into a step down the columns and one along the rows."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import Dim, product, substitute
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, position
from occ.compiler.ir.te.index import axis_symbol, axis_symbols, to_dim
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import WINDOW_ROWS
from occ.compiler.ir.te.walks import replace_indices, transform, walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.targets.machine import Machine

_FEW = 4  # taps read in order: 2x2 of 64 planes of 112x112 takes 52 us this way, and 148 in two steps


def separable_windows(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Reductions over windows in two steps: down the columns first, then along the rows.

    Columns are dense vectors: of `k*k` taps `2*k` remain, and only `k` of them are strided.

    `acc[c, y, x] = max[r<3, q<3](a[c, 2*y + r, 2*x + q])` --> `down[c, y, p] = max[r<3](a[c, 2*y + r, p])`,
    `rows[c, y, p] = down[c, y, p]`, `acc[c, y, x] = max[q<3](rows[c, y, 2*x + q])`
    """
    stages: list[AnyStage] = []
    for s in f.stages:
        stages += (_in_two(s) if isinstance(s, TeStage) else None) or [s]
    if len(stages) == len(f.stages):
        return Declined(f"it has no reduction over a window of more than {_FEW} taps along contiguous rows")
    return replace(f, stages=tuple(stages))


def _in_two(s: TeStage) -> list[TeStage] | None:
    r = s.expr
    if not isinstance(r, Reduce) or r.kind not in COMBINE or len(s.axes) < 2 or len(r.axes) < 2:
        return None
    read = list(dict.fromkeys(loads(r.body)))
    taps = product(a.extent for a in r.axes)
    if len(read) != 1 or 0 in (*s.shape, taps) or (isinstance(taps, int) and taps <= _FEW):
        return None
    (load,) = read
    found = _along(s, r, load.index[-1])
    if found is None:
        return None
    tap, columns = found
    column = Axis(f"{tap.name}p", columns)
    here = replace(load, index=(*load.index[:-1], Index(column.name)))
    body = transform(r.body, lambda n: here if n == load else None)
    if {s.axes[-1].name, tap.name} & {n.name for n in walk(body) if isinstance(n, Index)}:
        return None
    return _steps(s, r, tap, column, body, load.index[-1])


def _along(s: TeStage, r: Reduce, index: Expr) -> tuple[Axis, Dim] | None:
    """The reduced axis along the rows, and how many columns the windows of a result row span."""
    symbols = axis_symbols((*s.axes, *r.axes))
    at, last = to_dim(index, symbols), s.axes[-1]
    if at is None:
        return None
    steps = {a.name: _step(at, a.name, symbols) for a in (last, *r.axes)}
    taps = [a for a in r.axes if steps[a.name]]
    if len(taps) != 1 or not isinstance(taps[0].extent, int):
        return None
    (tap,) = taps
    stride, dilation = steps[last.name], steps[tap.name]
    if not isinstance(stride, int) or not isinstance(dilation, int) or not 1 <= stride <= 4 or dilation < 1:
        return None
    if at != symbols[last.name] * stride + symbols[tap.name] * dilation:
        return None
    return tap, stride * (last.extent - 1) + dilation * (tap.extent - 1) + 1


def _step(at: Dim, axis: str, symbols: dict[str, Dim]) -> Dim:
    here = symbols[axis]
    return 0 if isinstance(here, int) else substitute(at, {axis_symbol(axis): here + 1}) - at


def _steps(s: TeStage, r: Reduce, tap: Axis, column: Axis, body: Expr, index: Expr) -> list[TeStage]:
    """The two reductions, and the stored rows between them."""
    taps = [a for a in r.axes if a is not tap]
    outer, inner = ([Axis(f"{a.name}{mark}", a.extent) for a in s.axes[:-1]] for mark in ("d", "p"))
    new: dict[str, Expr] = {a.name: Index(b.name) for a, b in zip(s.axes[:-1], outer, strict=True)}
    down = TeStage(
        f"{s.name}down", (*outer, column), Reduce(r.kind, tuple(taps), replace_indices(body, new), r.dtype), s.note
    )
    place = Axis(f"{column.name}p", column.extent)
    axes = (*inner, place)
    rows = TeStage(f"{s.name}rows", axes, Load(down.name, position(axes), r.dtype), s.note, WINDOW_ROWS)
    taken = Load(rows.name, (*position(s.axes[:-1]), index), r.dtype)
    return [down, rows, replace(s, expr=Reduce(r.kind, (tap,), taken, r.dtype))]
