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

_EDGES = 5  # numbers per box: two low corners, two high ones, its area
_BOX = 4 * _EDGES


def emit_suppression(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(boxes, scores, limit, overlap, least) -> i64[count, 3]`: per class the best box, the best other one, ...

    The step's scratch memory holds the numbers of a class's remaining boxes, then the edges of all boxes of a batch.
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

    Writes rows from `count` on, and returns the next row's number. Boxes are taken from a heap, best first, and
    compared with the selected ones: with a low limit, few boxes are examined.
    """
    name = "occ_choose_boxes"
    if (known := support.module.globals.get(name)) is not None:
        return known
    sift = _sift(support)
    kinds = [PTR, I64, I64, FLOAT, FLOAT, I1, PTR, PTR, PTR, I64, I64, I64]
    fn = support.internal(name, ir.FunctionType(I64, kinds))
    scores, n, limit, overlap, least, filtered, edges, left, out, batch, label, count = fn.args
    b = Builder(fn.append_basic_block("entry"))

    def begin(k: Any, seen: list[Any]) -> list[Any]:
        own = support.load(b, b.gep(scores, [b.mul(k, I64(4))]), 0, FLOAT)
        support.store(b, k, b.gep(left, [b.mul(seen[0], I64(8))]), 0)
        return [b.add(seen[0], b.zext(b.or_(b.not_(filtered), b.fcmp_ordered(">", own, least)), I64))]

    (number,) = for_loop(b, I64(0), n, 1, [I64(0)], begin)
    half = b.lshr(number, I64(1))

    def ordered(k: Any, _: list[Any]) -> list[Any]:
        b.call(sift, [scores, left, number, b.sub(b.sub(half, k), I64(1))])
        return []

    for_loop(b, I64(0), half, 1, [], ordered)
    end = b.add(count, b.select(b.icmp_signed("<", limit, n), limit, n))

    def goes_on(_: Any, seen: list[Any]) -> Any:
        return b.and_(b.icmp_signed("<", seen[0], end), b.icmp_signed(">", seen[1], I64(0)))

    def one(_: Any, seen: list[Any]) -> list[Any]:
        row, number = seen[0], b.sub(seen[1], I64(1))
        chosen = support.load(b, left, 0, I64)
        support.store(b, support.load(b, b.gep(left, [b.mul(number, I64(8))]), 0, I64), left, 0)
        b.call(sift, [scores, left, number, I64(0)])
        mine = _edges(support, b, edges, chosen)

        def compared(at: Any, state: list[Any]) -> list[Any]:
            k = support.load(b, b.gep(out, [b.mul(at, I64(24))]), 16, I64)
            return [_fits(b, _edges(support, b, edges, k), mine, overlap)]

        _, (stays,) = while_loop(
            b, count, 1, [I1(1)], lambda at, state: b.and_(b.icmp_signed("<", at, row), state[0]), compared
        )

        def write() -> None:
            for j, value in enumerate((batch, label, chosen)):
                support.store(b, value, b.gep(out, [b.mul(row, I64(24))]), 8 * j)

        unless_empty(b, stays, write)
        return [b.add(row, b.zext(stays, I64)), number]

    _, (row, _) = while_loop(b, I64(0), 1, [count, number], goes_on, one)
    b.ret(row)
    return fn


def _sift(support: Support) -> Any:
    """`void sift(scores, heap, n, at)`: moves an element of a heap of boxes down to its position.

    The best comes first: among equal scores the earlier box, as in a stable sort; NaN is worst.
    """
    fn = support.internal("occ_sift_box", ir.FunctionType(ir.VoidType(), [PTR, PTR, I64, I64]))
    scores, heap, n, start = fn.args
    b = Builder(fn.append_basic_block("entry"))

    def box(at: Any) -> Any:
        return support.load(b, b.gep(heap, [b.mul(at, I64(8))]), 0, I64)

    def before(k: Any, other: Any) -> Any:
        x, y = (support.load(b, b.gep(scores, [b.mul(v, I64(4))]), 0, FLOAT) for v in (k, other))
        nan, none = b.fcmp_unordered("uno", x, x), b.fcmp_unordered("uno", y, y)
        better = b.or_(b.fcmp_ordered(">", x, y), b.and_(none, b.not_(nan)))
        same = b.or_(b.fcmp_ordered("==", x, y), b.and_(nan, none))
        return b.or_(better, b.and_(same, b.icmp_signed("<", k, other)))

    def holds(_: Any, state: list[Any]) -> Any:
        return b.icmp_signed("<", b.add(b.mul(state[0], I64(2)), I64(1)), n)

    def step(_: Any, state: list[Any]) -> list[Any]:
        (at,) = state
        low = b.add(b.mul(at, I64(2)), I64(1))
        high = b.add(low, I64(1))
        high = b.select(b.icmp_signed("<", high, n), high, low)
        child = b.select(before(box(high), box(low)), high, low)
        mine, theirs = box(at), box(child)
        swaps = before(theirs, mine)
        support.store(b, b.select(swaps, theirs, mine), b.gep(heap, [b.mul(at, I64(8))]), 0)
        support.store(b, b.select(swaps, mine, theirs), b.gep(heap, [b.mul(child, I64(8))]), 0)
        return [b.select(swaps, child, n)]  # the end, where it is in its place

    while_loop(b, I64(0), 1, [start], holds, step)
    b.ret_void()
    return fn


def _edges(support: Support, b: ir.IRBuilder, edges: Any, k: Any) -> list[Any]:
    at = b.gep(edges, [b.mul(k, I64(_BOX))])
    return [support.load(b, at, 4 * j, FLOAT) for j in range(_EDGES)]


def _fits(b: ir.IRBuilder, x: Sequence[Any], y: Sequence[Any], overlap: Any) -> Any:
    """Whether the intersection of two boxes is at most `overlap` of their union.

    The comparison is skipped if they are disjoint, as most are, or one has no area.
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
