"""Strides of loads between lanes: offsets in memory order as dims, linear within a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import Expr, Load
from occ.compiler.ir.te.function import AnyStage, Param, Scatter, TeFunc
from occ.compiler.ir.te.index import axis_symbol, simplify_stage
from occ.compiler.ir.te.walks import transform
from occ.compiler.ir.types import TensorType

NEAR = 4  # stride of lanes up to which whole vectors are loaded, and their elements chosen


def flat_offset(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The offset of an element in a row-major tensor, in elements."""
    flat: Dim = 0
    for i, n in zip(index, shape, strict=True):
        flat = flat * n + i
    return flat


def lane_step(flat: Dim, axis: str, width: int) -> Dim | None:
    """The stride of an offset between lanes along an axis; None if it is not constant.

    Args:
        flat: the offset, in terms of axis symbols.
        axis: of the lanes.
        width: lanes of a vector, whose first position is a multiple of it: whole tiles of a multiple are constant.
    """
    mark = axis_symbol(axis)
    here = dim.symbols(flat).get(mark)
    if here is None:
        return 0
    flat = dim.put_atoms(flat, {f: dim.symbol(f"_tile{k}") for k, f in enumerate(_tiles(flat, mark, width))})
    if not all(
        isinstance(atom, dim.Symbol) or mark not in dim.symbols(dim.monomial((atom, 1))) for atom in _atoms(flat)
    ):
        return None
    step = dim.substitute(flat, {mark: dim.monomial((here, 1)) + 1}) - flat
    return None if mark in dim.symbols(step) else step


def lane_offsets(d: Dim, axis: str, width: int) -> list[int] | None:
    """How far the value in each lane is from the one in lane 0; None if it is not known.

    `i//2` along `i` --> `0, 0, 1, 1, ...`, as the first position of a vector is a multiple of its width.
    """
    mark = axis_symbol(axis)
    equal = dict.fromkeys(_tiles(d, mark, width), 0)
    parts = {q: int(str(q.args[1])) for q in _quotients(d, mark) if q not in equal and width % int(str(q.args[1])) == 0}
    named = {q: dim.symbol(f"_part{k}") for k, q in enumerate(parts)}
    flat = dim.put_atoms(d, {**equal, **named})
    slopes: dict[str, int] = {}
    for name in (mark, *map(str, named.values())):
        here = dim.symbols(flat).get(name)
        slope = 0 if here is None else dim.substitute(flat, {name: dim.monomial((here, 1)) + 1}) - flat
        if not isinstance(slope, int):
            return None
        slopes[name] = slope
    if any(isinstance(a, dim.Func) and mark in dim.symbols(dim.monomial((a, 1))) for a in _atoms(flat)):
        return None
    return [slopes[mark] * k + sum(slopes[str(named[q])] * (k // n) for q, n in parts.items()) for k in range(width)]


def _atoms(d: Dim) -> list[dim.Atom]:
    return [atom for mono, _ in dim.terms_of(d) for atom, _ in mono]


def _quotients(flat: Dim, mark: str) -> list[dim.Func]:
    """Quotients of the position on an axis by numbers."""
    quotients = [a for a in dict.fromkeys(_atoms(flat)) if isinstance(a, dim.Func) and a.name == "floordiv"]
    return [q for q in quotients if str(q.args[0]) == mark and isinstance(n := q.args[1], int) and n > 0]


def _tiles(flat: Dim, mark: str, width: int) -> list[dim.Func]:
    """Quotients of the position on an axis that are equal for all lanes of a vector."""
    return [q for q in _quotients(flat, mark) if int(str(q.args[1])) % width == 0]


def in_memory_order(f: TeFunc) -> TeFunc:
    """The function with every tiled parameter as a row-major tensor of its tiles.

    `w[k, n]` of a parameter in layout `Ba32b` --> `w[n//32, k, n%32]`
    """
    tiled = {p.name: p for p in f.params if p.type.layout.tiles}
    if not tiled:
        return f

    def of(e: Expr) -> Expr:
        return transform(
            e, lambda n: _in_tiles(n, tiled[n.source]) if isinstance(n, Load) and n.source in tiled else None
        )

    def stage(s: AnyStage) -> AnyStage:
        if isinstance(s, Scatter):
            return replace(s, init=of(s.init), target=tuple(map(of, s.target)), value=of(s.value))
        return replace(s, expr=of(s.expr))

    params = tuple(
        Param(p.name, TensorType(p.type.dtype, p.type.layout.physical_shape(p.type.dims))) if p.name in tiled else p
        for p in f.params
    )
    return replace(f, params=params, stages=tuple(simplify_stage(stage(s)) for s in f.stages))


def _in_tiles(load: Load, p: Param) -> Load:
    layout = p.type.layout
    sizes = dict(layout.tiles)
    outer = [load.index[k] // sizes[k] if k in sizes else load.index[k] for k in layout.order]
    return Load(load.source, (*outer, *(load.index[k] % n for k, n in layout.tiles)), load.dtype)
