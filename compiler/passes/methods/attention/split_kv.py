"""Attention with keys and values split into chunks (flash-decoding), each with its own softmax.

Keys and values of a chunk are read in order, and its scores stay in cache. With whole rows, as long as the cache,
scores would be a page or more apart, and each store would wait for memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.te.expr import Axis, Binary, Expr, Index, Load, Reduce, binary, literal, minimum, where, wrap
from occ.compiler.ir.te.function import TeStage, position
from occ.compiler.ir.te.functions import decay
from occ.compiler.ir.te.roles import ATTENTION, KEYS_OF_CHUNK, PEAK
from occ.compiler.ir.te.walks import replace_indices, transform
from occ.runtime.dataclass import dataclass

_STEP = 16  # keys per chunk are a multiple of this, or of the number whose values are added in registers
FOUR = 4  # lanes up to which a maximum is taken one by one


class NotInChunks(Exception):
    """A stage reads another in a way that cannot be chunked."""


@dataclass(frozen=True)
class Chunks:
    """How keys are split. Each chunk costs some microseconds, and its result goes through memory.

    Attributes:
        most: maximum number of keys in a chunk.
        near: keys whose values are added in registers, head after head.
    """

    most: int
    near: int


# Throughput relative to a plain read of 16,384 keys, 32 heads on 8 of 64, one thread of Zen 5: head-major f32 with 256,
# 512 and 1,024 keys 0.71, 0.78, 0.81, with 32 near keys 0.84; token-major 0.62, 0.67, 0.69. There threads share only
# chunks, and rows of near keys are read side by side, which hardware prefetchers recognise: with all keys of a head at
# once every row would skip the other heads, and 16 are slower than 8.
APART, TOGETHER = Chunks(1024, 32), Chunks(512, 8)


@dataclass(frozen=True)
class _Keys:
    """One stage's key axis, split into chunks of equal size.

    There is always one chunk more than needed, so that threads can share a short cache too, and none exceeds the
    maximum. Their size depends on the number of keys in blocks of 32 or 64, so that keys are summed in the same order
    for each of a few tokens, alone or in one run (see `occ.generation.names.KEY_BLOCK`).

    Attributes:
        extent: the number of keys.
        chunk, within: the axes that replace it.
    """

    extent: Dim
    chunk: Axis
    within: Axis

    @classmethod
    def of(cls, axis: Axis, how: Chunks) -> _Keys:
        """The chunked axis for an axis of keys."""
        step = max(_STEP, how.near)
        pairs = ceildiv(axis.extent, 2 * step)
        chunks = pairs // (how.most // (2 * step)) + 2
        size = step * ceildiv(2 * pairs, chunks)
        return cls(axis.extent, Axis(f"{axis.name}c", chunks), Axis(f"{axis.name}q", size))

    @property
    def index(self) -> Expr:
        """The key's index; past the last one in the last chunks."""
        return Index(self.chunk.name) * wrap(self.within.extent) + Index(self.within.name)

    @property
    def clamped(self) -> Expr:
        """The key's index from chunk and position, clamped to the last key."""
        return self.index if self.is_whole else minimum(self.index, wrap(self.extent - 1))

    @property
    def is_whole(self) -> bool:
        """Whether all positions are valid keys."""
        return self.extent == self.chunk.extent * self.within.extent

    @property
    def exists(self) -> Expr:
        """Whether a position is a valid key."""
        return binary("lt", self.index, wrap(self.extent))


@dataclass(frozen=True)
class ChunkStages:
    """The stages of attention with chunked keys.

    Attributes:
        stages: all of them, in order of computation.
        dot, tile: sums in lanes and tiles of scores; None if the depth is not a multiple of a vector.
        top_part, halves, most: a chunk's maximum, in lanes, in ever fewer lanes, and as one number.
        total_part: the total of a chunk in lanes.
        near, some, parts: sums of values over near keys, over a chunk, and the chunk's results.
        weight, total_lanes: the weights of chunks, and the overall total in lanes.
    """

    stages: list[TeStage]
    dot: TeStage | None
    tile: TeStage | None
    top_part: TeStage
    halves: tuple[TeStage, ...]
    most: TeStage
    total_part: TeStage
    near: TeStage
    some: TeStage
    parts: TeStage
    weight: TeStage
    total_lanes: TeStage


