"""The schedule of attention: some rows of one head at a time, whose scores stay in cache, and tiles of both products."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.te.expr import Index, Load, minimum, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import ATTENTION, PEAK
from occ.compiler.ir.te.schedule import Directive, Scheduler
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import row_tail, tile_size
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, extent_of, facts_of, stages_by_role
from occ.compiler.targets.machine import Machine

_MOST_TILES = 5  # of a block
_STEPS = 4  # of a sum, one after the other in a loop; eight take 2 to 4 % longer
_BLOCK_BYTES = 96 * 1024  # of the scores of a block of rows; their exponentials take as much again


def clamp_attention(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Clamps what tiles of attention read past the end of an axis of symbolic extent.

    What is computed of it is not kept.
    """
    parts = stages_by_role(f, ATTENTION)
    if parts is None:
        return Declined("it is no `attend`")
    row, column = parts["exp"].axes[-2:]
    edits = [
        (parts["query"].name, None, -2, row.extent),
        (parts["sum"].name, parts["exp"].name, -2, row.extent),
        (parts["keys"].name, None, -1, column.extent),
    ]
    stages = list(f.stages)
    for name, source, position, extent in edits:
        if isinstance(extent, int):
            continue
        k = next(j for j, s in enumerate(stages) if s.name == name)
        s = stages[k]
        assert isinstance(s, TeStage)
        stages[k] = replace(s, expr=_clamped(s, source, s.axes[position].name, extent))
    return replace(f, stages=tuple(stages)) if stages != list(f.stages) else Declined("its extents are known")


def _clamped(s: TeStage, source: str | None, axis: str, extent: Dim):
    last = wrap(extent - 1)

    def clamp(n):
        if not isinstance(n, Load) or source not in (None, n.source):
            return None
        index = tuple(minimum(i, last) if isinstance(i, Index) and i.name == axis else i for i in n.index)
        return Load(n.source, index, n.dtype)

    return transform(s.expr, clamp)


