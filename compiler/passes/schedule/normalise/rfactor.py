"""Normalises reductions along contiguous axes to vector lanes (`rfactor` in Halide and TVM)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from occ.compiler.ir.dim import Dim, floordiv, upper
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, binary, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, position, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import UNPACKED
from occ.compiler.ir.te.walks import replace_indices
from occ.compiler.ir.typical_sizes import nominal, nominal_count
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.block_product_stages import block_product_stages
from occ.compiler.passes.schedule.loops import LONG_SUM_VECTORS
from occ.compiler.passes.schedule.stage_facts import contraction, element_bits
from occ.compiler.targets.machine import Machine

_FOUR = 4  # vector lanes up to which elements are combined one by one
_LONG = 4096  # elements of a tensor that is reduced completely
_STEPS = 8  # minimum terms of a sum that takes several vectors at a time


def rfactor(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Reductions along a contiguous axis in vector lanes, if vectors along the result are not possible."""
    if block_product_stages(f) is not None or UNPACKED in f.by_role:
        return Declined("it is a `block_matmul`")
    stages: list[AnyStage] = []
    for s in f.stages:
        if isinstance(s, TeStage) and _wants_lanes(s, f) and isinstance(s.expr, Reduce):
            lanes = machine.lanes(max(element_bits(s), 32))
            stages += rfactored(s, lanes, LONG_SUM_VECTORS if _is_long(s, lanes) else 1)
        else:
            stages.append(s)
    if len(stages) == len(f.stages):
        return Declined(
            "no reduction goes along 32 contiguous elements or more, or vectors along its result do as well"
        )
    return replace(f, stages=tuple(stages))


def _is_long(s: TeStage, lanes: int) -> bool:
    """Whether a reduction takes several vectors at a time, with no dependence between them.

    Rows of any length do if they may be long: short ones lose less than long ones gain. Softmax of 64 symbolic rows on
    Sapphire Rapids: of 1,024 elements 29.6 --> 23.5 us, of 64 elements 7.5 --> 8.0 us.
    """
    assert isinstance(s.expr, Reduce)
    last = s.expr.axes[-1].extent
    if nominal_count(s.shape) <= 2 and nominal(last) >= _LONG:
        return True
    return (isinstance(last, int) or _has_fours(s, lanes)) and upper(last) >= lanes * LONG_SUM_VECTORS * _STEPS


def _wants_lanes(s: TeStage, f: TeFunc) -> bool:
    r = s.expr
    if not isinstance(r, Reduce) or r.kind not in COMBINE or not r.axes or nominal(r.axes[-1].extent) < 32:
        return False
    if contraction(s, f) is not None:
        return False
    symbols, read = axis_symbols((*s.axes, *reduce_axes(s.expr))), loads(s.expr)
    along = [step(n, r.axes[-1].name, symbols, f.shapes) for n in read]
    across = [step(n, s.axes[-1].name, symbols, f.shapes) if s.axes else None for n in read]
    reads_rows = any(d == 1 for d in along) and all(d in (0, 1) for d in along)
    reads_rows |= all(d == len(along) for d in along)  # each term is of that many neighbours
    has_columns = bool(read and s.axes) and nominal(s.axes[-1].extent) > 2
    reads_columns = has_columns and all(d in (0, 1) for d in across)
    return reads_rows and not reads_columns


def _has_fours(s: TeStage, lanes: int) -> bool:
    """Whether lanes are combined by `_by_fours`."""
    assert isinstance(s.expr, Reduce)
    return s.expr.dtype.is_float and not s.role and lanes > _FOUR


def rfactored(s: TeStage, vector: int, vectors: int = 1) -> list[TeStage]:
    """A reduction along a contiguous axis as a vectorisable one over lanes, and a remainder.

    All have its role.

    `acc[i] = sum[r<n](f(r))` --> `part[i, l<16] = sum[q<n//16](f(16*q + l))`,
    `rest[i] = sum[t<n%16](f(16*(n//16) + t))`, `acc[i] = sum[l<16](part[i, l]) + rest[i]`

    Floats, each of which would wait for the previous one, are combined in fours (`_by_fours`).
    """
    r = s.expr
    assert isinstance(r, Reduce)
    last, lanes = r.axes[-1], vector * vectors
    start: Dim = floordiv(last.extent, lanes) * lanes
    part = _strided(s, "", "part", lanes, 0, floordiv(last.extent, lanes))
    if _has_fours(s, lanes):
        return [part, *_by_fours(s, part, start, vector)]
    across_axis = Axis(f"{last.name}x", lanes)
    of_part = Load(part.name, (*position(s.axes), Index(across_axis.name)), r.dtype)
    across = replace(s, name=f"{s.name}across", expr=Reduce(r.kind, (across_axis,), of_part, r.dtype))
    if last.extent == start:
        return [part, replace(across, name=s.name)]
    rest = _rest(s, start)
    both = [Load(x.name, position(s.axes), r.dtype) for x in (across, rest)]
    return [part, across, rest, replace(s, expr=binary(COMBINE[r.kind], *both))]


