"""Packs the right operand of a product of two inputs into panels of columns."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import ceildiv, is_multiple, upper
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, cast, literal, where, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, certain_loads, loads, reduce_axes
from occ.compiler.ir.te.roles import COLUMNS, SQUARES, TURNED
from occ.compiler.ir.te.walks import replace_indices, transform, walk
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.stage_facts import FEW_ROWS, contraction, element_bits, factors
from occ.compiler.targets.machine import Machine


def pack_rhs(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Packs the right operand of a product into panels if its columns are symbolic in number, or not contiguous.

    `acc[i, j] = sum[r](a[i, r] * b[r, j])` --> `columns[p, r, c<32] = 32*p + c < N ? b[r, 32*p + c] : 0`,
    `acc[i, j] = sum[r](a[i, r] * columns[j//32, r, j%32])`
    """
    stages = [s for s in f.stages if isinstance(s, TeStage)]
    sums = [s for s in stages if isinstance(s.expr, Reduce)]
    if len(sums) != 1 or len(stages) != len(f.stages) or any(s.role for s in stages):
        return Declined("it does not have exactly one reduction, or has its own method")
    (acc,) = sums
    b = right_operand(acc, f)
    if b is None:
        return Declined(
            "it is not a product of two operands with many rows, or its right operand is already in tile order"
        )
    packed, read = _packed(acc, b, f, 2 * machine.lanes(max(element_bits(acc), 32)))
    tiled = replace(acc, expr=transform(acc.expr, lambda n: read if n == b else None))
    return replace(f, stages=tuple(x for s in f.stages for x in ((packed, tiled) if s is acc else (s,))))


def right_operand(acc: AnyStage, f: TeFunc) -> Load | None:
    """The operand with the last axis of a product that is not in the order of its tiles."""
    r = acc.expr if isinstance(acc, TeStage) else None
    if not isinstance(acc, TeStage) or not isinstance(r, Reduce) or r.kind != "sum" or factors(r) is None:
        return None
    if len(r.axes) != 1 or len(acc.axes) < 2:
        return None
    if 0 in [a.extent for a in (*acc.axes, *r.axes)]:
        return None
    last, deep = acc.axes[-1], r.axes[0].name
    pair = dict.fromkeys(loads(r.body))  # a square has both twice
    right = [n for n in pair if last.name in _names(n)]
    left = [n for n in pair if n not in right]
    if len(pair) != 2 or len(right) != 1 or deep not in _names(right[0]) or deep not in _names(left[0]):
        return None
    (b,), (a,) = right, left
    if b not in certain_loads(r.body):
        return None
    param = next((p for p in f.params if p.name == b.source), None)
    rows = [x.extent for x in acc.axes if x.name in _names(a) - _names(b)]
    if param is None or param.type.layout.tiles or not rows or all(upper(n) <= FEW_ROWS for n in rows):
        return None
    if not all(isinstance(i, Index) for i in (*a.index, *b.index)) or len(_names(b)) != len(b.index):
        return None
    found = contraction(acc, f)
    if found is not None and (found.lanes != last.name or isinstance(last.extent, int)):
        return None
    return b


def _names(n: Load) -> set[str]:
    return {name for i in n.index for name in _indices(i)}


def _packed(acc: TeStage, b: Load, f: TeFunc, width: int) -> tuple[TeStage, Load]:
    """The panels, and how the product reads them."""
    extents = {a.name: a.extent for a in (*acc.axes, *reduce_axes(acc.expr))}
    last, deep = acc.axes[-1], reduce_axes(acc.expr)[0]
    batch = [i.name for i in b.index if isinstance(i, Index) and i.name not in (last.name, deep.name)]
    axes = {name: Axis(f"{name}k", extents[name]) for name in (*batch, deep.name)}
    panel, column = Axis(f"{last.name}kp", ceildiv(last.extent, width)), Axis(f"{last.name}kc", width)
    at = Index(panel.name) * width + Index(column.name)
    place: dict[str, Expr] = {**{name: Index(a.name) for name, a in axes.items()}, last.name: at}
    element: Expr = replace(b, index=tuple(place[i.name] for i in b.index if isinstance(i, Index)))
    if not is_multiple(last.extent, width):
        element = where(at < wrap(last.extent), element, literal(0, b.dtype))
    order = (*(axes[name] for name in batch), panel, axes[deep.name], column)
    packed = TeStage(f"{acc.name}columns", order, element, acc.note, COLUMNS)
    j = Index(last.name)
    index = (*(Index(name) for name in batch), j // width, Index(deep.name), j % width)
    return packed, Load(packed.name, index, b.dtype)


def unpacked(acc: TeStage, f: TeFunc) -> TeStage:
    """A product that reads its operand unpacked, since a few rows cost less than the packing.

    Only if its columns are in order.
    """
    packed = f.by_role.get(COLUMNS)
    read = next((n for n in loads(acc.expr) if packed is not None and n.source == packed.name), None)
    if packed is None or read is None:
        return acc
    source = _in_memory(next(iter(loads(packed.expr))), f)
    column = packed.axes[-1].name
    j = next(n for n in walk(read.index[-1]) if isinstance(n, Index))
    place = {a.name: i for a, i in zip(packed.axes, read.index, strict=True)}
    index = tuple(j if column in (names := _indices(i)) else place[names.pop()] if names else i for i in source.index)
    direct = cast(packed.dtype, replace(source, index=index))
    made = replace(acc, expr=transform(acc.expr, lambda n: direct if n == read else None))
    return made if contraction(made, f) is not None else acc


def _in_memory(n: Load, f: TeFunc) -> Load:
    """The load itself, or its replacement if a square is transposed in registers."""
    squares = (s for s in f.stages if isinstance(s, TeStage) and s.role in (SQUARES, TURNED))
    square = next((s for s in squares if s.name == n.source), None)
    if square is None:
        return n
    read = replace_indices(square.expr, {a.name: i for a, i in zip(square.axes, n.index, strict=True)})
    assert isinstance(read, Load), "a square is a copy"
    return _in_memory(read, f)


def _indices(e: Expr) -> set[str]:
    return {n.name for n in walk(e) if isinstance(n, Index)}
