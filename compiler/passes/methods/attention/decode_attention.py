"""A second schedule of attention, for a few rows of queries: keys and values are read where they are, once for all the heads
that share them and in the order in which a cache holds them, and nothing is packed. That is a step of a decoder, whose time
is that of reading its cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from occ.compiler.ir.dim import Dim, lower
from occ.compiler.ir.te.expr import Binary, Const, binary, where, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.roles import ATTENTION, HEADS, PEAK
from occ.compiler.ir.te.schedule import AtMost, Directive, Scheduler
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.methods.attention.kv_layout import Cache, all_together, caches_of
from occ.compiler.passes.methods.attention.schedule import attention
from occ.compiler.passes.methods.attention.split_kv import APART, FOUR, TOGETHER, NotInChunks, in_chunks
from occ.compiler.passes.rules.schedule_rule import Declined, made_by
from occ.compiler.passes.schedule.loops import row_tail
from occ.compiler.passes.schedule.stage_facts import extent_of, fixed, stages_by_role
from occ.compiler.passes.schedule.variants.variant import copied, reading
from occ.compiler.targets.machine import Machine

_FEW = 4  # rows that are computed one at a time: packing keys and values takes as long as reading them that often
# While a row is read, what lies so many bytes beyond it is fetched into the nearest cache, and into the next one. Share of a plain
# read of 4,096 keys, 32 heads on 8 of 64 in f32. On Zen 5, keys of a head apart from others, 0.60 without, 0.89 with 8 KB into the
# nearest cache, 0.57 with 32 KB into the next. Zen 4 foresees those that lie apart: 0.84 to 0.90 without, 0.73 with both; of size
# 128, 0.75 to 0.81 and 0.60. Where lines are used for more multiply-adds than those, they come too late without: heads of f16 0.63
# without, 0.66 with both, 64 on 8 in f32 0.63 and 0.66. Where all heads of a key lie together, of 16,384 keys on Zen 4, 0.35 with
# nothing for the values, 0.60 with nothing for the keys, 0.72 to 0.74 with 8 KB for both, 0.75 to 0.76 so; 8 heads on 8: 0.71 and 0.74.
_AHEAD_APART = {"keys": (8 << 10, 32 << 10), "values": (8 << 10, 32 << 10)}
_AHEAD_TOGETHER = {"keys": (4 << 10, 16 << 10), "values": (4 << 10, 32 << 10)}
_MUCH = 8  # multiply-adds of vectors for each line of a cache: with more, time is theirs
_SHORT = 64  # keys of a constant number that are left to the schedule for many rows
_LINE = 64  # bytes of a line of a cache
_UNROLLED = 40  # vectors of what a chunk gives
_SUMS = 16  # vectors of sums that are held in registers
_MOST_KEYS = 4  # whose scores are made at once: with 16 for one head each, what is fetched ahead at once is too much


def decode_variant(f: TeFunc, machine: Machine) -> TeFunc | Declined:
    """Attention whose queries may be few: a second schedule, that of `decode_attention`, for 4 queries or less.

    `out[i<N, d] = sum[i, d] / total[i]` --> `out[i<N, d] = N <= 4 ? sumfew[i, d] / totalfew[i] : sum[i, d] / total[i]`
    """
    out = f.by_role.get(ATTENTION["out"])
    found = _copies(f, machine) if out is not None and made_by(f, out.name) == attention.__name__ else None
    if found is None or isinstance(found.queries, int) or (test := AtMost(found.queries, _FEW).simplest).always:
        return Declined(f"it is no `attend` of a symbolic number of queries that may be {_FEW} or less")
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

    It has 4 queries or less, and 64 keys or more.
    """
    found = _copies(f, machine)
    if found is None or not isinstance(found.queries, int) or (isinstance(found.keys, int) and found.keys < _SHORT):
        return Declined(f"it is no `attend` of {_FEW} queries or less and {_SHORT} keys or more")
    kept = [s for s in f.stages if s.name not in found.names and s is not found.out]
    return replace(f, stages=(*kept, *found.stages, found.again), schedule=tuple(found.schedule))


