"""The schedule of attention for a few queries, as in decoding: caches are read in place."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from occ.compiler.ir.dim import Dim, lower
from occ.compiler.ir.te.expr import Binary, Const, binary, where, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads
from occ.compiler.ir.te.roles import ATTENTION, HEADS, PEAK
from occ.compiler.ir.te.schedule import AtMost, Directive
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.methods.attention.kv_layout import Cache, caches_of, heads_interleaved
from occ.compiler.passes.methods.attention.schedule import attention
from occ.compiler.passes.methods.attention.split_kv import APART, TOGETHER, ChunkStages, NotInChunks, in_chunks
from occ.compiler.passes.rules.schedule_rule import Declined, made_by
from occ.compiler.passes.schedule.loops import row_tail
from occ.compiler.passes.schedule.stage_facts import fixed, stages_by_role
from occ.compiler.passes.schedule.variants.variant import copied, reading
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

Level = tuple[str, Loop]  # a stage, and the loop of it in which another stage is computed

_FEW = 4  # rows computed one at a time: packing keys and values takes as long as reading them this often
# Prefetch distances in bytes (L1, L2). Throughput relative to a plain read of 4,096 keys, 32 heads on 8 of 64, f32. Zen
# 5, head-major keys: 0.60 without, 0.89 with 8 KB (L1), 0.57 with 32 KB (L2). Zen 4 prefetches head-major keys in
# hardware: 0.84 to 0.90 without, 0.73 with both; head size 128: 0.75 to 0.81, and 0.60. Hardware is too late if lines
# feed more multiply-adds: f16 heads 0.63 without, 0.66 with both; 64 on 8 in f32 0.63 and 0.66. Token-major, 16,384
# keys, Zen 4: 0.35 without for values, 0.60 without for keys, 0.72 to 0.74 with 8 KB for both, 0.75 to 0.76 as here; 8
# heads on 8: 0.71 and 0.74.
# nothing for the values, 0.60 with nothing for the keys, 0.72 to 0.74 with 8 KB for both, 0.75 to 0.76 so; 8 heads on
# 8: 0.71 and 0.74.
_AHEAD_APART = {"keys": (8 << 10, 32 << 10), "values": (8 << 10, 32 << 10)}
_AHEAD_TOGETHER = {"keys": (4 << 10, 16 << 10), "values": (4 << 10, 32 << 10)}
_MUCH = 8  # vector multiply-adds per cache line: with more, arithmetic dominates
_SHORT = 64  # a constant number of keys up to which the schedule for many rows is used
_LINE = 64  # bytes of a cache line
_UNROLLED = 40  # vectors in a chunk's result
_SUMS = 16  # vectors of sums held in registers
_MOST_KEYS = 4  # scores computed at once: with 16 for one head each, too much is prefetched at once


def decode_variant(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Attention with possibly few queries: the variant `decode_attention`, for 4 queries or fewer.

    `out[i<N, d] = sum[i, d] / total[i]` --> `out[i<N, d] = N <= 4 ? sumfew[i, d] / totalfew[i] : sum[i, d] / total[i]`
    """
    out = f.by_role.get(ATTENTION["out"])
    found = _copies(f, machine) if out is not None and made_by(f, out.name) == attention.__name__ else None
    if found is None or isinstance(found.queries, int) or (test := AtMost(found.queries, _FEW).simplest).always:
        return Declined(f"it is not an `attend` of a symbolic number of queries that may be {_FEW} or less")
    out, again = found.out, found.again
    made = [replace(d, variant=1) if d.stage == out.name else d for d in found.schedule]
    both = replace(out, expr=where(binary("le", wrap(test.left), wrap(test.right)), again.expr, out.expr))
    stages: list[AnyStage] = []
    for s in f.stages:
        stages += [*found.stages, both] if s is out else [s]
    return replace(
        f,
        stages=tuple(stages),
        schedule=(Directive(out.name, "specialize", (test,)), *made, *f.schedule),
    )


