"""NonMaxSuppression in the native entry (runtime/hostops/select.py has the same in Python)."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.loops import for_loop, unless_empty, while_loop
from occ.compiler.native_entry.routine import RoutineEmitter
from occ.compiler.native_entry.sizes import i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import FLOAT, I1, I64, PTR
from occ.runtime.attributes import decode_attrs
from occ.runtime.manifest import Step

_EDGES = 5  # numbers that are known of a box: two low corners, two high ones, its area
_BOX = 4 * _EDGES


def emit_suppression(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(boxes, scores, limit, overlap, least) -> i64[count, 3]`: of each class the best box, the best that it does not overlap, ...

    The scratch memory of the step has the numbers of the boxes that are left of a class, then the edges of all boxes of a batch.
    """
    boxes, scores, limit, overlap, least = [*step.reads, -1, -1, -1][:5]
    batches, classes, n = (e.sizes.of(d) for d in e.r.plan.buffers[scores].shape)
    for have, wanted in zip(e.r.plan.buffers[boxes].shape, (batches, n, 4), strict=True):
        e.require(e.sizes.of(have), wanted, k)
    left = e.slot(e.r.scratch[k])
    edges = e.support.at(e.head, left, e.sizes.times(n, 8))
    given = [
        I64(0) if limit < 0 else e.support.load(e.b, e.buffer(limit), 0, I64),
        FLOAT(0.0) if overlap < 0 else e.support.load(e.b, e.buffer(overlap), 0, FLOAT),
        FLOAT(0.0) if least < 0 else e.support.load(e.b, e.buffer(least), 0, FLOAT),
        I1(least >= 0),
    ]
    x, s, out = e.buffer(boxes), e.buffer(scores), e.buffer(step.writes[0])
    measure, choose = _measure(e.support, centred=bool(decode_attrs(step.attrs).center_point_box)), _choose(e.support)

    def batch(at: Any, count: list[Any]) -> list[Any]:
        e.b.call(measure, [e.b.gep(x, [e.b.mul(e.b.mul(at, i64(n)), I64(16))]), i64(n), edges])

        def label(c: Any, before: list[Any]) -> list[Any]:
            row = e.b.mul(e.b.add(e.b.mul(at, i64(classes)), c), i64(n))
            own = e.b.gep(s, [e.b.mul(row, I64(4))])
            return [e.b.call(choose, [own, i64(n), *given, edges, left, out, at, c, before[0]])]

        return for_loop(e.b, I64(0), i64(classes), 1, count, label)

    (count,) = for_loop(e.b, I64(0), i64(batches), 1, [I64(0)], batch)
    if not step.binds:
        e.require(count, e.sizes.of(e.r.plan.buffers[step.writes[0]].shape[0]), k)
    return {name: count for _, _, name in step.binds}


def _measure(support: Support, *, centred: bool) -> Any:
    """`void measure(boxes, n, edges)`: low and high corners, and areas."""
    name = f"occ_measure_boxes_{int(centred)}"
    if (known := support.module.globals.get(name)) is not None:
        return known
    fn = support.internal(name, ir.FunctionType(ir.VoidType(), [PTR, I64, PTR]))
    boxes, n, edges = fn.args
    b = Builder(fn.append_basic_block("entry"))

    def box(k: Any, _: list[Any]) -> list[Any]:
        source, target = b.gep(boxes, [b.mul(k, I64(16))]), b.gep(edges, [b.mul(k, I64(_BOX))])
        p = [support.load(b, source, 4 * j, FLOAT) for j in range(4)]
        if centred:
            half = [b.fmul(x, FLOAT(0.5)) for x in p[2:]]
            low = [b.fsub(x, h) for x, h in zip(p, half, strict=False)]
            high = [b.fadd(x, h) for x, h in zip(p, half, strict=False)]
        else:
            low = [_least(b, x, y) for x, y in zip(p, p[2:], strict=False)]
            high = [_most(b, x, y) for x, y in zip(p, p[2:], strict=False)]
        across, down = (b.fsub(y, x) for x, y in zip(low, high, strict=True))
        area: Any = b.fmul(across, down)
        for j, value in enumerate((*low, *high, area)):
            support.store(b, value, target, 4 * j)
        return []

    for_loop(b, I64(0), n, 1, [], box)
    b.ret_void()
    return fn