def attention(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Attention: blocks of queries whose scores stay in cache, and register tiles of both products.

    A single query has no tiles of rows.
    """
    parts = stages_by_role(f, ATTENTION)
    if parts is None or parts["exp"].axes[-2].extent == 1:
        return Declined("it is no `attend`, or one of a single query")
    facts = facts_of(f, machine)
    return facts.scheduled(_Attention(facts, parts).directives())


def _tiles(extent: Dim, rows: int, most: int) -> int:
    """Tiles of a block: what is computed beyond the extent is wasted, and every block reads the keys once more, which costs
    about as much as an eighth of a tile. A block is never longer than the extent.
    """
    if not isinstance(extent, int):
        return most
    tiles = -(-extent // rows)
    return min(range(max(min(most, extent // rows), 1), 0, -1), key=lambda n: -(-tiles // n) * (8 * n + 1))


class _Attention:
    def __init__(self, facts: ScheduleFacts, parts: dict[str, TeStage]) -> None:
        self.facts, self.parts = facts, parts
        self.out = parts["out"]
        self.lanes = facts.machine.lanes(32)
        self.queries, self.keys = (a.extent for a in parts["exp"].axes[-2:])
        (read,) = (n for n in loads(self.out.expr) if n.source == parts["sum"].name)
        *self.batch, self.row, self.column = (i.name for i in read.index if isinstance(i, Index))
        self.depth = extent_of(self.out, self.column)
        self.rows = tile_size(self.queries, facts.machine.accumulators // 2)
        per_row = 4 * (self.keys if isinstance(self.keys, int) else 1024)
        many = max(_BLOCK_BYTES // (per_row * self.rows), 1)
        self.block = self.rows * _tiles(self.queries, self.rows, min(many, _MOST_TILES))

    def directives(self) -> list[Directive]:
        made = [*self._result(), *self._packs(), *self._logits(), *self._softmax()]
        made += self._tile("scores", "logits", self.logits_tile, self.keys)
        made += self._tile("sum", "out", self.out_tile, self.depth)
        return made

    def _result(self) -> list[Directive]:
        batch, i, d = self.batch, self.row, self.column
        out = Scheduler(self.out.name)
        out.split(i, f"{i}b", f"{i}r", self.block, row_tail(self.queries, self.block))
        inner = self._split(out, d, self.depth)
        out.split(f"{i}r", f"{i}o", f"{i}i", self.rows, "Auto")
        out.reorder(*inner, f"{i}i", f"{i}o", f"{d}o", f"{i}b", *reversed(batch))
        out.vectorize(inner[0]).unroll(f"{i}i")
        for u in inner[1:]:
            out.unroll(u)
        self.out_tile = f"{i}o"
        self.level = f"{i}b"
        heads = product(extent_of(self.out, h) for h in batch)
        for h in reversed(batch):
            out.fuse(self.level, h, f"{self.level}{h}")
            self.level = f"{self.level}{h}"
        if heads != 1 or self.queries != self.block:
            out.parallel(self.level)
        return out.directives

    def _width(self, extent: Dim) -> int:
        if not isinstance(extent, int):
            return 2 * self.lanes
        lanes = self.facts.machine.lanes(32, extent)
        return 2 * lanes if extent >= 2 * lanes else lanes

    def _split(self, s: Scheduler, axis: str, extent: Dim, tail: str = "") -> list[str]:
        """Split an axis in tiles of vectors; returns the inner loops, innermost first."""
        width = self._width(extent)
        lanes = min(width, self.lanes)
        s.split(axis, f"{axis}o", f"{axis}i", width, tail or row_tail(extent, width))
        if width == lanes:
            return [f"{axis}i"]
        s.split(f"{axis}i", f"{axis}u", f"{axis}v", lanes)
        return [f"{axis}v", f"{axis}u"]

    def _packs(self) -> list[Directive]:
        """Keys transposed and values gathered, once for every head; the queries of a block with their factor."""
        made: list[Directive] = []
        for role in ("keys", "values"):
            s = self.parts[role]
            *batch, outer, last = (a.name for a in s.axes)
            p = Scheduler(s.name).compute_root()
            width = min(self._width(s.axes[-1].extent), self.lanes)
            p.split(last, f"{last}o", f"{last}i", width, row_tail(s.axes[-1].extent, width))
            if role == "keys":
                p.align_storage(last, width)  # no vector lies across two cache lines
                p.reorder(f"{last}i", outer, f"{last}o", *reversed(batch))
                loops = [*batch, f"{last}o"]
            else:
                loops = [*batch, outer]
            p.vectorize(f"{last}i")
            level = loops[-1]
            for h in reversed(loops[:-1]):
                p.fuse(level, h, f"{level}{h}")
                level = f"{level}{h}"
            p.parallel(level)
            made += p.directives
        q = self.parts["query"]
        made += self._vectors(Scheduler(q.name).compute_at(self.out.name, self.level), q).directives
        return made

    def _vectors(self, s: Scheduler, stage: AnyStage) -> Scheduler:
        last = stage.axes[-1]
        width = min(self._width(last.extent), self.lanes)
        return s.vectorize(last.name, width, row_tail(last.extent, width))

    def _logits(self) -> list[Directive]:
        s = self.parts["logits"]
        i, j = (a.name for a in s.axes[-2:])
        p = Scheduler(s.name).compute_at(self.out.name, self.level)
        inner = self._split(p, j, self.keys)
        tail = row_tail(self.queries, self.rows)
        p.split(i, f"{i}o", f"{i}i", self.rows, tail)
        p.reorder(*inner, f"{i}i", f"{i}o", f"{j}o").vectorize(inner[0]).unroll(f"{i}i")
        for u in inner[1:]:
            p.unroll(u)
        self.logits_tile = f"{i}o"
        return p.directives

    def _softmax(self) -> list[Directive]:
        made: list[Directive] = []
        e = self.parts["exp"]
        made += self._vectors(Scheduler(e.name).compute_at(self.out.name, self.level), e).directives
        whole = self.facts.f.by_role
        for s in self.facts.f.stages:
            if not isinstance(s, TeStage) or s.role not in (ATTENTION["top"], PEAK, ATTENTION["total"]):
                continue
            p = Scheduler(s.name).compute_at(self.out.name, self.level)
            made += p.directives
            if len(s.axes) > len(whole[s.role].axes):  # a part of it that has an axis of lanes, see `in_lanes`
                lane, chunk = s.axes[-1].name, reduce_axes(s.expr)[-1].name
                made += Scheduler(s.name).vectorize(lane, self.lanes).directives
                u = Scheduler(s.name, update=True).reorder(lane, chunk, s.axes[-2].name).vectorize(lane, self.lanes)
                made += u.unroll(chunk, 4).directives
        return made

    def _tile(self, role: str, reader: str, level: str, extent: Dim) -> list[Directive]:
        """A tile of sums in registers."""
        acc = self.parts[role]
        i, j = (a.name for a in acc.axes[-2:])
        width = self._width(extent)
        lanes = min(width, self.lanes)
        start = Scheduler(acc.name).compute_at(self.parts[reader].name, level)
        start.bound_extent(j, width)
        if not isinstance(self.queries, int):
            start.bound_extent(i, self.rows)
        start.split(j, f"{j}u", f"{j}v", lanes).vectorize(f"{j}v").unroll(f"{j}u").unroll(i)
        start.reorder(f"{j}v", f"{j}u", i)
        update = Scheduler(acc.name, update=True)
        (r,) = (a.name for a in reduce_axes(acc.expr))
        update.split(j, f"{j}w", f"{j}x", lanes).reorder(f"{j}x", f"{j}w", i, r)
        update.vectorize(f"{j}x").unroll(f"{j}w").unroll(i)
        reduced = next(a.extent for a in reduce_axes(acc.expr))
        if not isinstance(reduced, int) or reduced >= _STEPS:
            whole = isinstance(reduced, int) and reduced % _STEPS == 0
            update.unroll(r, _STEPS, "Auto" if whole else "GuardWithIf")
        return [*start.directives, *update.directives]