def decode_attention(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Attention of a few queries: keys in chunks (flash-decoding), caches read in place and in the order of memory.

    For 4 queries or fewer, and 64 keys or more.
    """
    found = _copies(f, machine)
    if found is None or not isinstance(found.queries, int) or (isinstance(found.keys, int) and found.keys < _SHORT):
        return Declined(f"it is not an `attend` of {_FEW} queries or less and {_SHORT} keys or more")
    kept = [s for s in f.stages if s.name not in found.names and s is not found.out]
    return replace(f, stages=(*kept, *found.stages, found.again), schedule=tuple(found.schedule))


@dataclass(frozen=True)
class _Copies:
    """The stages of attention for a few queries.

    Attributes:
        queries, keys: how many of each.
        names: names of the stages that have copies.
        stages: the copies.
        out, again: the last stage, and its form that reads the copies.
        schedule: of the copies and of `again`.
    """

    queries: Dim
    keys: Dim
    names: set[str]
    stages: list[TeStage]
    out: TeStage
    again: TeStage
    schedule: list[Directive]


def _copies(f: TeFunc, machine: Machine) -> _Copies | None:
    """Copies of the stages for a few queries.

    None if this is not attention, always has more queries, or its keys cannot be chunked.
    """
    parts = stages_by_role(f, ATTENTION)
    if parts is None:
        return None
    (queries, keys), out = (a.extent for a in parts["exp"].axes[-2:]), parts["out"]
    if len(parts["exp"].axes) < 3 or lower(queries) > _FEW or not isinstance(parts["sum"].axes[-1].extent, int):
        return None
    mine = _needed(f, out)
    names = {s.name for s in mine}
    caches = caches_of(f, parts)
    heads = parts["scores"].axes[-3].extent
    together = heads_interleaved(caches) and isinstance(
        heads, int
    )  # tiles over all heads of a key have a constant size
    try:
        made = in_chunks([copied(s, names) for s in mine], machine.lanes(32), TOGETHER if together else APART)
    except NotInChunks:
        return None
    again = replace(out, expr=reading(out.expr, names))
    heads = [s for s in f.stages if isinstance(s, TeStage) and s.role == HEADS]
    alone = replace(f, stages=(*heads, *made.stages, again))
    schedule = _Decode(alone, made, machine, caches, together).directives()
    return _Copies(queries, keys, names, made.stages, out, again, schedule)


def _needed(f: TeFunc, out: TeStage) -> list[TeStage]:
    """The stages that the last one reads, except those that only locate keys and values."""
    named = {s.name: s for s in f.stages if isinstance(s, TeStage)}
    found: set[str] = set()
    todo = [out]
    while todo:
        s = todo.pop()
        if s.role not in (ATTENTION["keys"], ATTENTION["values"]):
            new = {n.source for n in loads(s.expr)} & (named.keys() - found)
            found |= new
            todo += [named[name] for name in new]
    return [s for name, s in named.items() if name in found]


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


class _Decode:
    """The schedule of the copies: scores, softmax and product of one chunk of keys, then of the next."""

    def __init__(
        self, f: TeFunc, made: ChunkStages, machine: Machine, caches: dict[str, Cache], together: bool
    ) -> None:
        parts = stages_by_role(f, ATTENTION)
        assert parts is not None, "the copies have the roles of what they are copies of"
        self.f, self.parts, self.made, self.machine = f, parts, made, machine
        self.caches, self.together = caches, together
        self.lanes = machine.lanes(32)
        self.group = self._group()
        # A divisor of a row of values, so that register tiles never reach past its end.
        size = fixed(parts["sum"].axes[-1])
        self.width = gcd(size, self.lanes)
        self.heads, vectors = self._tile_of_values(size // self.width)
        self.tile = self.width * vectors

    def _tile_of_values(self, row: int) -> tuple[int, int]:
        """Heads that share values, and vectors of a row, in one register tile: enough sums to hide latency.

        Rows are read whole if possible, in memory order; if necessary, for some heads at a time.
        """
        tiles = [(h, v) for h in _divisors(self.group) for v in _divisors(row) if h * v <= _SUMS]
        return max(tiles, key=lambda tile: (tile[0] * tile[1] >= _SUMS // 2, tile[1], tile[0]))

    def _group(self) -> int:
        """Heads of queries per head of keys: the divisor in `repeat_heads`."""
        for s in self.f.stages:
            if isinstance(s, TeStage) and s.role == HEADS:
                divisors = [n.rhs for n in walk(s.expr) if isinstance(n, Binary) and n.op == "floordiv"]
                return next((int(n.value.real) for n in divisors if isinstance(n, Const)), 1)
        return 1

    def directives(self) -> list[Directive]:
        parts = StageSchedule(self.made.parts).compute_root()
        chunk = (parts.name, self._parts(parts))
        logits, head, block = self._logits(chunk)
        made = self._along(self.parts["out"], root=False) + self._queries() + logits
        return [*made, *self._scores(head, block), *self._softmax(chunk), *parts.directives, *self._sums(chunk)]

    def _queries(self) -> list[Directive]:
        """Rows of all heads in order, at known distances; otherwise each would take an address register."""
        query = StageSchedule(self.parts["query"])
        *outer, head, row, size = query.axes
        order = query.reorder_storage(size, head, row, *reversed(outer)).directives
        return [*self._along(self.parts["query"]), *order]

    def _along(self, stage: TeStage, *, root: bool = True) -> list[Directive]:
        """Vectorizes a stage along its last axis."""
        extent, s = stage.axes[-1].extent, StageSchedule(stage)
        if root:
            s.compute_root()
        width = self.machine.lanes(32, extent)
        return s.vectorize(s.axes[-1], width, row_tail(extent, width)).directives

    def _logits(self, at: Level) -> tuple[list[Directive], Loop, Loop]:
        """The logits of a chunk, with their loops over heads and over vectors of keys."""
        p = StageSchedule(self.parts["logits"]).compute_at(*at)
        chunk, *outer, head, row, key = p.axes
        block, lane = p.split(key, self.lanes)
        loops = [head, block]
        if not self.together:  # the keys of a head are contiguous: a chunk of them is read for all heads that share it
            shared, head = p.split(head, self.group, into="pg")
            loops = [head, block, shared]
        p.reorder(lane, *loops, row, *reversed(outer), chunk).vectorize(lane)
        return p.directives, head, block

    def _scores(self, at_head: Loop, at_block: Loop) -> list[Directive]:
        s, logits = self.parts["scores"], self.parts["logits"].name
        whole = StageSchedule(s)
        *outer, head, row, key = whole.axes
        if self.made.dot is None or self.made.tile is None:
            whole.compute_at(logits, at_head).bound_extent(key, self.lanes).vectorize(key)
            update = StageSchedule(s, update=1)
            (r,) = update.reduced
            update.reorder(r, key, head, row, *reversed(outer)).atomic().vectorize(r)
            return [*whole.directives, *update.directives]
        keys, heads = self._tile_of_keys(s)
        whole.compute_at(logits, at_block).bound_extent(key, self.lanes)
        tiles, lane = whole.split(key, keys)
        loops = [tiles]
        if self.together:  # the heads of one key, then those of the next
            groups, head = whole.split(head, heads, into="pg")
            loops = [groups, tiles]
        else:
            whole.bound_extent(head, heads)
        whole.reorder(lane, head, *loops, row, *reversed(outer)).vectorize(lane).unroll(head)
        at = (s.name, loops[0])
        return [*whole.directives, *self._tile_of_scores(self.made.dot, self.made.tile, at, (keys, heads))]

    def _tile_of_keys(self, scores: TeStage) -> tuple[int, int]:
        """Keys and heads whose scores are computed at once, with their sums in registers.

        Token-major keys are read in order, key by key. Queries are read again for each key, and that is still faster
        with 1, 4 and 8 heads per head of keys, in f32 and f16, on AVX2 and AVX-512.
        """
        sums = self.machine.accumulators
        if self.together:
            shared = _divisors(fixed(scores.axes[-3]) // self.group)
            return 1, self.group * max(n for n in shared if n == 1 or n * self.group <= sums)
        fits = (n for n in (_MOST_KEYS, 2, 1) if self.lanes % n == 0 and n * self.group <= sums)
        return next(fits, 1), self.group

    def _tile_of_scores(self, dot: TeStage, tile: TeStage, at: Level, size: tuple[int, int]) -> list[Directive]:
        """Scores of some keys and heads: sums in vector lanes, added pairwise."""
        start, update = StageSchedule(tile), StageSchedule(tile, update=1)
        (*outer, head, row, key), (lane,), (keys, heads) = start.axes, update.reduced, size
        start.compute_at(*at).bound_extent(key, keys).bound_extent(head, heads)
        made = start.vectorize(key).vectorize(head).directives
        update.reorder(lane, key, head, row, *reversed(outer)).atomic()
        made += update.vectorize(lane).vectorize(key).vectorize(head).directives
        start, update = StageSchedule(dot), StageSchedule(dot, update=1)
        (*outer, head, row, key, lane), (q,) = start.axes, update.reduced
        start.compute_at(*at).bound_extent(key, keys).bound_extent(head, heads)
        made += start.vectorize(lane).unroll(key).unroll(head).directives
        group, shared = update.split(head, self.group, into="gs")
        update.reorder(lane, shared, q, group, key, row, *reversed(outer)).vectorize(lane)
        update.unroll(shared).unroll(q).unroll(group).unroll(key)
        return [*made, *update.directives, *self._ahead("keys", dot)]

    def _softmax(self, at: Level) -> list[Directive]:
        """Schedules the softmax of a chunk, and the combination of chunks."""
        top, total, e = (self.parts[x] for x in ("top", "total", "exp"))
        p = StageSchedule(e).compute_at(*at)
        made = p.vectorize(p.axes[-1], self.lanes).directives + self._lane_by_lane(self.made.top_part, at)
        most = StageSchedule(self.made.most).compute_at(*at)
        made += most.directives
        for s in self.made.halves:
            half = StageSchedule(s).compute_at(most.name, most.axes[-1])
            made += half.vectorize(half.axes[-1]).directives
        made += self._lane_by_lane(self.made.total_part, at)
        for s in (top, self.f.by_role.get(PEAK), total):
            made += [] if s is None else StageSchedule(s).compute_root().directives
        heads = self.made.weight.axes[-2].extent
        width = self.machine.lanes(32, heads)
        p = StageSchedule(self.made.weight).compute_root()
        made += p.vectorize(p.axes[-2], width, row_tail(heads, width)).directives
        update = StageSchedule(top, update=1)
        made += update.reorder(*reversed(update.axes), *update.reduced).directives
        whole, update = StageSchedule(self.made.total_lanes), StageSchedule(self.made.total_lanes, update=1)
        *rows, lane = whole.axes
        made += whole.compute_root().vectorize(lane).directives
        return [*made, *update.reorder(lane, *reversed(rows), *update.reduced).vectorize(lane).directives]

    @staticmethod
    def _lane_by_lane(s: TeStage, at: Level) -> list[Directive]:
        """Schedules the lane-wise part of each chunk, in its loops."""
        start, update = StageSchedule(s).compute_at(*at), StageSchedule(s, update=1)
        *rows, lane = start.axes
        update.reorder(lane, *update.reduced, *reversed(rows)).vectorize(lane)
        return [*start.vectorize(lane).directives, *update.directives]

    def _parts(self, p: StageSchedule) -> Loop:
        """Schedules the results of chunks.

        Returns the task loop, each iteration of which computes one chunk: of all heads, or of those that share a head
        of keys.
        """
        chunk, *outer, head, row, last = p.axes
        task, size = chunk, fixed(self.made.parts.axes[-1])
        vectors, lane = p.split(last, self.width)
        if not self.together:  # a head's chunks are contiguous: a prefetch past the end of one is for the next
            shared, group = p.split(head, self.group, into="pg")
            p.reorder(lane, vectors, row, group, chunk, shared, *reversed(outer))
            for loop in (shared, *reversed(outer)):
                task = p.fuse(task, loop, f"{task}t")
        p.vectorize(lane).parallel(task)
        if size <= _UNROLLED * self.width:  # then each vector is of one kind
            p.unroll(vectors)
        return task

    def _sums(self, at: Level) -> list[Directive]:
        near, some = self.made.near, self.made.some
        whole, _ = self._added(self.parts["sum"], StageSchedule(self.parts["sum"]).compute_root())
        sums, tiles = self._added(some, StageSchedule(some).compute_at(*at))
        return [*whole, *sums, *self._tile(near, (some.name, tiles)), *self._ahead("values", near)]

    def _ahead(self, role: str, reader: TeStage) -> list[Directive]:
        """The next rows of keys or values, prefetched while a stage reads those of a head."""
        cache = self.caches.get(role)
        if cache is None or self._foreseen(cache):
            return []
        near, far = (_AHEAD_TOGETHER if self.together else _AHEAD_APART)[role]
        return StageSchedule(reader).fetch_beyond(cache.param.name, near, far).directives

    def _foreseen(self, cache: Cache) -> bool:
        """Whether the hardware prefetcher keeps up with the reads."""
        return self.machine.hw_prefetches_rows and not self.together and self._work(cache) < _MUCH

    def _work(self, cache: Cache) -> int:
        """Vector multiply-adds per cache line."""
        return self.group * _LINE // cache.param.type.dtype.itemsize // self.lanes

    def _added(self, stage: TeStage, start: StageSchedule) -> tuple[list[Directive], Loop]:
        """Sums of sums: into memory in order, a vector at a time.

        Also returns the loop over tiles of a row.
        """
        update = StageSchedule(stage, update=1)
        (*outer, head, row, d), (x,) = update.axes, update.reduced
        groups, head = update.split(head, self.heads, into="pg")
        tiles, within = update.split(d, self.tile, into="ot")
        vectors, lane = update.split(within, self.width, into="uv", root=d)
        loops = [groups, row, x] if self.together else [groups, x, row]
        update.reorder(lane, vectors, head, tiles, *loops, *reversed(outer))
        update.vectorize(lane).unroll(vectors).unroll(head)
        start.vectorize(start.axes[-1], self.width)
        return [*start.directives, *update.directives], tiles

    def _tile(self, acc: TeStage, at: Level) -> list[Directive]:
        """A register tile of sums for heads that share values, at the loop over tiles."""
        start, update = StageSchedule(acc).compute_at(*at), StageSchedule(acc, update=1)
        (*before, head, row, e), (r,) = start.axes, update.reduced
        start.bound_extent(head, self.heads).bound_extent(e, self.tile)
        vectors, lane = start.split(e, self.width, into="uv")
        start.vectorize(lane).unroll(vectors).unroll(head)
        vectors, lane = update.split(e, self.width, into="uv")
        update.reorder(lane, vectors, head, r, row, *reversed(before)).vectorize(lane).unroll(vectors)
        return [*start.directives, *update.unroll(head).directives]
