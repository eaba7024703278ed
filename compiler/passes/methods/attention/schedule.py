"""The schedule of attention for many queries: blocks of rows whose scores stay in cache."""

from __future__ import annotations

from dataclasses import replace

from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.te.expr import Index, Load, minimum, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import ATTENTION, PEAK
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import row_tail, tile_size
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts, extent_of, facts_of, stages_by_role
from occ.compiler.targets.machine import Machine

_MOST_TILES = 5  # rows of a block
_STEPS = 4  # terms of a sum unrolled in a loop; eight take 2 to 4 % longer
_BLOCK_BYTES = 96 * 1024  # bytes of scores for a block of rows; their exponentials take the same again


def clamp_attention(f: TeFunc, _machine: Machine) -> TeFunc | Declined:
    """Clamps what attention tiles read past the end of an axis of symbolic extent.

    The results computed from it are discarded.
    """
    parts = stages_by_role(f, ATTENTION)
    if parts is None:
        return Declined("it is not an `attend`")
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
        return Declined("it is not an `attend`, or one of a single query")
    facts = facts_of(f, machine)
    return facts.scheduled(_Attention(facts, parts).directives())


def _tiles(extent: Dim, rows: int, most: int) -> int:
    """Tiles per block: balances wasted work past the extent against rereading keys.

    Every block rereads the keys, which costs about as much as an eighth of a tile. A block is never longer than the
    extent.
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
        out = StageSchedule(self.out)
        tile, block = self._result(out)
        logits, logits_tile = self._logits(block)
        made = [*out.directives, *self._packs(), *self._query(block), *logits, *self._softmax(block)]
        made += self._tile("scores", "logits", logits_tile, self.keys)
        made += self._tile("sum", "out", tile, self.depth)
        return made

    def _result(self, out: StageSchedule) -> tuple[Loop, Loop]:
        """Schedules the result; returns the loops over its tiles and blocks."""
        i, d, batch = out.loop(self.row), out.loop(self.column), [out.loop(h) for h in self.batch]
        block, rows = out.split(i, self.block, row_tail(self.queries, self.block), "br")
        columns, inner = self._split(out, d, self.depth)
        tile, row = out.split(rows, self.rows, "Auto", root=i)
        out.reorder(*inner, row, tile, columns, block, *reversed(batch))
        out.vectorize(inner[0]).unroll(row)
        for u in inner[1:]:
            out.unroll(u)
        block = out.fuse_outwards(block, batch)
        heads = product(extent_of(self.out, h) for h in batch)
        if heads != 1 or self.queries != self.block:
            out.parallel(block)
        return tile, block

    def _width(self, extent: Dim) -> int:
        if not isinstance(extent, int):
            return 2 * self.lanes
        lanes = self.facts.machine.lanes(32, extent)
        return 2 * lanes if extent >= 2 * lanes else lanes

    def _split(self, s: StageSchedule, axis: Loop, extent: Dim) -> tuple[Loop, list[Loop]]:
        """Split an axis into tiles of vectors; returns the loop over tiles, and those inside one, innermost first."""
        width = self._width(extent)
        lanes = min(width, self.lanes)
        tiles, within = s.split(axis, width, row_tail(extent, width))
        if width == lanes:
            return tiles, [within]
        vectors, lane = s.split(within, lanes, into="uv", root=axis)
        return tiles, [lane, vectors]

    def _packs(self) -> list[Directive]:
        """Keys transposed and values gathered, once per head."""
        made: list[Directive] = []
        for role in ("keys", "values"):
            s = self.parts[role]
            p = StageSchedule(s).compute_root()
            *batch, outer, last = p.axes
            width = min(self._width(s.axes[-1].extent), self.lanes)
            vectors, lane = p.split(last, width, row_tail(s.axes[-1].extent, width))
            if role == "keys":
                p.align_storage(last, width)  # no vector crosses a cache line
                p.reorder(lane, outer, vectors, *reversed(batch))
                outer = vectors
            p.vectorize(lane)
            made += p.parallel(p.fuse_outwards(outer, batch)).directives
        return made

    def _query(self, block: Loop) -> list[Directive]:
        """The queries of a block, scaled."""
        return self._vectors(self.parts["query"], block).directives

    def _vectors(self, stage: AnyStage, block: Loop) -> StageSchedule:
        """Vectorises a stage of a block."""
        extent, s = stage.axes[-1].extent, StageSchedule(stage)
        width = min(self._width(extent), self.lanes)
        return s.compute_at(self.out.name, block).vectorize(s.axes[-1], width, row_tail(extent, width))

    def _logits(self, block: Loop) -> tuple[list[Directive], Loop]:
        """The logits of a block; returns the loop over their tiles."""
        p = StageSchedule(self.parts["logits"]).compute_at(self.out.name, block)
        i, j = p.axes[-2:]
        columns, inner = self._split(p, j, self.keys)
        tile, row = p.split(i, self.rows, row_tail(self.queries, self.rows))
        p.reorder(*inner, row, tile, columns).vectorize(inner[0]).unroll(row)
        for u in inner[1:]:
            p.unroll(u)
        return p.directives, tile

    def _softmax(self, block: Loop) -> list[Directive]:
        made = [*self._vectors(self.parts["exp"], block).directives]
        whole = self.facts.f.by_role
        for s in self.facts.f.stages:
            if not isinstance(s, TeStage) or s.role not in (ATTENTION["top"], PEAK, ATTENTION["total"]):
                continue
            p = StageSchedule(s).compute_at(self.out.name, block)
            if len(s.axes) > len(whole[s.role].axes):  # a partial reduction with an axis of lanes, see `rfactored`
                u = StageSchedule(s, update=1)
                (*_, row, lane), chunk = p.axes, u.reduced[-1]
                p.vectorize(lane, self.lanes)
                u.reorder(lane, chunk, row).vectorize(lane, self.lanes).unroll(chunk, 4)
                made += [*p.directives, *u.directives]
            else:
                made += p.directives
        return made

    def _tile(self, role: str, reader: str, level: Loop, extent: Dim) -> list[Directive]:
        """A tile of sums in registers."""
        acc = self.parts[role]
        start = StageSchedule(acc).compute_at(self.parts[reader].name, level)
        i, j = start.axes[-2:]
        width = self._width(extent)
        lanes = min(width, self.lanes)
        start.bound_extent(j, width)
        if not isinstance(self.queries, int):
            start.bound_extent(i, self.rows)
        vectors, lane = start.split(j, lanes, into="uv")
        start.vectorize(lane).unroll(vectors).unroll(i).reorder(lane, vectors, i)
        update = StageSchedule(acc, update=1)
        (r,) = update.reduced
        vectors, lane = update.split(j, lanes, into="wx")
        update.reorder(lane, vectors, i, r).vectorize(lane).unroll(vectors).unroll(i)
        reduced = next(a.extent for a in reduce_axes(acc.expr))
        if not isinstance(reduced, int) or reduced >= _STEPS:
            whole = isinstance(reduced, int) and reduced % _STEPS == 0
            update.unroll(r, _STEPS, "Auto" if whole else "GuardWithIf")
        return [*start.directives, *update.directives]
