"""Attention for a few rows of queries, with the keys in chunks: scores and their exponentials lie chunk after chunk.

The rows of all heads for one chunk are read and written together. As whole rows, which are as long as a cache has keys, they
would be a page or more apart, and each store would wait for memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, binary, literal, minimum, where, wrap
from occ.compiler.ir.te.function import TeStage, position
from occ.compiler.ir.te.roles import ATTENTION
from occ.compiler.ir.te.walks import replace_indices, transform

CHUNK = 64  # keys of a chunk
# Keys whose values are added up in registers, head after head: their rows are read side by side, which processors foresee;
# with all keys of a head at once every row would be a jump over the other heads.
NEAR = 8


class NotInChunks(Exception):
    """A stage reads another in a way that has no chunks."""


@dataclass(frozen=True)
class _Keys:
    """The axis of keys of one stage in chunks.

    Attributes:
        extent: how many keys there are.
        chunk, within: the axes in its place.
    """

    extent: Dim
    chunk: Axis
    within: Axis

    @classmethod
    def of(cls, axis: Axis) -> _Keys:
        """Those of an axis."""
        return cls(axis.extent, Axis(f"{axis.name}c", ceildiv(axis.extent, CHUNK)), Axis(f"{axis.name}q", CHUNK))

    @property
    def index(self) -> Expr:
        """Which key it is; beyond the last in the last chunk."""
        return Index(self.chunk.name) * CHUNK + Index(self.within.name)

    @property
    def clamped(self) -> Expr:
        """The same, where what is read must exist."""
        whole = isinstance(self.extent, int) and self.extent % CHUNK == 0
        return self.index if whole else minimum(self.index, wrap(self.extent - 1))


def in_chunks(stages: list[TeStage], lanes: int) -> list[TeStage]:
    """Stages of attention with the keys in chunks.

    `scores[h, i, k]` --> `scores[c, h, i, q<64]` for key `64*c + q`, as all elementwise stages up to the exponentials; logits
    beyond the last key are the lowest value, so their exponentials are 0. Maximum and total are taken in lanes, and the
    product with the values in parts, one a chunk.

    Args:
        stages: of attention; the last ones of the roles `top`, `exp`, `total` and `sum` are the whole.
        lanes: of a vector.

    Raises:
        NotInChunks: a stage reads another one in another way.
    """
    role = {s.role: s for s in stages if s.role}
    e = role[ATTENTION["exp"]]
    chunked = {s.name for s in stages if len(s.axes) == len(e.axes) and _has_keys(s, e)}
    chunked -= {
        s.name for s in stages if s.role in (ATTENTION["top"], ATTENTION["total"], ATTENTION["sum"], ATTENTION["query"])
    }
    made: list[TeStage] = []
    for s in stages:
        if s.role in (ATTENTION["top"], ATTENTION["total"]):
            made += _lanes(s, role, lanes) if s is role[s.role] else []
        elif s.role == ATTENTION["sum"]:
            made += _product(s, chunked)
        elif s.name in chunked:
            made += _chunk(s, chunked, lanes)
        else:
            made.append(s)
    return made


def _has_keys(s: TeStage, e: TeStage) -> bool:
    """Whether the last axis of a stage is that of keys, as that of the exponentials, and the others are its rows."""
    return [a.extent for a in s.axes] == [a.extent for a in e.axes]


def _read(e: Expr, chunked: set[str], axis: str, keys: _Keys, at: Expr) -> Expr:
    """An expression of a key as one of its place in a chunk; other stages in chunks are read at the same place."""

    def change(n: Expr) -> Expr | None:
        if not isinstance(n, Load) or n.source not in chunked:
            return None
        if not isinstance(n.index[-1], Index) or n.index[-1].name != axis:
            raise NotInChunks(n.source)
        return Load(n.source, (Index(keys.chunk.name), *n.index[:-1], Index(keys.within.name)), n.dtype)

    return replace_indices(transform(e, change), {axis: at})


def _chunk(s: TeStage, chunked: set[str], lanes: int) -> list[TeStage]:
    """A stage whose last axis is that of keys."""
    *outer, last = s.axes
    keys = _Keys.of(last)
    made = replace(
        s, axes=(keys.chunk, *outer, keys.within), expr=_read(s.expr, chunked, last.name, keys, keys.clamped)
    )
    if s.role == ATTENTION["scores"]:
        return _in_quads(made, lanes)
    if s.role == ATTENTION["logits"]:
        exists = binary("lt", keys.index, wrap(keys.extent))
        return [replace(made, expr=where(exists, made.expr, literal(s.dtype.lowest, s.dtype)))]
    return [made]


def _in_quads(s: TeStage, lanes: int) -> list[TeStage]:
    """Scores as sums in the lanes of a vector, then in half as many, and in four, of which vectors along the keys are made.

    `scores[i, k] = sum[r<64](f(r))` --> `dot[i, k, l<16] = sum[q<4](f(16*q + l))`,
    `half[i, k, l<8] = dot[i, k, l] + dot[i, k, l + 8]`, `quad[i, k, l<4] = half[i, k, l] + half[i, k, l + 4]`,
    `scores[i, k] = quad[i, k, 0] + quad[i, k, 1] + ..`
    """
    r, at = s.expr, position(s.axes)
    assert isinstance(r, Reduce)
    (depth,) = r.axes
    if not isinstance(depth.extent, int) or depth.extent % lanes or lanes % 8:  # half of the lanes are fours
        return [s]
    sizes = {"q": depth.extent // lanes, "l": lanes, "h": lanes // 2, "u": 4}
    each, lane, eight, four = (Axis(f"{depth.name}{x}", n) for x, n in sizes.items())
    body = replace_indices(r.body, {depth.name: Index(each.name) * lanes + Index(lane.name)})
    dot = replace(s, name=f"{s.name}dot", axes=(*s.axes, lane), expr=Reduce("sum", (each,), body, s.dtype), role="")

    def total(source: TeStage, places: list[Expr]) -> Expr:
        return reduce(lambda a, b: binary("add", a, b), [Load(source.name, (*at, k), s.dtype) for k in places])

    both = total(dot, [Index(eight.name), Index(eight.name) + lanes // 2])
    half = replace(s, name=f"{s.name}half", axes=(*s.axes, eight), expr=both, role="")
    fours = total(half, [Index(four.name) + k for k in range(0, lanes // 2, 4)])
    quad = replace(s, name=f"{s.name}quad", axes=(*s.axes, four), expr=fours, role="")
    return [dot, half, quad, replace(s, expr=total(quad, [wrap(k) for k in range(4)]))]


def _lanes(s: TeStage, role: dict[str, TeStage], lanes: int) -> list[TeStage]:
    """`top[i] = max[k](logits[i, k])` --> `part[i, l<16] = max[c, b<4](logits[c, i, 16*b + l])`, `top[i] = max[l](part[i, l])`."""
    kind, source = ("max", "logits") if s.role == ATTENTION["top"] else ("sum", "exp")
    of = role[ATTENTION[source]]
    keys, name, at = _Keys.of(of.axes[-1]), s.axes[-1].name, position(s.axes)
    chunk, block = Axis(f"{name}c", keys.chunk.extent), Axis(f"{name}b", CHUNK // lanes)
    lane, across = Axis(f"{name}l", lanes), Axis(f"{name}x", lanes)
    read = Load(of.name, (Index(chunk.name), *at, Index(block.name) * lanes + Index(lane.name)), s.dtype)
    part = replace(s, name=f"{s.name}part", axes=(*s.axes, lane), expr=Reduce(kind, (chunk, block), read, s.dtype))
    return [
        part,
        replace(s, expr=Reduce(kind, (across,), Load(part.name, (*at, Index(across.name)), s.dtype), s.dtype)),
    ]


def _product(s: TeStage, chunked: set[str]) -> Iterator[TeStage]:
    """`sum[i] = sum[k](f(k))` --> `near[c, b<8, i] = sum[q<8](f(64*c + 8*b + q))`, `some[c, i] = sum[b](near[c, b, i])`,
    `parts[c, i] = some[c, i]`, `sum[i] = sum[c](parts[c, i])`; the first two lie in registers and in cache.
    """
    assert isinstance(s.expr, Reduce)
    (r,), at = s.expr.axes, position(s.axes)
    keys = _Keys.of(r)
    block, single, each = Axis(f"{r.name}b", CHUNK // NEAR), Axis(f"{r.name}s", NEAR), Axis(f"{r.name}e", CHUNK // NEAR)
    body = _read(s.expr.body, chunked, r.name, keys, keys.clamped)
    body = replace_indices(body, {keys.within.name: Index(block.name) * NEAR + Index(single.name)})

    def stage(name: str, outer: tuple[Axis, ...], over: Axis, value: Expr) -> TeStage:
        total = Reduce("sum", (over,), value, s.dtype)
        return replace(s, name=f"{s.name}{name}", axes=(*outer, *s.axes), expr=total, role="")

    near = stage("near", (keys.chunk, block), single, body)
    chunk = Index(keys.chunk.name)
    some = stage("some", (keys.chunk,), each, Load(near.name, (chunk, Index(each.name), *at), s.dtype))
    axes = tuple(Axis(f"{a.name}p", a.extent) for a in some.axes)
    parts = replace(some, name=f"{s.name}parts", axes=axes, expr=Load(some.name, position(axes), s.dtype))
    over = Axis(f"{r.name}x", keys.chunk.extent)
    whole = Reduce("sum", (over,), Load(parts.name, (Index(over.name), *at), s.dtype), s.dtype)
    return iter((near, some, parts, replace(s, expr=whole)))