def in_chunks(stages: list[TeStage], lanes: int, how: Chunks) -> ChunkStages:
    """Stages of attention with chunked keys.

    `scores[h, i, k]` --> `scores[c, h, i, q]` for key `c*size + q`, and so for all elementwise stages up to the
    exponentials, which are relative to the chunk's maximum. Logits past the last key are the lowest value, so their
    exponentials are 0. A chunk's results are sums of values, the total and the maximum, in order in `parts`; the final
    result is their sum with the weights `decay(maximum - top)`.

    Args:
        stages: of attention; the last ones with the roles `top`, `exp`, `total` and `sum` compute the whole.
        lanes: of a vector.
        how: how keys are split.

    Raises:
        NotInChunks: a stage reads another one in another way.
    """
    role = {s.role: s for s in stages if s.role}
    e = role[ATTENTION["exp"]]
    last = (ATTENTION["top"], PEAK, ATTENTION["total"], ATTENTION["sum"])
    chunked = {s.name for s in stages if len(s.axes) == len(e.axes) and _has_keys(s, e)}
    chunked -= {s.name for s in stages if s.role in (*last, ATTENTION["query"])}
    made: dict[str, list[TeStage]] = {}
    for s in stages:
        if s.role in last:
            made[s.name] = _Whole(role, chunked, lanes, how).of(s) if s is role[s.role] else []
        elif s.name in chunked:
            made[s.name] = _chunk(_of_the_chunk(s, role, how) if s is e else s, chunked, lanes, how)
        else:
            made[s.name] = [s]
    scores, top, total, product = (made[role[ATTENTION[x]].name] for x in ("scores", "top", "total", "sum"))
    (dot, tile), (top_part, *halves, most) = scores[:2] if len(scores) > 1 else (None, None), top
    near, some, parts, *_, weight, total_lanes, _, _ = product
    every = [s for group in made.values() for s in group]
    return ChunkStages(
        every, dot, tile, top_part, tuple(halves), most, total[0], near, some, parts, weight, total_lanes
    )


def _has_keys(s: TeStage, e: TeStage) -> bool:
    """Whether the last axis of a stage is the keys and the others are its rows."""
    return [a.extent for a in s.axes] == [a.extent for a in e.axes]


def _read(e: Expr, chunked: set[str], axis: str, keys: _Keys, at: Expr) -> Expr:
    """An expression of a key in terms of its chunk and position.

    Other chunked stages are read at the same position.
    """

    def change(n: Expr) -> Expr | None:
        if not isinstance(n, Load) or n.source not in chunked:
            return None
        if not isinstance(n.index[-1], Index) or n.index[-1].name != axis:
            raise NotInChunks(n.source)
        return Load(n.source, (Index(keys.chunk.name), *n.index[:-1], Index(keys.within.name)), n.dtype)

    return replace_indices(transform(e, change), {axis: at})


def _chunk(s: TeStage, chunked: set[str], lanes: int, how: Chunks) -> list[TeStage]:
    """A stage whose last axis is the keys."""
    *outer, last = s.axes
    keys = _Keys.of(last, how)
    made = replace(
        s, axes=(keys.chunk, *outer, keys.within), expr=_read(s.expr, chunked, last.name, keys, keys.clamped)
    )
    if s.role == ATTENTION["scores"]:
        return _in_tiles(made, lanes)
    if s.role == ATTENTION["logits"]:
        return [replace(made, expr=where(keys.exists, made.expr, literal(s.dtype.lowest, s.dtype)))]
    return [made]


