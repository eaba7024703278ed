"""Unique in the native entry, by hashing and a merge sort (runtime/hostops/select.py has the same in Python)."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.loops import for_loop, while_loop
from occ.compiler.native_entry.routine import RoutineEmitter
from occ.compiler.native_entry.sizes import Size, i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import DOUBLE, FLOAT, I1, I8, I16, I32, I64, PTR
from occ.runtime.attributes import decode_attrs
from occ.runtime.dataclass import dataclass
from occ.runtime.manifest import Step
from occ.runtime.signature import numpy_dtype

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio: Knuth, The Art of Computer Programming, 6.4
_WORDS = {1: I8, 2: I16, 4: I32, 8: I64}
_FLOATS = {"f32": FLOAT, "f64": DOUBLE}


@dataclass(frozen=True)
class _Slices:
    """What is compared: `x[outer, n, inner]` along the axis in the middle.

    Attributes:
        x: address of the elements.
        dtype: of them.
    """

    x: Any
    dtype: str
    outer: Size
    n: Size
    inner: Size

    @property
    def kind(self) -> str:
        """What functions on such slices are called by."""
        return self.dtype if self.are_elements else f"slices_{self.dtype}"

    @property
    def are_elements(self) -> bool:
        """Whether a slice is one element, known when the code is emitted."""
        return self.outer == 1 and self.inner == 1


def emit_unique(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """`(x) -> values, i64[u] first, i64[n] inverse, i64[u] counts`: distinct slices of x along an axis, or elements.

    The scratch memory of the step has, as i64, the first position of each group of equal slices, their counts, the
    group of each position, and the hash table; after that, in its place, sorted positions and the places of groups.
    """
    info, a = e.r.plan.buffers[step.reads[0]], decode_attrs(step.attrs)
    axis = None if a.axis is None else a.axis % len(info.shape)
    before, after = ([], []) if axis is None else (info.shape[:axis], info.shape[axis + 1 :])
    extent = ["*", *info.shape, 1] if axis is None else info.shape[axis]
    outer, n, inner = (e.sizes.of(d) for d in (["*", *before, 1], extent, ["*", *after, 1]))
    s = _Slices(e.buffer(step.reads[0]), info.dtype, outer, n, inner)
    given = [s.x, i64(outer), i64(n), i64(inner)]
    room = e.slot(e.r.scratch[k])
    first, counts, groups, table = (e.b.gep(room, [e.b.mul(i64(n), I64(8 * j))]) for j in range(4))
    count = e.b.call(_group(e.support, s), [*given, first, counts, groups, table])
    if not step.binds:
        e.require(count, e.sizes.of(e.r.plan.buffers[step.writes[0]].shape[axis or 0]), k)
    places = e.b.call(_rank(e.support, s), [*given, count, first, groups, table]) if a.sorted else None
    _write(e, step, s, count, _Groups(first, counts, groups, places))
    return {name: count for _, _, name in step.binds}


@dataclass(frozen=True)
class _Groups:
    """Addresses of what is known of groups of equal slices, which are numbered by first position.

    Attributes:
        first, counts: of each group, its first position, and how many it has.
        groups: the group of each position.
        places: of each group among the results; None where those are in the order of first positions.
    """

    first: Any
    counts: Any
    groups: Any
    places: Any


def _word(b: ir.IRBuilder, support: Support, array: Any, at: Any) -> Any:
    return support.load(b, b.gep(array, [b.mul(at, I64(8))]), 0, I64)


def _set(b: ir.IRBuilder, support: Support, array: Any, at: Any, value: Any) -> None:
    support.store(b, value, b.gep(array, [b.mul(at, I64(8))]), 0)


def _write(e: RoutineEmitter, step: Step, s: _Slices, count: Any, found: _Groups) -> None:
    """Write the results, which a node may leave out."""
    b, support = e.b, e.support
    values, first, inverse, counts = (
        None if w < 0 else e.buffer(w) for w in [*step.writes, *[-1] * (4 - len(step.writes))]
    )
    width: Size = e.sizes.times(s.inner, numpy_dtype(s.dtype).itemsize)

    def place(g: Any) -> Any:
        return g if found.places is None else _word(b, support, found.places, g)

    def group(g: Any, _: list[Any]) -> list[Any]:
        at, position = place(g), _word(b, support, found.first, g)
        if first is not None:
            _set(b, support, first, at, position)
        if counts is not None:
            _set(b, support, counts, at, _word(b, support, found.counts, g))

        def block(o: Any, _: list[Any]) -> list[Any]:
            source = b.mul(b.add(b.mul(o, i64(s.n)), position), i64(width))
            target = b.mul(b.add(b.mul(o, count), at), i64(width))
            support.memcpy(b, b.gep(values, [target]), b.gep(s.x, [source]), width)
            return []

        if values is not None:
            for_loop(b, I64(0), i64(s.outer), 1, [], block)
        return []

    def element(i: Any, _: list[Any]) -> list[Any]:
        _set(b, support, inverse, i, place(_word(b, support, found.groups, i)))
        return []

    for_loop(b, I64(0), count, 1, [], group)
    if inverse is not None:
        for_loop(b, I64(0), i64(s.n), 1, [], element)


def _group(support: Support, s: _Slices) -> Any:
    """`i64 group(x, outer, n, inner, first, counts, groups, table)`: how many groups of equal slices there are.

    By a hash table with linear probing, of twice as many cells as there are slices at least; a cell has 1 + a group.
    """
    name = f"occ_group_{s.kind}"
    if (known := support.module.globals.get(name)) is not None:
        return known
    fn = support.internal(name, ir.FunctionType(I64, [PTR, *[I64] * 3, *[PTR] * 4]))
    x, outer, n, inner, first, counts, groups, table = fn.args
    b, hashed, same = support.builder(fn), _hash(support, s), _same(support, s)
    bits = _bits_of_table(b, n)
    _clear(support, b, table, b.shl(I64(1), bits))

    def position(i: Any, state: list[Any]) -> list[Any]:
        (count,) = state
        start = b.lshr(b.call(hashed, [x, outer, n, inner, i]), b.sub(I64(64), bits))

        def is_of_another(cell: Any) -> Any:
            taken = b.icmp_signed("!=", cell, I64(0))
            there = _word(b, support, first, b.select(taken, b.sub(cell, I64(1)), I64(0)))
            there = b.select(taken, there, i)  # of an empty cell a position that there is
            return b.and_(taken, b.not_(b.call(same, [x, outer, n, inner, there, i])))

        at = _probe(support, b, table, bits, start, is_of_another)
        cell = _word(b, support, table, at)
        fresh = b.icmp_signed("==", cell, I64(0))
        own = b.select(fresh, count, b.sub(cell, I64(1)))
        with b.if_then(fresh):
            _set(b, support, table, at, b.add(own, I64(1)))
            _set(b, support, first, own, i)
            _set(b, support, counts, own, I64(0))
        _set(b, support, counts, own, b.add(_word(b, support, counts, own), I64(1)))
        _set(b, support, groups, i, own)
        return [b.add(count, b.zext(fresh, I64))]

    (count,) = for_loop(b, I64(0), n, 1, [I64(0)], position)
    b.ret(count)
    return fn


def _clear(support: Support, b: ir.IRBuilder, table: Any, cells: Any) -> None:
    def cell(c: Any, _: list[Any]) -> list[Any]:
        _set(b, support, table, c, I64(0))
        return []

    for_loop(b, I64(0), cells, 1, [], cell)


def _bits_of_table(b: ir.IRBuilder, n: Any) -> Any:
    """The logarithm to the base of two of the least table that is half empty."""
    twice = b.mul(n, I64(2))

    def small(_: Any, v: list[Any]) -> Any:
        return b.icmp_signed("<", b.shl(I64(1), v[0]), twice)

    return while_loop(b, I64(0), 1, [I64(1)], small, lambda _, v: [b.add(v[0], I64(1))])[1][0]


def _probe(
    support: Support, b: ir.IRBuilder, table: Any, bits: Any, start: Any, is_of_another: Callable[[Any], Any]
) -> Any:
    """The first cell from a place on that is not that of another group."""
    last = b.sub(b.shl(I64(1), bits), I64(1))

    def holds(_: Any, v: list[Any]) -> Any:
        return is_of_another(_word(b, support, table, v[0]))

    return while_loop(b, I64(0), 1, [start], holds, lambda _, v: [b.and_(b.add(v[0], I64(1)), last)])[1][0]


def _rank(support: Support, s: _Slices) -> Any:
    """`ptr rank(x, outer, n, inner, count, first, groups, room)`: the place of each group in order of slices."""
    name = f"occ_rank_{s.kind}"
    if (known := support.module.globals.get(name)) is not None:
        return known
    sort = _sort(support, s)
    fn = support.internal(name, ir.FunctionType(PTR, [PTR, *[I64] * 4, *[PTR] * 3]))
    x, outer, n, inner, count, first, groups, room = fn.args
    b = support.builder(fn)
    one, other, places = (b.gep(room, [b.mul(count, I64(8 * j))]) for j in range(3))

    def begin(g: Any, _: list[Any]) -> list[Any]:
        _set(b, support, one, g, _word(b, support, first, g))
        return []

    for_loop(b, I64(0), count, 1, [], begin)
    order = b.call(sort, [x, outer, n, inner, count, one, other])

    def place(r: Any, _: list[Any]) -> list[Any]:
        _set(b, support, places, _word(b, support, groups, _word(b, support, order, r)), r)
        return []

    for_loop(b, I64(0), count, 1, [], place)
    b.ret(places)
    return fn


def _sort(support: Support, s: _Slices) -> Any:
    """`ptr sort(x, outer, n, inner, count, one, other)`: sorts positions in `one` by their slices, into one of both."""
    fn = support.internal(f"occ_sort_{s.kind}", ir.FunctionType(PTR, [PTR, *[I64] * 4, PTR, PTR]))
    (x, outer, n, inner, count, one, other), b, less = fn.args, support.builder(fn), _less(support, s)

    def least(p: Any, q: Any) -> Any:
        return b.select(b.icmp_signed("<", p, q), p, q)

    def merge(source: Any, target: Any, low: Any, width: Any) -> None:
        middle, last = least(b.add(low, width), count), b.sub(count, I64(1))
        high = least(b.add(middle, width), count)

        def one_of_two(at: Any, state: list[Any]) -> list[Any]:
            left, right = (_word(b, support, source, least(p, last)) for p in state)
            stays = b.not_(b.call(less, [x, outer, n, inner, right, left]))
            stays = b.or_(b.icmp_signed(">=", state[1], high), stays)
            takes = b.and_(b.icmp_signed("<", state[0], middle), stays)
            _set(b, support, target, at, b.select(takes, left, right))
            return [b.add(state[0], b.zext(takes, I64)), b.add(state[1], b.zext(b.not_(takes), I64))]

        for_loop(b, low, high, 1, [low, middle], one_of_two)

    def sweep(_: Any, state: list[Any]) -> list[Any]:
        width, source, target = state
        twice = b.mul(width, I64(2))

        def pair(_: Any, at: list[Any]) -> list[Any]:
            merge(source, target, at[0], width)
            return [b.add(at[0], twice)]

        while_loop(b, I64(0), 1, [I64(0)], lambda _, at: b.icmp_signed("<", at[0], count), pair)
        return [twice, target, source]

    _, (_, order, _) = while_loop(
        b, I64(0), 1, [I64(1), one, other], lambda _, v: b.icmp_signed("<", v[0], count), sweep
    )
    b.ret(order)
    return fn


# Slices, compared by their elements


def _hash(support: Support, s: _Slices) -> Any:
    """`i64 hash(x, outer, n, inner, i)`: multiplicative, so that the high bits are those to use."""
    fn, b, (x, outer, n, inner, i) = _helper(support, f"occ_hash_{s.kind}", I64, 5)
    bits = _bits(support, b, s.dtype)

    def mixed(seed: Any, at: Any) -> Any:
        return b.mul(b.xor(b.xor(seed, b.lshr(seed, I64(32))), bits(x, at)), I64(_GOLDEN))

    if s.are_elements:
        b.ret(mixed(I64(0), i))
        return fn
    found = for_loop(b, I64(0), b.mul(outer, inner), 1, [I64(0)], lambda t, v: [mixed(v[0], _place(b, t, i, n, inner))])
    b.ret(found[0])
    return fn


def _same(support: Support, s: _Slices) -> Any:
    """`i1 same(x, outer, n, inner, i, j)`: whether two slices have the same elements."""
    fn, b, (x, outer, n, inner, i, j) = _helper(support, f"occ_same_{s.kind}", I1, 6)
    bits = _bits(support, b, s.dtype)
    if s.are_elements:
        b.ret(b.icmp_signed("==", bits(x, i), bits(x, j)))
        return fn

    def element(t: Any, _: list[Any]) -> list[Any]:
        return [b.icmp_signed("==", *(bits(x, _place(b, t, at, n, inner)) for at in (i, j)))]

    _, (found,) = while_loop(
        b, I64(0), 1, [I1(1)], lambda t, v: b.and_(b.icmp_signed("<", t, b.mul(outer, inner)), v[0]), element
    )
    b.ret(found)
    return fn


def _less(support: Support, s: _Slices) -> Any:
    """`i1 less(x, outer, n, inner, i, j)`: whether a slice comes before another, by the first elements that differ."""
    fn, b, (x, outer, n, inner, i, j) = _helper(support, f"occ_less_{s.kind}", I1, 6)
    before = _before(support, b, s.dtype)
    if s.are_elements:
        b.ret(before(x, i, j))
        return fn

    def element(t: Any, _: list[Any]) -> list[Any]:
        p, q = (_place(b, t, at, n, inner) for at in (i, j))
        return [before(x, p, q), before(x, q, p)]

    _, (found, _) = while_loop(
        b, I64(0), 1, [I1(0), I1(0)],
        lambda t, v: b.and_(b.icmp_signed("<", t, b.mul(outer, inner)), b.not_(b.or_(*v))), element,
    )  # fmt: skip
    b.ret(found)
    return fn


def _helper(support: Support, name: str, kind: ir.Type, count: int) -> tuple[ir.Function, ir.IRBuilder, Sequence[Any]]:
    """A function of elements and numbers, which its callers contain."""
    fn = support.internal(name, ir.FunctionType(kind, [PTR, *[I64] * (count - 1)]))
    fn.attributes.add("alwaysinline")
    return fn, support.builder(fn), fn.args


def _place(b: ir.IRBuilder, t: Any, at: Any, n: Any, inner: Any) -> Any:
    """The index of the element number `t` of a slice."""
    return b.add(b.mul(b.add(b.mul(b.udiv(t, inner), n), at), inner), b.urem(t, inner))


def _bits(support: Support, b: ir.IRBuilder, dtype: str) -> Callable[[Any, Any], Any]:
    """An element as i64: the same for equal ones, and for each NaN."""
    size = numpy_dtype(dtype).itemsize

    def bits(x: Any, at: Any) -> Any:
        p = b.gep(x, [b.mul(at, I64(size))])
        word = support.load(b, p, 0, _WORDS[size])
        if dtype in _FLOATS:
            value, zero, nan = support.load(b, p, 0, _FLOATS[dtype]), _WORDS[size](0), _WORDS[size](-1)
            word = b.select(b.fcmp_ordered("==", value, _FLOATS[dtype](0.0)), zero, word)
            word = b.select(b.fcmp_unordered("uno", value, value), nan, word)
        return word if size == 8 else b.zext(word, I64)

    return bits


def _before(support: Support, b: ir.IRBuilder, dtype: str) -> Callable[[Any, Any, Any], Any]:
    """Whether an element is less than another one; NaN is the greatest."""
    size = numpy_dtype(dtype).itemsize
    kind = _FLOATS.get(dtype) or _WORDS[size]

    def compare(x: Any, i: Any, j: Any) -> Any:
        p, q = (support.load(b, b.gep(x, [b.mul(at, I64(size))]), 0, kind) for at in (i, j))
        if dtype not in _FLOATS:
            return (b.icmp_signed if dtype.startswith("i") else b.icmp_unsigned)("<", p, q)
        return b.or_(b.fcmp_ordered("<", p, q), b.and_(b.fcmp_ordered("ord", p, p), b.fcmp_unordered("uno", q, q)))

    return compare
