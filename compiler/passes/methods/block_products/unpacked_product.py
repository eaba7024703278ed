"""The schedule of block-quantised products with many rows: weights are unpacked to f32, some panels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from occ.compiler.ir.dim import ceildiv, is_multiple
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Axis, Binary, Expr, Index, Load, Reduce, Select, minimum, wrap
from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.ir.te.roles import UNPACKED
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import replace_indices, transform, walk
from occ.compiler.passes.methods.block_products.tiles import Tile, schedule_root
from occ.compiler.passes.schedule.stage_facts import fixed
from occ.compiler.passes.schedule.variants.variant import copied
from occ.compiler.targets.machine import Machine

_ROWS = 96  # minimum rows for which weights are unpacked
_GROUP = 16  # register tiles of columns that read the same chunk of rows, while it is in L2
_L1 = 40 << 10  # bytes of a chunk of unpacked weights; a part of it may come from L2
_PANELS = 2  # panels whose sums are in registers together: each loaded row element is used twice


def by_rows(f: TeFunc) -> tuple[TeFunc | None, TeFunc | None]:
    """The function of code products, for few rows, combined with that of unpacked weights, for many.

    None if there is none.
    """
    total = f.by_role.get(UNPACKED)
    if total is None:
        return f, None
    choices = [n for s in f.stages for e in s.exprs for n in walk(e) if _chooses(n, total.name)]
    if not choices:
        return None, f
    return _only(f, total.name, few=True), _only(f, total.name, few=False)


def _chooses(n: Expr, name: str) -> bool:
    return isinstance(n, Select) and isinstance(n.other, Load) and n.other.source == name


def _only(f: TeFunc, name: str, *, few: bool) -> TeFunc:
    """One branch of each choice between code products and unpacked weights, and the stages that it needs."""

    def chosen(n: Expr) -> Expr | None:
        return (n.then if few else n.other) if isinstance(n, Select) and _chooses(n, name) else None

    stages = {s.name: replace(s, expr=transform(s.expr, chosen)) for s in f.stages if isinstance(s, TeStage)}
    needed, todo = set[str](), [f.stages[-1].name]
    while todo:
        needed.add(at := todo.pop())
        todo += [n.source for n in loads(stages[at].expr) if n.source in stages and n.source not in needed]
    return replace(f, stages=tuple(s for s in stages.values() if s.name in needed))


class UnpackedProduct:
    """The stages of a product of unpacked weights with a given tile height, and their schedule.

    `sum[i, p, c] = sum[b, k](x[i, b, k] * unpack(w[p, b, k, c]))` --> `xT[i//T, b, k, i%T] = x[i, b, k]`,
    `wT[p, b, k, c] = unpack(w[p, b, k, c])`, `sumT[i//T, i%T, p, c] = sum[b, k](xT[i//T, b, k, i%T] * wT[p, b, k, c])`

    Attributes:
        stages: all but the root; expr: the root in terms of them.
    """

    def __init__(self, f: TeFunc, machine: Machine) -> None:
        acc, root = f.by_role[UNPACKED], f.stages[-1]
        assert isinstance(root, TeStage)
        self.root, self.lanes = root, fixed(acc.axes[-1])
        self.near = 2 * machine.near_bytes  # of rows that stay in L2 beside a chunk of weights
        self.tile, self.depth = machine.accumulators // _PANELS, len(acc.axes) - 3
        self.x, self.w, self.acc = self._made(acc)
        self._of(f, acc)

    def _made(self, acc: TeStage) -> tuple[TeStage, TeStage, TeStage]:
        """The rows in tiles, the unpacked weights, and their products.

        Missing rows or panels of a last tile repeat the last one.
        """
        *outer, row, panel, column = acc.axes
        total = acc.expr
        assert isinstance(total, Reduce)
        assert isinstance(total.body, Binary)
        left, right = total.body.lhs, total.body.rhs
        if any(isinstance(n, Index) and n.name == panel.name for n in walk(left)):
            left, right = right, left
        t, r = Axis(f"{row.name}t", ceildiv(row.extent, self.tile)), Axis(f"{row.name}r", self.tile)
        at = _within(Index(t.name) * self.tile + Index(r.name), row, self.tile)
        of_x, of_w = [*outer, t, *total.axes, r], [*total.axes, panel, column]
        x = _stage(f"x_{acc.name}", of_x, replace_indices(left, {row.name: at}), "x")
        found = _within(Index(panel.name), panel, _PANELS)
        w = _stage(f"w_{acc.name}", of_w, replace_indices(right, {panel.name: found}), "w")
        body = Load(x.name, tuple(Index(a.name) for a in of_x), F32) * Load(
            w.name, tuple(Index(a.name) for a in of_w), F32
        )
        axes = (*outer, t, r, panel, column)
        return x, w, replace(acc, name=f"{acc.name}many", axes=axes, expr=replace(total, body=body))

    def _of(self, f: TeFunc, acc: TeStage) -> None:
        """The other stages: those through which operands are read, and copies of those that read the sum."""
        stages = [s for s in f.stages[:-1] if isinstance(s, TeStage) and s is not acc]
        after = {acc.name}
        for s in stages:
            if any(n.source in after for n in loads(s.expr)):
                after.add(s.name)
        names = after - {acc.name}
        copies = [copied(s, names, "many") for s in stages if s.name in names]
        copies = [replace(s, expr=self._read(s.expr, acc)) for s in copies]
        before = [s for s in stages if s.name not in names]
        self.stages = [*before, self.x, self.w, self.acc, *copies]
        self.expr = self._read(
            transform(
                self.root.expr,
                lambda n: replace(n, source=f"{n.source}many") if isinstance(n, Load) and n.source in names else None,
            ),
            acc,
        )

    def _read(self, e: Expr, acc: TeStage) -> Expr:
        def visit(n: Expr) -> Expr | None:
            if not isinstance(n, Load) or n.source != acc.name:
                return None
            at, row = n.index[: self.depth], n.index[self.depth]
            return Load(self.acc.name, (*at, row // self.tile, row % self.tile, *n.index[self.depth + 1 :]), n.dtype)

        return transform(e, visit)

    def directives(self) -> list[Directive]:
        """The schedule: blocks of rows, groups of panels, chunks of terms, panels, tiles of rows.

        A chunk of a panel's weights is unpacked once per block of rows.
        """
        out = StageSchedule(self.root)
        blocks, *terms = (fixed(a) for a in self.w.axes[:-2])
        chunk = _divisor(blocks, max(_L1 // (4 * _PANELS * self.lanes * prod(terms)), 1))
        rows = max(_ROWS, self.near // (4 * chunk * prod(terms)))
        rows = 1 << (rows - 1).bit_length()  # prompts are run in powers of two, which leave no short block
        block = -(-rows // self.tile)
        group = _divisor(-(-fixed(self.w.axes[-2]) // _PANELS), _GROUP)
        tile = Tile(self.tile, self.lanes, _PANELS, "many", terms, blocks, block, group)
        groups = schedule_root(out, self.root, tile)[0]
        x = StageSchedule(self.x).compute_root()
        x.vectorize(x.axes[-2], terms[-1]).unroll(x.axes[-1]).parallel(x.axes[self.depth])
        return [*out.directives, *x.directives, *self._sum(groups, group, chunk)]

    def _sum(self, groups: Loop, group: int, chunk: int) -> list[Directive]:
        """Schedules the sums of a block of rows and a group of panels, and within them the unpacked weights."""
        start, update = StageSchedule(self.acc).compute_at(self.root.name, groups), StageSchedule(self.acc, update=1)
        *outer, t, r, p, c = start.axes
        start.bound(c, 0, self.lanes).bound_extent(p, _PANELS * group).bound(r, 0, self.tile)
        start.vectorize(c).unroll(r)
        chunks, block = update.split(update.reduced[0], chunk)
        pairs, within = update.split(p, _PANELS)
        terms = (block, *update.reduced[1:])
        update.reorder(c, within, r, *reversed(terms), t, pairs, chunks, *reversed(outer)).vectorize(c)
        update.unroll(within).unroll(r).unroll(terms[-1])
        made = StageSchedule(self.w).compute_at(self.acc.name, pairs)
        b, *inner, panel, column = made.axes
        made.bound_extent(panel, _PANELS).bound(column, 0, self.lanes).bound_extent(b, chunk)
        for loop, axis in zip(inner, self.w.axes[1:-2], strict=True):
            made.bound(loop, 0, fixed(axis))
        made.reorder(column, *reversed(inner), b, panel).vectorize(column).unroll(inner[-1]).unroll(inner[0])
        return [*start.directives, *update.directives, *made.directives]


def _divisor(count: int, most: int) -> int:
    """The largest divisor of a count that is at most a number."""
    return next(n for n in range(min(most, count), 0, -1) if count % n == 0)


def _within(index: Expr, axis: Axis, step: int) -> Expr:
    """An index along an axis, clamped to the last element where steps may pass its end."""
    return index if is_multiple(axis.extent, step) else minimum(index, wrap(axis.extent - 1))


def _stage(name: str, axes: Sequence[Axis], expr: Expr, mark: str) -> TeStage:
    """A stage of this element, with axes of its own."""
    renamed: dict[str, Expr] = {a.name: Index(f"{a.name}{mark}") for a in axes}
    return TeStage(name, tuple(Axis(f"{a.name}{mark}", a.extent) for a in axes), replace_indices(expr, renamed))