def _in_tiles(s: TeStage, lanes: int) -> list[TeStage]:
    """Scores as sums in vector lanes, a tile of scores at once.

    `scores[i, k] = sum[r<64](f(r))` --> `dot[i, k, l<16] = sum[q<4](f(16*q + l))`,
    `tile[i, k] = sum[m<16](dot[i, k, m])`, `scores[i, k] = tile[i, k]`
    """
    r, at = s.expr, position(s.axes)
    assert isinstance(r, Reduce)
    (depth,) = r.axes
    if not isinstance(depth.extent, int) or depth.extent % lanes:
        return [s]
    each, lane, over = (
        Axis(f"{depth.name}{x}", n) for x, n in (("q", depth.extent // lanes), ("l", lanes), ("m", lanes))
    )
    body = replace_indices(r.body, {depth.name: Index(each.name) * lanes + Index(lane.name)})
    products = Reduce("sum", (each,), body, s.dtype)
    dot = replace(s, name=f"{s.name}dot", axes=(*s.axes, lane), expr=products, role=KEYS_OF_CHUNK)
    total = Reduce("sum", (over,), Load(dot.name, (*at, Index(over.name)), s.dtype), s.dtype)
    tile = replace(s, name=f"{s.name}tile", expr=total, role="")
    return [dot, tile, replace(s, expr=Load(tile.name, at, s.dtype))]


def _of_the_chunk(e: TeStage, role: dict[str, TeStage], how: Chunks) -> TeStage:
    """Exponentials relative to the chunk's maximum instead of the overall maximum.

    0 where that is infinite.
    """
    top = role[ATTENTION["top"]]
    peaks = {s.name for s in (top, role.get(PEAK)) if s is not None}
    low, zero = literal(top.dtype.lowest, top.dtype), literal(0, top.dtype)

    def change(n: Expr) -> Expr | None:
        if not isinstance(n, Load) or n.source not in peaks:
            return None
        most = Load(f"{top.name}most", (Index(_Keys.of(e.axes[-1], how).chunk.name), *n.index), n.dtype)
        return where(binary("eq", most, low), zero, most)

    return replace(e, expr=transform(e.expr, change))


@dataclass(frozen=True)
class _Whole:
    """The combination of chunks.

    Attributes:
        role: the stages of attention, by role.
        chunked: names of the chunked stages.
        lanes: of a vector.
        how: how keys are split.
    """

    role: dict[str, TeStage]
    chunked: set[str]
    lanes: int
    how: Chunks

    def of(self, s: TeStage) -> list[TeStage]:
        """The stages that replace a maximum, a total or the product with the values."""
        if s.role == ATTENTION["top"]:
            return self._most(s)
        if s.role == ATTENTION["total"]:
            return [self._in_lanes(s, "sum", "exp")]
        return self._product(s) if s.role == ATTENTION["sum"] else []

    def _in_lanes(self, s: TeStage, kind: str, of: str) -> TeStage:
        """`top[i] = max[k](logits[i, k])` --> `part[c, i, l<16] = max[b](logits[c, i, 16*b + l])`, and totals likewise."""
        source = self.role[ATTENTION[of]]
        keys, name = _Keys.of(source.axes[-1], self.how), s.axes[-1].name
        chunk = Axis(f"{name}c", keys.chunk.extent)
        block, lane = Axis(f"{name}b", keys.within.extent // self.lanes), Axis(f"{name}l", self.lanes)
        read = Load(source.name, (*position((chunk, *s.axes)), _at(block, self.lanes, lane)), s.dtype)
        return replace(
            s, name=f"{s.name}part", axes=(chunk, *s.axes, lane), expr=Reduce(kind, (block,), read, s.dtype), role=""
        )

    def _most(self, s: TeStage) -> list[TeStage]:
        """`part[c, i, l<16]`, `half[c, i, l<8] = max(part[l], part[l + 8])`, .., `most[c, i] = max(.., ..)`."""
        made = [self._in_lanes(s, "max", "logits")]
        axes, lanes = made[0].axes[:-1], self.lanes
        while lanes > FOUR:
            lanes //= 2
            lane = Axis(f"{s.axes[-1].name}{lanes}", lanes)
            two = [self._read(made[-1], axes, Index(lane.name) + k) for k in (0, lanes)]
            made.append(replace(s, name=f"{s.name}{lanes}", axes=(*axes, lane), expr=binary("max", *two), role=""))
        all_lanes = [self._read(made[-1], axes, wrap(k)) for k in range(lanes)]
        most = reduce(lambda a, b: binary("max", a, b), all_lanes)
        return [*made, replace(s, name=f"{s.name}most", axes=axes, expr=most, role="")]

    @staticmethod
    def _read(s: TeStage, axes: tuple[Axis, ...], last: Expr) -> Load:
        return Load(s.name, (*position(axes), last), s.dtype)

    def _product(self, s: TeStage) -> list[TeStage]:
        """`sum[i] = sum[k](f(k))` --> `near[c, b, i] = sum[q<8](f(size*c + 8*b + q))`, `some[c, i] = sum[b](near[c, b, i])`,
        in registers and in cache, `parts[c, i]`, and the whole.

        """
        assert isinstance(s.expr, Reduce)
        (r,), at = s.expr.axes, position(s.axes)
        keys = _Keys.of(r, self.how)
        near_keys = keys.within.extent // self.how.near
        block, each = Axis(f"{r.name}b", near_keys), Axis(f"{r.name}e", near_keys)
        single = Axis(f"{r.name}s", self.how.near)
        body = _read(s.expr.body, self.chunked, r.name, keys, keys.clamped)
        if not keys.is_whole:  # the last value stands in for missing ones, and 0 times it is NaN if it is infinite
            assert isinstance(body, Binary), "exponentials by values"
            body = body.lhs * where(keys.exists, body.rhs, 0.0)
        body = replace_indices(body, {keys.within.name: _at(block, self.how.near, single)})

        def stage(name: str, outer: tuple[Axis, ...], over: Axis, value: Expr) -> TeStage:
            total = Reduce("sum", (over,), value, s.dtype)
            return replace(s, name=f"{s.name}{name}", axes=(*outer, *s.axes), expr=total, role="")

        near = replace(stage("near", (keys.chunk, block), single, body), role=KEYS_OF_CHUNK)
        chunk = Index(keys.chunk.name)
        some = stage("some", (keys.chunk,), each, Load(near.name, (chunk, Index(each.name), *at), s.dtype))
        parts = self._parts(s, some)
        return [near, some, parts, *self._weighted(s, parts)]

    def _parts(self, s: TeStage, some: TeStage) -> TeStage:
        """The partial result of a chunk: its sums, then vectors of its total and its maximum."""
        *outer, last = (Axis(f"{a.name}p", a.extent) for a in some.axes)
        size = s.axes[-1].extent
        assert isinstance(size, int), "the schedule is for sizes that are known"
        d, at, lanes = Index(last.name), position(outer), self.lanes
        sums = Load(some.name, (*at, minimum(d, wrap(size - 1))), s.dtype)
        lane = binary("max", minimum(d - size, wrap(lanes - 1)), wrap(0))
        total = Load(f"{self.role[ATTENTION['total']].name}part", (*at, lane), s.dtype)
        most = Load(f"{self.role[ATTENTION['top']].name}most", at, s.dtype)
        after = where(binary("lt", d, wrap(size + lanes)), total, most)
        axes = (*outer, Axis(last.name, size + 2 * lanes))
        return replace(some, name=f"{s.name}parts", axes=axes, expr=where(binary("lt", d, wrap(size)), sums, after))

    def _weighted(self, s: TeStage, parts: TeStage) -> list[TeStage]:
        """`top[i] = max[c](maximum of c)`, `weight[c, i] = decay(maximum of c - top[i])`, and the sums with it."""
        top, total, size = self.role[ATTENTION["top"]], self.role[ATTENTION["total"]], s.axes[-1].extent
        assert isinstance(size, int)
        peak = self.role.get(PEAK)
        chunk = parts.axes[0]

        def part(over: Axis, axes: tuple[Axis, ...], k: Expr) -> Load:
            return Load(parts.name, (Index(over.name), *position(axes), k), s.dtype)

        def summed(t: TeStage, name: str, axes: tuple[Axis, ...], k: Expr) -> TeStage:
            over = Axis(f"{t.axes[-1].name}x", chunk.extent)
            rows = axes[:-1]
            value = Load(weight.name, (Index(over.name), *position(rows)), s.dtype) * part(over, rows, k)
            return replace(t, name=name, axes=axes, expr=Reduce("sum", (over,), value, s.dtype))

        most = wrap(size + self.lanes)
        over = Axis(f"{top.axes[-1].name}x", chunk.extent)
        made = [replace(top, expr=Reduce("max", (over,), part(over, top.axes, most), s.dtype))]
        made += [] if peak is None else [peak]
        axes = tuple(Axis(f"{a.name}w", a.extent) for a in (chunk, *top.axes))
        highest = Load(made[-1].name, position(axes[1:]), s.dtype)
        share = decay(part(axes[0], axes[1:], most) - highest)
        weight = replace(top, name=f"{top.name}weight", axes=axes, expr=share, role="")
        lane, across = Axis(f"{total.axes[-1].name}l", self.lanes), Axis(f"{total.axes[-1].name}y", self.lanes)
        lanes = replace(summed(total, f"{total.name}lanes", (*total.axes, lane), Index(lane.name) + size), role="")
        whole = Reduce("sum", (across,), self._read(lanes, total.axes, Index(across.name)), s.dtype)
        return [*made, weight, lanes, replace(total, expr=whole), summed(s, s.name, s.axes, Index(s.axes[-1].name))]


def _at(block: Axis, size: int, within: Axis) -> Expr:
    return Index(block.name) * size + Index(within.name)
