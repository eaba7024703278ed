"""A second schedule of attention, for a few rows of queries: keys and values are read where they are, once for all the heads
that share them and in the order in which a cache holds them, and nothing is packed. That is a step of a decoder, whose time
is that of reading its cache.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from occ.compiler.ir.dim import floordiv, lower
from occ.compiler.ir.te.expr import Axis, Binary, Const, Expr, Index, Load, Reduce, binary, where, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, loads, position, reduce_axes
from occ.compiler.ir.te.roles import ATTENTION, HEADS, PEAK
from occ.compiler.ir.te.schedule import AtMost, Directive, Scheduler
from occ.compiler.ir.te.walks import replace_indices, walk
from occ.compiler.passes.schedule.block_products import fixed
from occ.compiler.passes.schedule.facts import extent_of, parts_of
from occ.compiler.passes.schedule.few import copied, reading
from occ.compiler.passes.schedule.loops import row_tail
from occ.compiler.target.machine import Machine

_FEW = 4  # rows that are computed one at a time: packing keys and values takes as long as reading them that often
_CHUNK = 128  # keys whose scores are a task
_VALUES = 64  # keys whose values are added up by a task
_SUMS = 16  # vectors of sums that are held in registers


def few_queries(f: TeFunc, machine: Machine) -> TeFunc:
    """`out[i<N, d] = sum[i, d] / total[i]` --> `out[i<N, d] = N <= 4 ? sumfew[i, d] / totalfew[i] : sum[i, d] / total[i]`

    for functions with the schedule of attention whose number of queries is symbolic; others stay as they are.
    """
    parts = parts_of(f, ATTENTION)
    if parts is None or not f.schedule:
        return f
    queries, out = parts["exp"].axes[-2].extent, parts["out"]
    if isinstance(queries, int) or lower(queries) > _FEW or not isinstance(parts["sum"].axes[-1].extent, int):
        return f
    mine = _needed(f, out)
    names = {s.name for s in mine}
    lanes = machine.lanes(32)
    copies = [x for s in mine for x in _apart(copied(s, names), lanes)]
    again = replace(out, expr=reading(out.expr, names))
    alone = replace(f, stages=(*(s for s in f.stages if isinstance(s, TeStage) and s.role == HEADS), *copies, again))
    made = [replace(d, variant=1) if d.stage == out.name else d for d in _Few(alone, machine).directives()]
    both = replace(out, expr=where(binary("le", wrap(queries), wrap(_FEW)), again.expr, out.expr))
    stages: list[AnyStage] = []
    for s in f.stages:
        stages += [*copies, both] if s is out else [s]
    return replace(
        f,
        stages=tuple(stages),
        schedule=(Directive(out.name, "specialize", (AtMost(queries, _FEW),)), *made, *f.schedule),
    )


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


def _apart(s: TeStage, lanes: int) -> list[TeStage]:
    """The two products in the forms that their schedules take hold of, all other stages as they are."""
    match s.role:
        case role if role == ATTENTION["scores"]:
            return _in_quads(s, lanes)
        case role if role == ATTENTION["sum"]:
            return _in_chunks(s)
        case _:
            return [s]


def _in_quads(s: TeStage, lanes: int) -> list[TeStage]:
    """Scores as sums in the lanes of a vector, then in four, of which vectors along the keys are made.

    `scores[i, k] = sum[r<64](f(r))` --> `dot[i, k, l<16] = sum[q<4](f(16*q + l))`,
    `quad[i, k, l<4] = dot[i, k, l] + dot[i, k, l + 4] + ..`, `scores[i, k] = quad[i, k, 0] + quad[i, k, 1] + ..`
    """
    r, at = s.expr, position(s.axes)
    assert isinstance(r, Reduce)
    (depth,) = r.axes
    if not isinstance(depth.extent, int) or depth.extent % lanes or lanes % 4:
        return [s]
    within, lane, four = (
        Axis(f"{depth.name}q", depth.extent // lanes),
        Axis(f"{depth.name}l", lanes),
        Axis(f"{depth.name}u", 4),
    )
    body = replace_indices(r.body, {depth.name: Index(within.name) * lanes + Index(lane.name)})
    dot = replace(s, name=f"{s.name}dot", axes=(*s.axes, lane), expr=Reduce("sum", (within,), body, s.dtype), role="")

    def total(source: TeStage, places: list[Expr]) -> Expr:
        return reduce(lambda a, b: binary("add", a, b), [Load(source.name, (*at, k), s.dtype) for k in places])

    halves = total(dot, [Index(four.name) + k for k in range(0, lanes, 4)])
    quad = replace(s, name=f"{s.name}quad", axes=(*s.axes, four), expr=halves, role="")
    return [dot, quad, replace(s, expr=total(quad, [wrap(k) for k in range(4)]))]


def _in_chunks(s: TeStage) -> list[TeStage]:
    """The product with the values as one for each chunk of keys, which several threads can share, and a rest.

    `sum[i] = sum[r<n](f(r))` --> `parts[c<n//64, i] = sum[q<64](f(64*c + q))`,
    `rest[i] = sum[t<n%64](f(64*(n//64) + t))`, `across[i] = sum[x<n//64](parts[x, i])`, `sum[i] = across[i] + rest[i]`,
    the first two as copies of sums that lie in registers.
    """
    assert isinstance(s.expr, Reduce)
    body, (r,), at = s.expr.body, s.expr.axes, position(s.axes)
    count = floordiv(r.extent, _VALUES)
    chunk, within, each = Axis(f"{r.name}c", count), Axis(f"{r.name}q", _VALUES), Axis(f"{r.name}x", count)
    tail = Axis(f"{r.name}t", r.extent - count * _VALUES)

    def total(name: str, axis: Axis, value: Expr, outer: tuple[Axis, ...] = ()) -> TeStage:
        return replace(
            s, name=f"{s.name}{name}", axes=(*outer, *s.axes), expr=Reduce("sum", (axis,), value, s.dtype), role=""
        )

    def kept(source: TeStage, name: str) -> TeStage:
        axes = tuple(Axis(f"{a.name}{name[0]}", a.extent) for a in source.axes)
        return replace(source, name=f"{s.name}{name}", axes=axes, expr=Load(source.name, position(axes), s.dtype))

    def moved(to: Expr) -> Expr:
        return replace_indices(body, {r.name: to})

    some = total("some", within, moved(Index(chunk.name) * _VALUES + Index(within.name)), (chunk,))
    last = total("last", tail, moved(wrap(count * _VALUES) + Index(tail.name)))
    parts, rest = kept(some, "parts"), kept(last, "rest")
    across = total("across", each, Load(parts.name, (Index(each.name), *at), s.dtype))
    both = (Load(x.name, at, s.dtype) for x in (across, rest))
    return [some, parts, last, rest, across, replace(s, expr=binary("add", *both))]


class _Few:
    """The schedule of the copies: all scores, their softmax, and the product, each a chunk of keys at a time."""

    def __init__(self, f: TeFunc, machine: Machine) -> None:
        parts = parts_of(f, ATTENTION)
        assert parts is not None, "the copies have the roles of what they are copies of"
        self.f, self.parts, self.machine = f, parts, machine
        self.lanes = machine.lanes(32)
        self.group = self._group()

    def _group(self) -> int:
        """Heads of queries that share one of keys: what `repeat_heads` divides their number by."""
        for s in self.f.stages:
            if isinstance(s, TeStage) and s.role == HEADS:
                divisors = [n.rhs for n in walk(s.expr) if isinstance(n, Binary) and n.op == "floordiv"]
                return next((int(n.value.real) for n in divisors if isinstance(n, Const)), 1)
        return 1

    def directives(self) -> list[Directive]:
        made = self._along(self.parts["out"], root=False) + self._along(self.parts["query"])
        return [*made, *self._logits(), *self._scores(), *self._softmax(), *self._sums()]

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
        *outer, head, row, key = (a.name for a in s.axes)
        p, tail = Scheduler(s.name).compute_root(), row_tail(s.axes[-1].extent, _CHUNK)
        p.split(key, f"{key}c", f"{key}k", _CHUNK, tail).split(f"{key}k", f"{key}o", f"{key}i", self.lanes)
        p.reorder(f"{key}i", head, f"{key}o", f"{key}c", row, *reversed(outer)).vectorize(f"{key}i")
        self.head, level = head, f"{key}c"
        for loop in (row, *reversed(outer)):
            p.fuse(level, loop, f"{level}{loop}")
            level = f"{level}{loop}"
        return p.parallel(level).directives

    def _scores(self) -> list[Directive]:
        s, logits = self.parts["scores"], self.parts["logits"].name
        *outer, head, row, key = (a.name for a in s.axes)
        made = Scheduler(s.name).compute_at(logits, self.head).bound_extent(key, self.lanes).vectorize(key)
        named = {x.name: x for x in self.f.stages}
        dot, quad = (named.get(f"{s.name}{x}") for x in ("dot", "quad"))
        if not isinstance(dot, TeStage) or not isinstance(quad, TeStage):
            (r,) = (a.name for a in reduce_axes(s.expr))
            update = Scheduler(s.name, update=True).reorder(r, key, head, row, *reversed(outer)).atomic().vectorize(r)
            return [*made.directives, *update.directives]
        four, lane, (q,) = quad.axes[-1].name, dot.axes[-1].name, (a.name for a in reduce_axes(dot.expr))
        fours = Scheduler(quad.name).compute_at(logits, self.head).bound_extent(key, self.lanes).vectorize(four)
        start = Scheduler(dot.name).compute_at(quad.name, key).vectorize(lane)
        update = (
            Scheduler(dot.name, update=True)
            .reorder(lane, q, key, head, row, *reversed(outer))
            .vectorize(lane)
            .unroll(q)
        )
        return [*made.directives, *fours.directives, *start.directives, *update.directives]

    def _softmax(self) -> list[Directive]:
        made = self._along(self.parts["exp"])
        whole = self.f.by_role
        for s in self.f.stages:
            if not isinstance(s, TeStage) or s.role not in (ATTENTION["top"], PEAK, ATTENTION["total"]):
                continue
            made += Scheduler(s.name).compute_root().directives
            if len(s.axes) > len(whole[s.role].axes):  # a part of it that has an axis of lanes, see `in_lanes`
                lane, chunk = s.axes[-1].name, reduce_axes(s.expr)[-1].name
                made += Scheduler(s.name).vectorize(lane, self.lanes).directives
                update = Scheduler(s.name, update=True).reorder(lane, chunk, s.axes[-2].name)
                made += update.vectorize(lane, self.lanes).unroll(chunk, 4).directives
        return made

    def _sums(self) -> list[Directive]:
        some, parts, last, rest, across = (
            self.f.stage(f"{self.parts['sum'].name}{x}") for x in ("some", "parts", "last", "rest", "across")
        )
        assert isinstance(across, TeStage)
        made = self._along(across)
        update = Scheduler(across.name, update=True)
        *outer, d = (a.name for a in across.axes)
        (x,) = (a.name for a in reduce_axes(across.expr))
        made += update.reorder(d, *reversed(outer), x).vectorize(d, self._width(across, d)).directives
        return [*made, *self._sum(some, parts, 1), *self._sum(last, rest, 0)]

    def _sum(self, acc: AnyStage | None, kept: AnyStage | None, chunks: int) -> list[Directive]:
        """A tile of sums in registers, for the heads that share values."""
        assert isinstance(acc, TeStage)
        assert isinstance(kept, TeStage)
        *outer, head, row, d = (a.name for a in kept.axes)
        width = self._width(kept, d)
        vectors = min(max(_SUMS // self.group, 1), fixed(kept.axes[-1]) // width)
        p = (
            Scheduler(kept.name)
            .compute_root()
            .split(d, f"{d}o", f"{d}t", width * vectors)
            .split(f"{d}t", f"{d}u", f"{d}v", width)
        )
        p.split(head, f"{head}p", f"{head}g", self.group)
        p.reorder(f"{d}v", f"{d}u", f"{head}g", f"{d}o", f"{head}p", row, *reversed(outer)).vectorize(f"{d}v")
        p.unroll(f"{d}u").unroll(f"{head}g")
        for loop in outer[:chunks]:
            p.parallel(loop)
        *before, head, row, e = (a.name for a in acc.axes)
        start = (
            Scheduler(acc.name)
            .compute_at(kept.name, f"{d}o")
            .bound_extent(head, self.group)
            .bound_extent(e, width * vectors)
        )
        update = Scheduler(acc.name, update=True)
        (r,) = (a.name for a in reduce_axes(acc.expr))
        for s in (start, update):
            s.split(e, f"{e}u", f"{e}v", width)
        start.vectorize(f"{e}v").unroll(f"{e}u").unroll(head)
        update.reorder(f"{e}v", f"{e}u", head, r, row, *reversed(before)).vectorize(f"{e}v").unroll(f"{e}u").unroll(
            head
        )
        return [*p.directives, *start.directives, *update.directives]
