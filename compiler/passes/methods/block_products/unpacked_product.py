"""The schedule of block-quantised products with many rows: weights are unpacked to f32, some panels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from occ.compiler.ir.dim import ceildiv, is_multiple
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Axis, Binary, Expr, Index, Load, Reduce, Select, minimum, wrap
from occ.compiler.ir.te.function import TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import UNPACKED
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import replace_indices, transform, walk
from occ.compiler.passes.methods.block_products.tiles import Tile, schedule_root
from occ.compiler.passes.schedule.stage_facts import fixed
from occ.compiler.passes.schedule.variants.variant import copied
from occ.compiler.targets.machine import Machine

_ROWS = 96  # minimum rows for which weights are unpacked
# Registers that hold two panels of sums. Of 16, four rows of three leave as many as six of two, and powers of two fill
# the tiles.
_MANY = 32
_GROUP = 2  # register tiles of columns that read the same elements of a tile of rows, while these are in L1


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
    """The stages of a product of unpacked weights in register tiles, and their schedule.

    `sum[i, p, c] = sum[b, k](x[i, b, k] * unpack(w[p, b, k, c]))` -->
    `wT[p//P, b, k, p%P, c] = unpack(w[p, b, k, c])`,
    `sumT[i//T, p//P, i%T, p%P, c] = sum[b, k](x[i, b, k] * wT[p//P, b, k, p%P, c])`

    Rows of another type, or whose last block is not full, are packed first: `xT[i//T, b, k, i%T] = x[i, b, k]`.

    Attributes:
        stages: all but the root; expr: the root in terms of them.
    """

    def __init__(self, f: TeFunc, machine: Machine) -> None:
        acc, root = f.by_role[UNPACKED], f.stages[-1]
        assert isinstance(root, TeStage)
        self.root, self.lanes, self.near = root, fixed(acc.axes[-1]), machine.near_bytes
        self.panels = 2 if machine.registers >= _MANY else 3
        self.tile, self.depth = machine.accumulators // self.panels, len(acc.axes) - 3
        self.blocks, *self.terms = (fixed(a) for a in reduce_axes(acc.expr))
        self.chunk, self.group = self._unpacked(-(-fixed(acc.axes[-2]) // self.panels))
        self.x: TeStage | None = None
        self.w, self.acc = self._made(acc, f)
        self._of(f, acc)

    def _unpacked(self, tiles: int) -> tuple[int, int]:
        """The blocks of a chunk and the tiles of panels of a group that are unpacked at a time."""
        near = self.near * 3 // 2  # of L2, beside a tile of rows and its sums
        block = 4 * prod(self.terms) * self.panels * self.lanes
        chunk = _divisor(self.blocks, max(near // (_GROUP * block), 1))
        most = min(max(near // (chunk * block), 1), tiles)
        return chunk, min(range(most, most // 2, -1), key=lambda n: -tiles % n)

    def _made(self, acc: TeStage, f: TeFunc) -> tuple[TeStage, TeStage]:
        """The unpacked weights, and their products; sets the rows in tiles, if these are packed.

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
        q = Axis(f"{panel.name}q", self.group * ceil(fixed(panel) / (self.panels * self.group)))
        v = Axis(f"{panel.name}v", self.panels)
        of_x, of_w = [*outer, t, *total.axes, r], [q, *total.axes, v, column]
        found = _within(Index(q.name) * self.panels + Index(v.name), panel, self.panels * self.group)
        w = _stage(f"w_{acc.name}", of_w, replace_indices(right, {panel.name: found}), "w")
        rows = replace_indices(left, {row.name: _within(Index(t.name) * self.tile + Index(r.name), row, self.tile)})
        if not _as_they_are(left, f):
            self.x = _stage(f"x_{acc.name}", of_x, rows, "x")
            rows = _element(self.x, of_x)
        axes = (*outer, t, q, r, v, column)
        return w, replace(acc, name=f"{acc.name}many", axes=axes, expr=replace(total, body=rows * _element(w, of_w)))

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
        self.stages = [*before, *([] if self.x is None else [self.x]), self.w, self.acc, *copies]
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
            *at, row, panel, column = n.index
            tiled = row // self.tile, panel // self.panels, row % self.tile, panel % self.panels
            return Load(self.acc.name, (*at, *tiled, column), n.dtype)

        return transform(e, visit)

    def directives(self) -> list[Directive]:
        """The schedule: blocks of rows, groups of panels, chunks of terms, tiles of rows, panels.

        A chunk of a group's weights is unpacked once per block of rows.
        """
        out = StageSchedule(self.root)
        rows = max(_ROWS, self.near // (4 * self.group * self.panels * self.lanes))
        rows = 1 << (rows - 1).bit_length()  # prompts are run in powers of two, which leave no short block
        block = ceil(rows / self.tile)
        tile = Tile(self.tile, self.lanes, self.panels, "many", self.terms, self.blocks, block, self.group)
        groups = schedule_root(out, self.root, tile)[0]
        made = [] if self.x is None else self._packed(self.x)
        return [*out.directives, *made, *self._sum(groups)]

    def _packed(self, rows: TeStage) -> list[Directive]:
        x = StageSchedule(rows).compute_root()
        return x.vectorize(x.axes[-2], self.terms[-1]).unroll(x.axes[-1]).parallel(x.axes[self.depth]).directives

    def _sum(self, groups: Loop) -> list[Directive]:
        """Schedules the sums of a block of rows and a group of panels, and within them the unpacked weights."""
        start, update = StageSchedule(self.acc).compute_at(self.root.name, groups), StageSchedule(self.acc, update=1)
        *outer, t, q, r, v, c = start.axes
        start.bound(c, 0, self.lanes).bound(v, 0, self.panels).bound_extent(q, self.group).bound(r, 0, self.tile)
        start.vectorize(c).unroll(v).unroll(r)
        chunks, block = update.split(update.reduced[0], self.chunk)
        terms = (block, *update.reduced[1:])
        update.reorder(c, v, r, *reversed(terms), q, t, chunks, *reversed(outer)).vectorize(c)
        update.unroll(v).unroll(r).unroll(terms[-1])
        made = StageSchedule(self.w).compute_at(self.acc.name, chunks)
        tiles, b, *inner, panel, column = made.axes
        made.bound_extent(tiles, self.group).bound_extent(b, self.chunk)
        made.bound(panel, 0, self.panels).bound(column, 0, self.lanes)
        for loop, extent in zip(inner, self.terms, strict=True):
            made.bound(loop, 0, extent)
        made.reorder(column, *reversed(inner), panel, b, tiles).vectorize(column).unroll(inner[-1]).unroll(inner[0])
        return [*start.directives, *update.directives, *made.directives]


def _as_they_are(e: Expr, f: TeFunc) -> bool:
    """Whether an element is a number of a parameter in f32, read through other stages or not."""
    while isinstance(e, Load) and (made := next((s for s in f.stages if s.name == e.source), None)) is not None:
        if not isinstance(made, TeStage):
            return False
        e = made.expr
    return isinstance(e, Load) and e.dtype == F32


def _divisor(count: int, most: int) -> int:
    """The largest divisor of a count that is at most a number."""
    return next(n for n in range(min(most, count), 0, -1) if count % n == 0)


def _within(index: Expr, axis: Axis, step: int) -> Expr:
    """An index along an axis, clamped to the last element where steps may pass its end."""
    return index if is_multiple(axis.extent, step) else minimum(index, wrap(axis.extent - 1))


def _element(s: TeStage, axes: Sequence[Axis]) -> Expr:
    return Load(s.name, tuple(Index(a.name) for a in axes), F32)


def _stage(name: str, axes: Sequence[Axis], expr: Expr, mark: str) -> TeStage:
    """A stage of this element, with axes of its own."""
    renamed: dict[str, Expr] = {a.name: Index(f"{a.name}{mark}") for a in axes}
    return TeStage(name, tuple(Axis(f"{a.name}{mark}", a.extent) for a in axes), replace_indices(expr, renamed))