def _choose(support: Support) -> Any:
    """`i64 choose(scores, n, limit, overlap, least, filtered, edges, left, out, batch, label, count)`: the boxes of one class.

    Writes rows from `count` on, and returns the number of the row after them. Those that are left stay in order, so that of
    equal scores the first is the best, as in a stable sort; NaN is the worst.
    """
    name = "occ_choose_boxes"
    if (known := support.module.globals.get(name)) is not None:
        return known
    kinds = [PTR, I64, I64, FLOAT, FLOAT, I1, PTR, PTR, PTR, I64, I64, I64]
    fn = support.internal(name, ir.FunctionType(I64, kinds))
    scores, n, limit, overlap, least, filtered, edges, left, out, batch, label, count = fn.args
    b = Builder(fn.append_basic_block("entry"))

    def keep(stays: Any, k: Any, seen: Sequence[Any]) -> list[Any]:
        """Note a box if it stays: how many there are, where the best is, and its score."""
        number, best, score = seen
        own = support.load(b, b.gep(scores, [b.mul(k, I64(4))]), 0, FLOAT)
        support.store(b, k, b.gep(left, [b.mul(number, I64(8))]), 0)
        worse = b.and_(b.fcmp_unordered("uno", score, score), b.fcmp_ordered("ord", own, own))
        better = b.or_(b.or_(b.icmp_signed("==", number, I64(0)), b.fcmp_ordered(">", own, score)), worse)
        better = b.and_(stays, better)
        return [
            b.add(number, b.zext(stays, I64)), b.select(better, number, best), b.select(better, own, score),
        ]  # fmt: skip

    def begin(k: Any, seen: list[Any]) -> list[Any]:
        own = support.load(b, b.gep(scores, [b.mul(k, I64(4))]), 0, FLOAT)
        return keep(b.or_(b.not_(filtered), b.fcmp_ordered(">", own, least)), k, seen)

    nothing = [I64(0), I64(0), FLOAT(0.0)]
    seen = for_loop(b, I64(0), n, 1, nothing, begin)
    end = b.add(count, b.select(b.icmp_signed("<", limit, n), limit, n))

    def goes_on(row: Any, seen: list[Any]) -> Any:
        return b.and_(b.icmp_signed("<", row, end), b.icmp_signed(">", seen[0], I64(0)))

    def one(row: Any, seen: list[Any]) -> list[Any]:
        number, best, _ = seen
        chosen = support.load(b, b.gep(left, [b.mul(best, I64(8))]), 0, I64)
        for j, value in enumerate((batch, label, chosen)):
            support.store(b, value, b.gep(out, [b.mul(row, I64(24))]), 8 * j)
        mine = _edges(support, b, edges, chosen)

        def other(at: Any, rest: list[Any]) -> list[Any]:
            k = support.load(b, b.gep(left, [b.mul(at, I64(8))]), 0, I64)
            fits = _fits(b, mine, _edges(support, b, edges, k), overlap)
            return keep(b.and_(fits, b.icmp_signed("!=", at, best)), k, rest)

        return for_loop(b, I64(0), number, 1, nothing, other)

    row, _ = while_loop(b, count, 1, seen, goes_on, one)
    b.ret(row)
    return fn


def _edges(support: Support, b: ir.IRBuilder, edges: Any, k: Any) -> list[Any]:
    at = b.gep(edges, [b.mul(k, I64(_BOX))])
    return [support.load(b, at, 4 * j, FLOAT) for j in range(_EDGES)]


def _fits(b: ir.IRBuilder, x: Sequence[Any], y: Sequence[Any], overlap: Any) -> Any:
    """Whether the common part of two boxes is no more than `overlap` of what they cover together.

    It is not compared where they are apart, as most are, or one has no area.
    """
    zero = FLOAT(0.0)
    across, down = (b.fsub(_least(b, x[j + 2], y[j + 2]), _most(b, x[j], y[j])) for j in (0, 1))
    meet = b.not_(b.or_(b.fcmp_ordered("<=", across, zero), b.fcmp_ordered("<=", down, zero)))
    more: list[Any] = []

    def compare() -> None:
        part: Any = b.fmul(across, down)
        total = b.fsub(b.fadd(x[4], y[4]), part)
        positive = [b.fcmp_ordered(">", v, zero) for v in (part, x[4], y[4], total)]
        share = b.fcmp_ordered(">", b.fdiv(part, total), overlap)
        more.extend((reduce(b.and_, positive, share), b.block))

    before = b.block
    unless_empty(b, meet, compare)
    suppressed = b.phi(I1)
    suppressed.add_incoming(I1(0), before)
    suppressed.add_incoming(*more)
    return b.not_(suppressed)


def _least(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered("<", x, y), x, y)


def _most(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered("<", x, y), y, x)
