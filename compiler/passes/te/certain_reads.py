"""Reads of a te function that are provably within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import Axis, Expr, Index, Select
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, within
from occ.compiler.ir.te.piecewise import along, part_count
from occ.compiler.ir.te.roles import PAD
from occ.compiler.ir.te.walks import of_kind, walk


def uncertain_extents(f: TeFunc, g: TeFunc) -> Iterator[int]:
    """Extents whose reads were provably within bounds for the given sizes, but are not for any sizes.

    Also those of stages that are now split differently.

    Args:
        f: of the given sizes.
        g: the same function for any sizes.
    """
    in_parts = {(d.stage, d.args[0]) for d in f.schedule if d.call == "in_parts"}
    for s, t in zip(f.stages, g.stages, strict=True):
        assert isinstance(s, TeStage)
        assert isinstance(t, TeStage)
        axes = axes_of(s)
        (old, fixed), (new, positions) = _reads(s, f), _reads(t, g)
        parted = {axis for stage, axis in in_parts if stage == s.name}
        for a in () if is_bordered_row(s) else (a for a in s.axes if a.name in parted or a == s.axes[-1]):
            if part_count(along(s, a.name)) != part_count(along(t, a.name)):
                # the borders of a join are extents of its operands
                at = [n for i, n in old if a.name in parted and Index(a.name) in walk(i)]
                yield from (n for n in (a.extent, *at) if isinstance(n, int))
        if len(old) != len(new):  # a read at a position that is read became two, by sizes of different axes
            yield from (n for _, n in old if isinstance(n, int))
            continue
        for (i, extent), (j, wider) in zip(old, new, strict=True):
            if not within(j, wider, positions) and within(i, extent, fixed):
                names = {x.name for x in of_kind(Index, i)}
                yield from (n for n in (extent, *(a.extent for a in axes if a.name in names)) if isinstance(n, int))


def is_bordered_row(s: AnyStage) -> bool:
    """Whether a stage is one row with a constant border, which no schedule computes in parts."""
    return isinstance(s, TeStage) and s.role == PAD and len(s.axes) == 1 and isinstance(s.expr, Select)


def axes_of(s: AnyStage) -> tuple[Axis, ...]:
    """The axes of a stage and those that it sums along."""
    return (*s.axes, *reduce_axes(*s.exprs[:1]))


def _reads(s: AnyStage, f: TeFunc) -> tuple[list[tuple[Expr, Dim]], Mapping[str, Dim]]:
    """Each index of each load of a stage with its upper bound's extent, and its axes as symbols."""
    shapes = f.shapes
    found = [pair for n in loads(*s.exprs) for pair in zip(n.index, shapes[n.source], strict=True)]
    return found, axis_symbols(axes_of(s))
