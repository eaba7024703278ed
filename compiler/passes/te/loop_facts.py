"""Facts about extents that a schedule relies on: known, a multiple, or a lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import gcd, lcm

from occ.compiler.ir.dim import Sym, is_multiple
from occ.compiler.ir.te.expr import Axis, Expr, Index, Reduce, Select, binary, wrap
from occ.compiler.ir.te.function import Scatter, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import SUM_BLOCK
from occ.compiler.ir.te.schedule import AtMost, Directive
from occ.compiler.ir.te.walks import of_kind
from occ.runtime.dataclass import dataclass

_ANY = ("GuardWithIf", "Predicate", "PredicateLoads", "PredicateStores")  # tails for extents of any length


@dataclass
class AxisFacts:
    """What loops over an axis rely on.

    Attributes:
        known: the extent itself: the loop is unrolled, or one vector.
        tiled: stages inside other loops that compute a known number of positions at a time: unrolled, or one vector.
        cut: stages with a loop over it in steps of known length.
        multiple_of: the extent is a multiple of it.
        at_least: the extent is no less.
        overlapped: a multiple of the steps whose last overlaps the one before.
        in_tiles: a multiple of the steps, without a tail, of stages that other loops compute in whole steps.
    """

    known: bool = False
    tiled: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    multiple_of: int = 1
    at_least: int = 1
    overlapped: int = 1
    in_tiles: int = 1


def multiple(facts: Sequence[AxisFacts]) -> int:
    """What an extent is a multiple of, if all of these are facts about it.

    A stage computed inside other loops has whole steps also where these overlap.
    """
    of, in_tiles = lcm(*(a.multiple_of for a in facts)), lcm(*(a.in_tiles for a in facts))
    overlapped = lcm(*(a.overlapped for a in facts))
    return of if overlapped % in_tiles == 0 else lcm(of, in_tiles)


@dataclass
class _Loop:
    """A loop: over `step` positions of `axis` at a time, or over a part of a split."""

    axis: str
    step: int
    split: int = -1  # the directive that created an inner loop


@dataclass
class LoopFacts:
    """What the schedule of a function relies on.

    Attributes:
        axes: by name of an axis.
        blocks: directives, by position, that split a loop into blocks whose length may be a call argument.
        tests: conditions of variants, whose numbers are no sizes.
    """

    axes: dict[str, AxisFacts] = field(default_factory=dict)
    blocks: set[int] = field(default_factory=set)
    tests: list[Expr] = field(default_factory=list)


def loop_facts(f: TeFunc, rows: int = 1) -> LoopFacts:
    """What a function's schedule relies on about its axes' numeric extents.

    Args:
        f: scheduled.
        rows: positions that share what they read along a row and are computed together, at most and without a schedule;
            a half or a quarter of these are where extents are no multiple.
    """
    found = _Walk(f).found
    for s in f.stages:
        axis = _sharing_axis(s) if rows > 1 and isinstance(s, TeStage) else None
        fit = gcd(axis.extent, rows) if axis is not None and isinstance(axis.extent, int) else 1
        if axis is not None and 4 * fit >= rows:
            facts = found.axes[axis.name]
            facts.multiple_of = lcm(facts.multiple_of, fit)
    return found


def _sharing_axis(s: TeStage) -> Axis | None:
    """The innermost axis of sums whose positions all read the same rows, each with other factors."""
    if not reduce_axes(s.expr):
        return None
    read = [{x.name for i in n.index for x in of_kind(Index, i)} for n in loads(s.expr)]
    rows = {name for names in read if s.axes and s.axes[-1].name in names for name in names}
    return next(
        (a for a in reversed(s.axes[:-1]) if a.name not in rows and any(a.name in names for names in read)), None
    )


class _Walk:
    def __init__(self, f: TeFunc) -> None:
        self.f, self.found = f, LoopFacts()
        self.extents = {a.name: a.extent for s in f.stages for a in s.axes}
        for s in f.stages:
            inner = s.over if isinstance(s, Scatter) else reduce_axes(s.expr)
            self.extents |= {a.name: a.extent for a in inner}
        self.found.axes = {name: AxisFacts() for name in self.extents}
        inner = {d.stage for d in f.schedule if d.call == "compute_at"}
        self.tiles = {(s.name, a.name) for s in f.stages if s.name in inner for a in s.axes}
        self.loops: dict[tuple[str, int, int, str], _Loop] = {}
        self.regardless: dict[tuple[str, str], set[str]] = {}  # results of `_regardless`
        for d in f.schedule:
            if d.call == "in_parts":
                self.found.axes[str(d.args[0])].known = True
        self.whole: dict[
            int, str
        ] = {}  # axes split into blocks for which other stages are computed at once, by directive
        for k, d in enumerate(f.schedule):
            self._directive(k, d)
        for axis in self.whole.values():
            self.found.axes[axis].known = True

    def _loop(self, d: Directive, name: str) -> _Loop:
        return self.loops.get((d.stage, d.update, d.variant, name)) or _Loop(name if name in self.extents else "", 1)

    def _directive(self, k: int, d: Directive) -> None:
        match d.call:
            case "split":
                self._split(k, d)
            case "fuse":
                self.loops[(d.stage, d.update, d.variant, str(d.args[2]))] = _Loop("", 1)
            case "vectorize" | "unroll":
                loop = self._loop(d, str(d.args[0]))
                self._counts_on(loop)
                if len(d.args) == 1 and loop.axis:
                    facts = self.found.axes[loop.axis]
                    if (d.stage, loop.axis) in self.tiles:
                        facts.tiled.add(d.stage)
                    else:
                        facts.known = True
                elif len(d.args) > 1 and isinstance(d.args[1], int):
                    self._cut(d.stage, loop, d.args[1], str(d.args[2]) if len(d.args) > 2 else "")
            case "specialize":
                self.found.tests += [binary("le", wrap(t.left), wrap(t.right)) for t in d.args if isinstance(t, AtMost)]
            case _:
                pass

    def _split(self, k: int, d: Directive) -> None:
        name, outer, inner, factor, *rest = d.args
        loop, tail = self._loop(d, str(name)), str(rest[0]) if rest else ""
        self._counts_on(loop)
        scope = d.stage, d.update, d.variant
        if tail == "GuardWithIf":
            if isinstance(factor, Sym) or not self._holds_stages(d, str(inner), loop.axis):
                self.found.blocks.add(k)
            elif loop.axis:
                self.whole[k] = loop.axis
        step = factor if isinstance(factor, int) else 1
        if isinstance(factor, int):
            self._cut(d.stage, loop, factor, tail)
        self.loops[(*scope, str(outer))] = _Loop(loop.axis, loop.step * step)
        self.loops[(*scope, str(inner))] = _Loop("", 1, k)

    def _holds_stages(self, split: Directive, inner: str, axis: str) -> bool:
        """Whether a stage of unbounded memory is computed for all of an axis's loop at once."""
        stage = split.stage
        homes = [d for d in self.f.schedule if d.call == "compute_at" and d.args[0] == stage]
        if not homes:
            return False
        if (stage, axis) not in self.regardless:
            self.regardless[stage, axis] = self._regardless(stage, axis)
        free = self.regardless[stage, axis]
        if not isinstance(self.extents.get(axis), int):  # memory of known size suffices for any number of positions
            free = free | {d.stage for d in self.f.schedule if d.call == "bound_storage"}
        at = {str(d.args[1]) for d in homes if d.stage not in free} - self._elsewhere(split)
        orders = [
            d.args
            for d in self.f.schedule
            if (d.stage, d.call, d.update, d.variant) == (stage, "reorder", 0, split.variant) and inner in d.args
        ]
        inside = orders[-1][: orders[-1].index(inner) + 1] if orders else ()
        return not at.issubset(inside)

    def _elsewhere(self, split: Directive) -> set[str]:
        """Loops that other variants of a stage have, and the one with this split has not."""
        loops: dict[bool, set[str]] = {True: set(), False: set()}
        for d in self.f.schedule:
            if d.stage == split.stage and not d.update and d.call in ("reorder", "fuse"):
                loops[d.variant == split.variant] |= set(map(str, d.args))
        return loops[False] - loops[True]

    def _regardless(self, stage: str, axis: str) -> set[str]:
        """Stages of which the same elements are read at all positions of a stage's axis: the input of a convolution."""
        if not axis:
            return set()
        moving = {axis}  # axes whose positions depend on it
        axes = {t.name: t.axes for t in self.f.stages}
        for s in reversed(self.f.stages):
            inner = s.over if isinstance(s, Scatter) else reduce_axes(s.expr)
            if isinstance(s, Scatter) and moving & {a.name for a in (*s.axes, *inner)}:
                return set()
            for n in loads(*s.exprs):
                for a, i in zip(axes.get(n.source, ()), n.index, strict=False):
                    if any(x.name in moving for x in of_kind(Index, i)):
                        moving.add(a.name)
        return {s.name for s in self.f.stages if s.name != stage and moving.isdisjoint(a.name for a in s.axes)}

    def _counts_on(self, loop: _Loop) -> None:
        """Require that the length of an inner loop is known."""
        self.found.blocks.discard(loop.split)
        self.whole.pop(loop.split, None)

    def _cut(self, stage: str, loop: _Loop, factor: int, tail: str) -> None:
        extent = self.extents.get(loop.axis)
        if extent is None:
            return
        facts, size = self.found.axes[loop.axis], loop.step * factor
        facts.cut.add(stage)
        if tail in _ANY:
            return
        if isinstance(extent, int) and tail == "ShiftInwards" and extent % size == 0:
            facts.overlapped = lcm(facts.overlapped, size)
            facts.at_least = max(facts.at_least, size)
        elif isinstance(extent, int) and not tail and (stage, loop.axis) in self.tiles and extent % size == 0:
            facts.in_tiles = lcm(facts.in_tiles, size)
        elif is_multiple(extent, size):
            facts.multiple_of = lcm(facts.multiple_of, size)
        elif not isinstance(extent, int):
            return
        elif extent >= size:
            facts.at_least = max(facts.at_least, size)
        else:
            facts.known = True


def cut_short(f: TeFunc, stage: str) -> bool:
    """Whether a stage sums blocks of which the last may be shorter.

    Then no number of its steps is typical, by which prefetches are spread.
    """
    found = next((s for s in f.stages if s.name == stage), None)
    if not isinstance(found, TeStage) or found.role != SUM_BLOCK:
        return False
    return isinstance(found.expr, Reduce) and isinstance(found.expr.body, Select)