@dataclass(frozen=True)
class _Copies:
    """The stages of attention for a few queries.

    Attributes:
        queries, keys: how many there are.
        names: of the stages that have copies.
        stages: the copies.
        out, again: the last stage, and as it reads the copies.
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
    """Copies of the stages for a few queries; None if it is no attention, always has more, or they have no chunks."""
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
    together = all_together(caches) and isinstance(heads, int)  # tiles of all the heads of a key are of a constant size
    try:
        made = in_chunks([copied(s, names) for s in mine], machine.lanes(32), TOGETHER if together else APART)
    except NotInChunks:
        return None
    again = replace(out, expr=reading(out.expr, names))
    alone = replace(f, stages=(*(s for s in f.stages if isinstance(s, TeStage) and s.role == HEADS), *made, again))
    return _Copies(queries, keys, names, made, out, again, _Few(alone, machine, caches, together).directives())


def _needed(f: TeFunc, out: TeStage) -> list[TeStage]:
    """The stages that the last one reads, but for those that only say where keys and values are."""
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


class _Few:
    """The schedule of the copies: scores, their softmax and the product of a chunk of keys, then of the next."""

    def __init__(self, f: TeFunc, machine: Machine, caches: dict[str, Cache], together: bool) -> None:
        parts = stages_by_role(f, ATTENTION)
        assert parts is not None, "the copies have the roles of what they are copies of"
        self.f, self.parts, self.machine = f, parts, machine
        self.caches, self.together = caches, together
        self.lanes = machine.lanes(32)
        self.group = self._group()
        # Of a row of values: what divides it, so that tiles of registers never reach beyond it.
        size = fixed(parts["sum"].axes[-1])
        self.width = gcd(size, self.lanes)
        self.heads, vectors = self._tile_of_values(size // self.width)
        self.tile = self.width * vectors
        parts = self._named(f"{parts['sum'].name}parts")
        # The loop of tasks, in which all of one is computed: a chunk of all heads, or of those that share a head of keys.
        self.tasks = [parts.axes[0].name] if self.together else self._tasks(parts)
        self.chunk = (parts.name, self.tasks[-1])

    def _tile_of_values(self, row: int) -> tuple[int, int]:
        """Heads that share values and vectors of a row of so many: their sums are held in registers, enough of them that none waits
        for the last. Rows are read whole where that can be, one after the other as they lie in memory, if need be for some heads
        and then for others.
        """
        tiles = [(h, v) for h in _divisors(self.group) for v in _divisors(row) if h * v <= _SUMS]
        return max(tiles, key=lambda tile: (tile[0] * tile[1] >= _SUMS // 2, tile[1], tile[0]))

    @staticmethod
    def _tasks(parts: TeStage) -> list[str]:
        """Names of the loops that chunks become with heads, then with each axis before those."""
        return [f"{parts.axes[0].name}{'t' * (k + 1)}" for k in range(len(parts.axes) - 3)]

    def _group(self) -> int:
        """Heads of queries that share one of keys: what `repeat_heads` divides their number by."""
        for s in self.f.stages:
            if isinstance(s, TeStage) and s.role == HEADS:
                divisors = [n.rhs for n in walk(s.expr) if isinstance(n, Binary) and n.op == "floordiv"]
                return next((int(n.value.real) for n in divisors if isinstance(n, Const)), 1)
        return 1

    def directives(self) -> list[Directive]:
        made = self._along(self.parts["out"], root=False) + self._queries()
        return [*made, *self._logits(), *self._scores(), *self._softmax(), *self._sums()]

    def _queries(self) -> list[Directive]:
        """Rows of all heads one after the other, at distances that are known: each would take a register of addresses else."""
        query = self.parts["query"]
        *outer, head, row, size = (a.name for a in query.axes)
        order = Scheduler(query.name).reorder_storage(size, head, row, *reversed(outer)).directives
        return [*self._along(query), *order]

    def _width(self, s: TeStage, axis: str) -> int:
        return self.machine.lanes(32, extent_of(s, axis))

    def _along(self, stage: TeStage, *, root: bool = True) -> list[Directive]:
        """In vectors along the last axis."""
        last, s = stage.axes[-1], Scheduler(stage.name)
        if root:
            s.compute_root()
        width = self._width(stage, last.name)
        return s.vectorize(last.name, width, row_tail(last.extent, width)).directives

    def _logits(self) -> list[Directive]:
        s = self.parts["logits"]
        chunk, *outer, head, row, key = (a.name for a in s.axes)
        self.head, self.block = head, f"{key}o"
        p = Scheduler(s.name).compute_at(*self.chunk).split(key, self.block, f"{key}i", self.lanes)
        loops = [head, self.block]
        if not self.together:  # the keys of a head follow each other: a chunk of them is read for all that share it
            p.split(head, f"{head}p", f"{head}g", self.group)
            self.head = f"{head}g"
            loops = [self.head, self.block, f"{head}p"]
        p.reorder(f"{key}i", *loops, row, *reversed(outer), chunk).vectorize(f"{key}i")
        return p.directives

    def _scores(self) -> list[Directive]:
        s, logits = self.parts["scores"], self.parts["logits"].name
        chunk, *outer, head, row, key = (a.name for a in s.axes)
        outer.insert(0, chunk)
        named = {x.name: x for x in self.f.stages}
        dot, tile = (named.get(f"{s.name}{x}") for x in ("dot", "tile"))
        if not isinstance(dot, TeStage) or not isinstance(tile, TeStage):
            made = Scheduler(s.name).compute_at(logits, self.head).bound_extent(key, self.lanes).vectorize(key)
            (r,) = (a.name for a in reduce_axes(s.expr))
            update = Scheduler(s.name, update=True).reorder(r, key, head, row, *reversed(outer)).atomic().vectorize(r)
            return [*made.directives, *update.directives]
        keys, heads = self._tile_of_keys(s)
        whole = Scheduler(s.name).compute_at(logits, self.block).bound_extent(key, self.lanes)
        whole.split(key, f"{key}o", f"{key}i", keys)
        inner, loops = head, [f"{key}o"]
        if self.together:  # the heads of one key, then those of the next
            inner, loops = f"{head}g", [f"{head}p", f"{key}o"]
            whole.split(head, f"{head}p", inner, heads)
        else:
            whole.bound_extent(head, heads)
        whole.reorder(f"{key}i", inner, *loops, row, *reversed(outer)).vectorize(f"{key}i").unroll(inner)
        return [*whole.directives, *self._tile_of_scores(dot, tile, (s.name, loops[0]), (keys, heads))]

    def _tile_of_keys(self, scores: TeStage) -> tuple[int, int]:
        """Keys and heads whose scores are made at once. Their sums are held in registers.

        Where all heads of a key lie together, they are read one after the other, key by key: queries are read again for each,
        and still that is better for 1, 4 and 8 heads on each of keys, in f32 and f16, on AVX2 and AVX-512.
        """
        sums = self.machine.accumulators
        if self.together:
            shared = _divisors(fixed(scores.axes[-3]) // self.group)
            return 1, self.group * max(n for n in shared if n == 1 or n * self.group <= sums)
        fits = (n for n in (_MOST_KEYS, 2, 1) if self.lanes % n == 0 and n * self.group <= sums)
        return next(fits, 1), self.group

    def _tile_of_scores(
        self, dot: TeStage, tile: TeStage, at: tuple[str, str], size: tuple[int, int]
    ) -> list[Directive]:
        """Of some keys and heads: sums in the lanes of registers, then those of all lanes at once, pair by pair."""
        *outer, head, row, key = (a.name for a in tile.axes)
        (q,), (lane,) = (tuple(a.name for a in reduce_axes(s.expr)) for s in (dot, tile))
        keys, heads = size

        def start(s: TeStage) -> Scheduler:
            return Scheduler(s.name).compute_at(*at).bound_extent(key, keys).bound_extent(head, heads)

        made = start(tile).vectorize(key).vectorize(head).directives
        update = Scheduler(tile.name, update=True).reorder(lane, key, head, row, *reversed(outer)).atomic()
        made += update.vectorize(lane).vectorize(key).vectorize(head).directives
        lane, shared, group = dot.axes[-1].name, f"{head}s", f"{head}g"
        made += start(dot).vectorize(lane).unroll(key).unroll(head).directives
        update = Scheduler(dot.name, update=True).split(head, group, shared, self.group)
        update.reorder(lane, shared, q, group, key, row, *reversed(outer)).vectorize(lane)
        update.unroll(shared).unroll(q).unroll(group).unroll(key)
        return [*made, *update.directives, *self._ahead("keys", dot)]

    def _softmax(self) -> list[Directive]:
        """Of a chunk, and of all chunks."""
        top, total, e = (self.parts[x] for x in ("top", "total", "exp"))
        made = Scheduler(e.name).compute_at(*self.chunk).vectorize(e.axes[-1].name, self.lanes).directives
        made += self._lane_by_lane(self._named(f"{top.name}part"))
        most = self._named(f"{top.name}most")
        row = most.axes[-1].name
        made += Scheduler(most.name).compute_at(*self.chunk).directives
        lanes = self.lanes // 2
        while lanes >= FOUR:
            half = self._named(f"{top.name}{lanes}")
            made += Scheduler(half.name).compute_at(most.name, row).vectorize(half.axes[-1].name).directives
            lanes //= 2
        made += self._lane_by_lane(self._named(f"{total.name}part"))
        for s in (top, self.f.by_role.get(PEAK), total):
            made += [] if s is None else Scheduler(s.name).compute_root().directives
        weight = self._named(f"{top.name}weight")
        head = weight.axes[-2]
        width = self._width(weight, head.name)
        p = Scheduler(weight.name).compute_root().vectorize(head.name, width, row_tail(head.extent, width))
        made += p.directives
        over, *rows = (a.name for a in (*reduce_axes(top.expr), *reversed(top.axes)))
        made += Scheduler(top.name, update=True).reorder(*rows, over).directives
        whole = self._named(f"{total.name}lanes")
        (over,), (*rows, lane) = (a.name for a in reduce_axes(whole.expr)), (a.name for a in whole.axes)
        made += Scheduler(whole.name).compute_root().vectorize(lane).directives
        update = Scheduler(whole.name, update=True).reorder(lane, *reversed(rows), over)
        return [*made, *update.vectorize(lane).directives]

    def _lane_by_lane(self, s: TeStage) -> list[Directive]:
        """Of each chunk, in its loops."""
        (*rows, lane), (block,) = (a.name for a in s.axes), (a.name for a in reduce_axes(s.expr))
        update = Scheduler(s.name, update=True).reorder(lane, block, *reversed(rows)).vectorize(lane)
        return [*Scheduler(s.name).compute_at(*self.chunk).vectorize(lane).directives, *update.directives]

    def _sums(self) -> list[Directive]:
        near, some, parts = (self._named(f"{self.parts['sum'].name}{x}") for x in ("near", "some", "parts"))
        last = parts.axes[-1]
        p = Scheduler(parts.name).compute_root().split(last.name, f"{last.name}o", f"{last.name}i", self.width)
        if not self.together:  # the chunks of a head follow each other: what is fetched beyond one belongs to the next
            chunk, *outer, head, row, _ = (a.name for a in parts.axes)
            loops = [f"{head}p", *reversed(outer)]
            p.split(head, f"{head}p", f"{head}g", self.group)
            p.reorder(f"{last.name}i", f"{last.name}o", row, f"{head}g", chunk, *loops)
            for inner, loop, task in zip((chunk, *self.tasks), loops, self.tasks, strict=False):
                p.fuse(inner, loop, task)
        p.vectorize(f"{last.name}i").parallel(self.chunk[1])
        if fixed(last) <= _UNROLLED * self.width:  # each vector is of one kind then
            p.unroll(f"{last.name}o")
        made = p.directives + self._added(self.parts["sum"]) + self._added(some, at=self.chunk)
        return [*made, *self._tile(near, some), *self._ahead("values", near)]

    def _ahead(self, role: str, reader: TeStage) -> list[Directive]:
        """The rows of keys or values that come next, fetched while a stage reads those of a head."""
        cache = self.caches.get(role)
        if cache is None or self._foreseen(cache):
            return []
        near, far = (_AHEAD_TOGETHER if self.together else _AHEAD_APART)[role]
        return Scheduler(reader.name).fetch_beyond(cache.param.name, near, far).directives

    def _foreseen(self, cache: Cache) -> bool:
        """Whether the processor fetches rows by itself as fast as they are used."""
        return self.machine.foresees_rows and not self.together and self._work(cache) < _MUCH

    def _work(self, cache: Cache) -> int:
        """Multiply-adds of vectors for each line of a cache."""
        return self.group * _LINE // cache.param.type.dtype.itemsize // self.lanes

    def _named(self, name: str) -> TeStage:
        found = self.f.stage(name)
        assert isinstance(found, TeStage)
        return found

    def _vectors(self, s: Scheduler, stage: TeStage) -> list[Directive]:
        return s.vectorize(stage.axes[-1].name, self.width).directives

    def _added(self, stage: TeStage, at: tuple[str, str] | None = None) -> list[Directive]:
        """Sums of sums: one after the other into memory, each a vector at a time."""
        start = Scheduler(stage.name).compute_at(*at) if at else Scheduler(stage.name).compute_root()
        *outer, head, row, d = (a.name for a in stage.axes)
        (x,) = (a.name for a in reduce_axes(stage.expr))
        update = Scheduler(stage.name, update=True).split(head, f"{head}p", f"{head}g", self.heads)
        update.split(d, f"{d}o", f"{d}t", self.tile).split(f"{d}t", f"{d}u", f"{d}v", self.width)
        loops = [f"{head}p", row, x] if self.together else [f"{head}p", x, row]
        update.reorder(f"{d}v", f"{d}u", f"{head}g", f"{d}o", *loops, *reversed(outer))
        update.vectorize(f"{d}v").unroll(f"{d}u").unroll(f"{head}g")
        return [*self._vectors(start, stage), *update.directives]

    def _tile(self, acc: TeStage, reader: TeStage) -> list[Directive]:
        """A tile of sums in registers for the heads that share values, at the loops of `_added`."""
        return self._registers(acc, Scheduler(acc.name).compute_at(reader.name, f"{reader.axes[-1].name}o"))

    def _registers(self, acc: TeStage, start: Scheduler) -> list[Directive]:
        *before, head, row, e = (a.name for a in acc.axes)
        start.bound_extent(head, self.heads).bound_extent(e, self.tile)
        update = Scheduler(acc.name, update=True)
        (r,) = (a.name for a in reduce_axes(acc.expr))
        for s in (start, update):
            s.split(e, f"{e}u", f"{e}v", self.width)
        start.vectorize(f"{e}v").unroll(f"{e}u").unroll(head)
        update.reorder(f"{e}v", f"{e}u", head, r, row, *reversed(before)).vectorize(f"{e}v").unroll(f"{e}u")
        return [*start.directives, *update.unroll(head).directives]
