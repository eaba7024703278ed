"""Sums long reductions of floats block by block, in the loops chosen for the whole sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.te.expr import Axis, Index, Load, Reduce, binary, literal, where, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, position
from occ.compiler.ir.te.reductions import BLOCK, max_steps, sums_in_blocks
from occ.compiler.ir.te.roles import SUM_BLOCK
from occ.compiler.ir.te.schedule import TAILS, Directive
from occ.compiler.ir.te.walks import replace_indices
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

_KEPT = frozenset(("reorder", "unroll", "vectorize", "split", "fetch_ahead", "fetch_beyond"))  # directives on updates


def long_sums(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Long float sums in blocks, so that rounding errors do not grow with their length.

    `acc[i] = sum[r<n](x[r, i])` --> `block[i, b] = sum[q<512](b*512 + q < n ? x[b*512 + q, i] : 0)`,
    `acc[i] = sum[b<(n+511)//512](block[i, b])` for float sums that may have more terms; `block` is computed in loop
    `b`.

    Sums vectorised along their own terms, or with split terms, are left alone: they have partial sums already.
    """
    stages: list[AnyStage] = []
    schedule = list(f.schedule)
    for s in f.stages:
        made = [s]
        few: dict[str, int] = {}
        while isinstance(s := made[-1], TeStage) and (found := _split(s, schedule, few, "_b" * len(made))) is not None:
            block, schedule = found.block, found.schedule
            few = {found.axis: 1}
            made[-1:] = [block, found.whole]
        stages += made
    if len(stages) == len(f.stages):
        return Declined(f"it has no sum of floats of more than {BLOCK} terms, one after the other")
    return replace(f, stages=tuple(stages), schedule=tuple(schedule))


@dataclass(frozen=True)
class _Split:
    """A sum in blocks.

    Attributes:
        block, whole: the sum of a block, and the sum of all, which has the name of the stage that it replaces.
        axis: of the blocks.
        schedule: of the function, with both.
    """

    block: TeStage
    whole: TeStage
    axis: str
    schedule: list[Directive]


