"""Operands of a product that are transposed or widened once, where each row of the product would do it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Axis, Binary, Cast, Expr, Index, Load, Reduce, cast
from occ.compiler.ir.te.function import Param, TeFunc, TeStage, position
from occ.compiler.ir.te.walks import transform, walk

FEW_ROWS = 8  # up to which reading an operand as it is costs less


def arrange_operands(f: TeFunc) -> TeFunc:
    """Transposes and widens operands of a sum of products of many rows, in stages of their own.

    The columns of the right one are in order then, so that lanes are adjacent. 16-bit floats of the left one, each of
    which is broadcast, are f32 then. No value changes.

    `y[i, j] = sum[r](a[i, r] * b[j, r])` --> `columns[r, j] = b[j, r]  y[i, j] = sum[r](a[i, r] * columns[r, j])`
    `y[i, j] = sum[r](cast<f32>(a[i, r]) * b[r, j])` --> `wide[i, r] = cast<f32>(a[i, r])  y[i, j] = ...`

    Args:
        f: a function of one stage.
    """
    (s,) = f.stages
    sums = [n for n in walk(s.expr) if isinstance(n, Reduce)] if isinstance(s, TeStage) and s.axes else []
    if not isinstance(s, TeStage) or len(sums) != 1 or (sides := _sides(sums[0], s.axes[-1].name)) is None:
        return f
    left, right = sides
    params = {p.name: p for p in f.params}
    extents = {a.name: a.extent for a in (*s.axes, *sums[0].axes)}
    if _are_few([extents[n] for n in _names(left) - _names(right) if n in {a.name for a in s.axes}]):
        return f
    made: dict[Expr, TeStage] = {}
    if (columns := _columns(s, right, params[_load(right).source], extents)) is not None:
        made[right] = columns
    if (wide := _wide(s, left, params[_load(left).source])) is not None:
        made[left] = wide

    def read(n: Expr) -> Expr | None:
        if n not in made:
            return None
        index = _load(n).index if n == left else tuple(Index(a.name.removesuffix("k")) for a in made[n].axes)
        return Load(made[n].name, index, made[n].dtype)

    return replace(f, stages=(*made.values(), replace(s, expr=transform(s.expr, read)))) if made else f


def _sides(r: Reduce, last: str) -> tuple[Expr, Expr] | None:
    """The left and right operand of a product of loads of floats; the right one has the axis `last`."""
    if r.kind != "sum" or not r.dtype.is_float or not isinstance(r.body, Binary) or r.body.op != "mul":
        return None
    pair = [e for e in (r.body.lhs, r.body.rhs) if isinstance(e.arg if isinstance(e, Cast) else e, Load)]
    right = [e for e in pair if last in _names(e)]
    left = [e for e in pair if e not in right]
    return (left[0], right[0]) if len(left) == len(right) == 1 else None


def _load(e: Expr) -> Load:
    found = e.arg if isinstance(e, Cast) else e
    assert isinstance(found, Load), "as `_sides` has it"
    return found


def _names(e: Expr) -> set[str]:
    return {n.name for n in walk(e) if isinstance(n, Index)}


def _are_few(rows: list[Dim]) -> bool:
    return not rows or dim.upper(dim.product(rows)) <= FEW_ROWS


def _columns(s: TeStage, e: Expr, p: Param, extents: Mapping[str, Dim]) -> TeStage | None:
    """The right operand with the axis of the lanes last, if a reduced one is last in memory."""
    load, last = _load(e), s.axes[-1].name
    names = [i.name for i in load.index if isinstance(i, Index)]
    if p.type.layout.tiles or len(set(names)) < len(load.index) or names[-1] == last:
        return None
    if names[-1] in {a.name for a in s.axes} or 0 in p.type.dims:
        return None
    axes = tuple(Axis(f"{n}k", extents[n]) for n in (*(n for n in names if n != last), last))
    element = transform(e, lambda n: Index(f"{n.name}k") if isinstance(n, Index) else None)
    return TeStage(f"{s.name}columns", axes, element, s.note)


def _wide(s: TeStage, e: Expr, p: Param) -> TeStage | None:
    """The left operand's parameter in f32, if it has 16-bit floats."""
    if not isinstance(e, Cast) or e.dtype != F32 or p.type.dtype.bits != 16 or p.type.layout.tiles:
        return None
    axes = tuple(Axis(f"{p.name}w{k}", n) for k, n in enumerate(p.type.dims))
    return TeStage(f"{s.name}wide", axes, cast(F32, Load(p.name, position(axes), p.type.dtype)), s.note)