def _by_fours(s: TeStage, part: TeStage, start: Dim, vector: int) -> list[TeStage]:
    """Reduces lanes to vectors of four, including what remains from `start` on: whole vectors, then groups of four.

    Then come those vectors' elements, and the remaining ones, fewer than four. Rows of 56 take half as long as element
    by element. Lanes of several vectors are reduced to one vector first, as none of its elements waits for another.

    `four[i, l<4] = sum[x<4](part[i, 4*x + l])`, `next[i, l<4] = sum[q<n%16//4](f(16*(n//16) + 4*q + l))`,
    `acc[i] = (four[i, 0] + next[i, 0] + four[i, 2] + next[i, 2]) + (..) + rest[i]`
    """
    r = s.expr
    assert isinstance(r, Reduce)
    extent = r.axes[-1].extent
    left: Dim = extent - start
    made: list[TeStage] = []
    if part.axes[-1].extent != vector > _FOUR:
        made = [part := _folded(s, part, "v", "vector", vector)]
    vectors = [_folded(s, part, "", "four", _FOUR)]
    if made and (whole := floordiv(left, vector)) != 0:
        remaining = _strided(s, "w", "whole", vector, start, whole)
        made.append(remaining)
        vectors.append(_folded(s, remaining, "w", "last", _FOUR))
        start, left = start + whole * vector, left - whole * vector
    if (more := floordiv(left, _FOUR)) != 0:
        vectors.append(_strided(s, "n", "next", _FOUR, start, more))

    def combined(*elements: Expr) -> Expr:
        return reduce(partial(binary, COMBINE[r.kind]), elements)

    def element(k: int) -> Expr:
        return combined(*(Load(x.name, (*position(s.axes), wrap(k)), r.dtype) for x in vectors))

    total = combined(combined(element(0), element(2)), combined(element(1), element(3)))
    if left == more * _FOUR:
        return [*made, *vectors, replace(s, expr=total)]
    rest = _rest(s, start + more * _FOUR)
    total = combined(total, Load(rest.name, position(s.axes), r.dtype))
    return [*made, *vectors, rest, replace(s, expr=total)]


def _folded(s: TeStage, part: TeStage, mark: str, name: str, lanes: int) -> TeStage:
    """The lanes of `part` reduced to fewer ones."""
    assert isinstance(s.expr, Reduce)
    r, last = s.expr, _last(s)
    lane, group = Axis(f"{last}{mark}f", lanes), Axis(f"{last}{mark}g", floordiv(part.axes[-1].extent, lanes))
    of_part = Load(part.name, (*position(s.axes), Index(group.name) * lanes + Index(lane.name)), r.dtype)
    return replace(s, name=f"{s.name}{name}", axes=(*s.axes, lane), expr=Reduce(r.kind, (group,), of_part, r.dtype))


def _strided(s: TeStage, mark: str, name: str, lanes: int, start: Dim, steps: Dim) -> TeStage:
    """The reduction in lanes: each takes every `lanes`-th element, of `steps` from `start` on."""
    last = _last(s)
    lane, step = Axis(f"{last}{mark}l", lanes), Axis(f"{last}{mark}q", steps)
    at = Index(step.name) * lanes + Index(lane.name)
    expr = _reduced(s, mark, step, at if start == 0 else wrap(start) + at)
    return replace(s, name=f"{s.name}{name}", axes=(*s.axes, lane), expr=expr)


def _rest(s: TeStage, start: Dim) -> TeStage:
    """The reduction of all elements from `start` on."""
    assert isinstance(s.expr, Reduce)
    tail = Axis(f"{_last(s)}t", s.expr.axes[-1].extent - start)
    return replace(s, name=f"{s.name}rest", expr=_reduced(s, "t", tail, wrap(start) + Index(tail.name)))


def _reduced(s: TeStage, mark: str, step: Axis, at: Expr) -> Reduce:
    """The reduction over `step`, at position `at` of the last axis; no two stages of a kernel share an axis."""
    r = s.expr
    assert isinstance(r, Reduce)
    *outer, last = r.axes
    again = [Axis(f"{a.name}{mark}", a.extent) for a in outer]
    moved = {a.name: Index(b.name) for a, b in zip(outer, again, strict=True)}
    return Reduce(r.kind, (*again, step), replace_indices(r.body, {last.name: at, **moved}), r.dtype)


def _last(s: TeStage) -> str:
    assert isinstance(s.expr, Reduce)
    return s.expr.axes[-1].name