def _split(s: TeStage, schedule: Sequence[Directive], few: dict[str, int], mark: str) -> _Split | None:
    """A sum in blocks; None if there is nothing to do.

    `few` are axes assumed to have at most this many steps, and `mark` is the suffix of loop names.
    """
    r = s.expr
    mine = [d for d in schedule if d.stage == s.name]
    if not isinstance(r, Reduce) or not sums_in_blocks(r.kind, r.dtype, [few.get(a.name, a.extent) for a in r.axes]):
        return None
    update = [d for d in mine if d.update]
    names = {a.name for a in r.axes}
    if any(d.variant for d in mine) or any(d.call not in _KEPT for d in update):
        return None
    if any(d.call in ("split", "vectorize") and d.args[0] in names for d in update):
        return None
    order = _order(r, update)
    inner, axis = _place(order, few)
    unrolled = next((d.args[1] for d in update if d.call == "unroll" and d.args[0] == axis.name and len(d.args) > 1), 1)
    assert isinstance(unrolled, int)
    length = _length(axis.extent, BLOCK // max(int(max_steps(few.get(a.name, a.extent) for a in inner)), 1), unrolled)
    return _in_blocks(s, r, (*inner, axis), length, schedule, mark)


def _order(r: Reduce, update: Sequence[Directive]) -> list[Axis]:
    """The loops over terms, innermost first: in the order of an update, or last axis first."""
    axes = {a.name: a for a in reversed(r.axes)}
    for d in update:
        if d.call == "reorder":
            listed = iter([a for a in d.args if a in axes])
            axes = {name: axes[name] for name in [next(listed) if n in d.args else n for n in axes]}  # pyright: ignore
    return list(axes.values())


def _place(order: Sequence[Axis], few: dict[str, int]) -> tuple[list[Axis], Axis]:
    """The loops within a block, and the loop that is split into blocks."""
    for k, a in enumerate(order):
        if max_steps(few.get(x.name, x.extent) for x in order[: k + 1]) > BLOCK:
            return list(order[:k]), a
    raise AssertionError("there are more terms than in one block")


def _length(extent: Dim, most: int, unrolled: int) -> int:
    """Steps per block: a divisor of the extent if there is one, unrolled like the whole."""
    most = max(most, 1)
    if isinstance(extent, int):
        for n in range(min(most, extent), max(most // 4, 1) - 1, -1):
            if extent % n == 0 and n % unrolled == 0:
                return n
    return max(most // unrolled * unrolled, 1)


def _in_blocks(
    s: TeStage, r: Reduce, loops: Sequence[Axis], length: int, schedule: Sequence[Directive], mark: str
) -> _Split:
    """The sum with some of its loops inside a block, which is this many steps of the last of them."""
    axis, within = loops[-1], {a.name for a in loops}
    outer = [a for a in r.axes if a.name not in within]
    count = ceildiv(axis.extent, length)
    rename = _Rename(f"{s.name}{mark}", mark, within, {axis.name: f"{axis.name}{mark}s"}, axis.extent == length * count)
    renamed = {a.name: rename.loop(a.name) for a in (*s.axes, *r.axes)}
    # Axes of the blocks: for their sum and for their values; no two stages share one.
    block, number = Axis(rename.instead[axis.name], count), Axis(f"{axis.name}{mark}n", count)
    step = Axis(renamed[axis.name], length)
    at = Index(number.name) * length + Index(step.name)
    body = replace_indices(r.body, {name: Index(x) for name, x in renamed.items()} | {axis.name: at})
    if not rename.whole:
        body = where(binary("lt", at, wrap(axis.extent)), body, literal(0, r.dtype))
    again = {a.name: Axis(renamed[a.name], a.extent) for a in (*s.axes, *r.axes)} | {axis.name: step}
    terms = tuple(again[a.name] for a in r.axes if a.name in within)
    axes = (*(again[a.name] for a in (*s.axes, *outer)), number)
    part = TeStage(rename.part, axes, Reduce("sum", terms, body, r.dtype), s.note, SUM_BLOCK)
    here = (*position(s.axes), *position(outer), Index(block.name))
    whole = replace(s, expr=Reduce("sum", (*outer, block), Load(rename.part, here, r.dtype), r.dtype))
    made = [x for d in schedule for x in rename.directives(d, s.name)]
    return _Split(part, whole, block.name, [*made, Directive(part.name, "compute_at", (s.name, block.name))])


@dataclass(frozen=True)
class _Rename:
    """Directives of a sum as those of a block's sum and of the total.

    Attributes:
        part: the stage that sums a block.
        mark: suffix of its loops' names.
        within: loops over the terms of a block, which the total does not have.
        instead: the loops that replace them there.
        whole: whether all blocks have the same length. Steps past the end are not unrolled, or each would need a test.
    """

    part: str
    mark: str
    within: set[str]
    instead: dict[str, str]
    whole: bool

    def loop(self, name: str) -> str:
        return f"{name}{self.mark}"

    def directives(self, d: Directive, of: str) -> list[Directive]:
        """Adapts a directive to the stage `of`, and to the stages computed in its loops."""
        args = tuple(self.loop(a) if isinstance(a, str) and a not in TAILS else a for a in d.args)
        if d.stage != of:
            return [replace(d, args=(self.part, args[1])) if d.call == "compute_at" and d.args[0] == of else d]
        if d.call in ("compute_at", "compute_root"):
            return [d]
        if d.call.startswith("fetch"):
            return [replace(d, stage=self.part)]
        if d.call == "unroll" and d.args[0] in self.instead and not self.whole:
            return []
        made = replace(d, stage=self.part, args=args)
        if d.update and d.call == "reorder":
            left = tuple(self.instead.get(str(a), a) for a in d.args if a in self.instead or a not in self.within)
            return [replace(d, args=left), made] if len(left) > 1 else [made]
        return [made] if d.args and d.args[0] in self.within else [d, made]
