"""TopK: the greatest or least elements along an axis, in order."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim, ceildiv, lower, maximum, upper
from occ.compiler.ir.dtype import I32, I64, U64
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.merge_sort import BLOCK, descending
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.ops.prefix_sums import running
from occ.compiler.ir.ops.sort_keys import LAST, numbered, position_of, sort_key, sort_keys
from occ.compiler.ir.shape import normalize_axis
from occ.compiler.ir.te.expr import Expr, binary, cast, equal, literal, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor

_FEW = 256  # elements ranked directly: each is compared with each
_RANKED = 2 * BLOCK  # elements ordered by comparing each with each: more are sorted
_SHORTEST = 4  # elements of a block, whose maximum is compared first
_DIGIT = 4  # bits of a key decided at a time
_ONE_BY_ONE = 8  # elements found one after another, each by a pass over all blocks
_LANES = 8  # elements of 64 bits in a vector
_BLOCKS = 256  # for an unknown number of elements
_LONGEST = 1024  # elements of `k` blocks, for an unknown number of elements


@op("TopK", static=("K",), rank=same)
class TopK:
    """The k extreme elements, ties in order of position; NaN is largest.

    Elements have unsigned keys in the same order. The key of the k-th element is found four bits at a time, by counting
    the elements at or above each of 16 keys. Those above it, and as many of its equals as needed, are then ranked, or
    sorted if there are more than 512. With
    many elements, only a few are examined: each of the k is in one of the k blocks with the largest maxima.
    Up to eight elements of at most 32 bits are found one after another, each the largest below the previous one.
    """

    def body(t, x, k_of, *, a):
        count = static_dims("TopK", "K", k_of)
        if len(count) != 1:
            raise Invalid(f"`K` of `TopK` has {len(count)} elements")
        k = count[0]
        axis = normalize_axis(a.axis, x.rank, "TopK")
        n = x.shape[axis]
        if upper(k) < 0 or upper(n - k) < 0:
            raise Invalid(f"`TopK` of {k} elements along an axis of {n}")
        if lower(n - k) < 0 or lower(k) < 0:
            t.check([], lambda: (wrap(k) >= 0) & (wrap(k) <= wrap(n)), "`TopK` requests more elements than there are")
        if isinstance(k, int) and 0 < k <= _ONE_BY_ONE and x.dtype.bits <= 32 and lower(n) <= LAST:
            if upper(n) > LAST:
                t.check([], lambda: wrap(n) <= LAST, "`TopK` supports at most 2**32 - 1 elements")
            return _one_by_one(t, x, axis, k, largest=bool(a.largest))
        keys = sort_keys(t, x, largest=bool(a.largest))
        positions = _candidates(t, keys, axis, k)
        chosen = t.map(positions.shape, lambda *i: keys[_put(i, axis, positions[i])], name="chosen")
        if lower(positions.shape[axis]) > _RANKED:  # rows of any length may be short, and are then ranked sooner
            sorted_ones = descending(t, chosen, axis)
            shape = tuple(k if j == axis else d for j, d in enumerate(x.shape))
            indices = t.map(shape, lambda *i: positions[_put(i, axis, sorted_ones[i])], name="indices")
            return t.map(shape, lambda *i: x[_put(i, axis, indices[i])], name="values"), indices
        ranks = _ranks(t, chosen, axis)
        order = _scattered(t, x.shape, axis, k, chosen.shape, lambda *u: cast(I64, ranks[u]), lambda *u: positions[u])
        indices = t.map(order.shape, lambda *i: order[i], name="indices")
        return t.map(order.shape, lambda *i: x[_put(i, axis, order[i])], name="values"), indices


def _put(i: tuple[Expr, ...], axis: int, position: Expr) -> tuple[Expr, ...]:
    return (*i[:axis], position, *i[axis + 1 :])


def _candidates(t: Builder, keys: Tensor, axis: int, k: Dim) -> Tensor:
    """Positions of a superset of the `k` largest elements, in order, the first among equal ones."""
    n = keys.shape[axis]
    if n == k or (isinstance(n, int) and n <= _FEW):
        return t.map(keys.shape, lambda *i: i[axis], name="positions")
    return _greatest(t, keys, axis, k)


def _greatest(t: Builder, keys: Tensor, axis: int, k: Dim) -> Tensor:
    """Positions of exactly the `k` largest elements, in their original order."""
    n = keys.shape[axis]
    if isinstance(k, int) and k > 0:
        length, shortest = (isqrt(n // k), _SHORTEST) if isinstance(n, int) else (_LONGEST // k, 3 * _SHORTEST)
        if length >= shortest:
            return _from_blocks(t, keys, axis, k, length)
    return _chosen(t, keys, axis, k)


def _from_blocks(t: Builder, keys: Tensor, axis: int, k: int, length: int) -> Tensor:
    """Positions as for `_candidates`, from the `k` blocks with the largest maxima, the first among equal ones.

    An element of any other block is preceded by `k` elements: the maxima of these blocks. For the top 50 of 128,000
    elements, 2,560 block maxima and then 2,500 elements are examined. Positions past the end have the lowest key, and
    come last. There are at least `k` blocks; with a symbolic number of elements, some may be past the end. Keys are
    padded to whole blocks, so that no element is tested again: 50 of 32,000, symbolic, 57 --> 43 us (Zen 4).
    """
    n = keys.shape[axis]
    count = ceildiv(n, length) if isinstance(n, int) else maximum(ceildiv(n, length), k)
    least = literal(0, keys.dtype)

    def whole(*i: Expr) -> Expr:
        return where(i[axis] < wrap(n), keys[_put(i, axis, minimum(i[axis], wrap(n - 1)))], least)

    padded = keys
    if count * length != n:
        padded = t.map((*keys.shape[:axis], count * length, *keys.shape[axis + 1 :]), whole, name="padded")

    def element(at: Expr, i: tuple[Expr, ...]) -> Expr:
        return padded[_put(i, axis, at)]

    shape = (*keys.shape[:axis], count, *keys.shape[axis + 1 :])
    tops = t.reduce("max", shape, [length], lambda *i: element(i[axis] * length + i[-1], i[:-1]), name="tops")
    blocks = (_greatest if isinstance(n, int) else _chosen)(t, tops, axis, k)
    among = blocks.shape[axis] * length
    shape = (*keys.shape[:axis], among, *keys.shape[axis + 1 :])

    def place(*i: Expr) -> Expr:
        return blocks[_put(i, axis, i[axis] // length)] * length + i[axis] % length

    places = t.map(shape, place, name="places")
    part = t.map(shape, lambda *i: element(places[i], i), name="part")
    found = _greatest(t, part, axis, k)
    return t.map(found.shape, lambda *i: minimum(places[_put(i, axis, found[i])], wrap(n - 1)), name="positions")


def _chosen(t: Builder, keys: Tensor, axis: int, k: Dim) -> Tensor:
    """Positions of the `k` largest keys in their original order, the first among equal ones."""
    n = keys.shape[axis]
    least = _kth(t, keys, axis, k)
    outer = lambda i: (*i[:axis], *i[axis + 1 :])
    above = t.sum(least.shape, [n], lambda *i: cast(I64, keys[_at(i, axis)] > least[i[:-1]]), name="above")

    # How many are above and, in the upper half, how many equal the lowest.
    def kind(*i: Expr) -> Expr:
        key, end = keys[i], least[outer(i)]
        return where(key > end, literal(1, I64), where(equal(key, end), literal(1 << 32, I64), literal(0, I64)))

    kinds = t.map(keys.shape, kind, name="kinds")
    before = running(t, kinds, axis, "add", literal(0, I64))

    def place(*u: Expr) -> Expr:
        mine, end = kinds[u], wrap(k) - above[outer(u)]
        passed = before[u] - mine
        equals = binary("shr", passed, literal(32, I64))
        at = binary("and", passed, literal((1 << 32) - 1, I64)) + minimum(equals, end)
        taken = equal(mine, 1) | ((mine > 1) & (equals < end))
        return where(taken, at, wrap(k))

    return _scattered(t, keys.shape, axis, k, keys.shape, place, lambda *u: u[axis])


def _one_by_one(t: Builder, x: Tensor, axis: int, k: int, *, largest: bool) -> tuple[Tensor, Tensor]:
    """Values and positions of the `k` largest elements, each found as the largest one below the previous one.

    A key and the complement of a position form one number. No two are equal, and of equal keys the first is largest.
    Element `j` is in block `j % blocks`, so the maxima of all blocks are computed a vector at a time. The k elements
    are in the k blocks with the largest maxima. Past the end there are zeros, smaller than any element.
    """
    n = x.shape[axis]
    blocks = _LANES * ceildiv(max(isqrt(n * k), k), _LANES) if isinstance(n, int) else _BLOCKS
    length = ceildiv(n, blocks)

    def resized(extent: Dim) -> tuple[Dim, ...]:
        return (*x.shape[:axis], extent, *x.shape[axis + 1 :])

    def number(*i: Expr) -> Expr:
        at = i[axis]
        key = sort_key(x[_put(i, axis, minimum(at, wrap(n - 1)))], largest=largest)
        return where(at < wrap(n), numbered(key, at), literal(0, U64))

    numbers = t.map(resized(length * blocks), number, name="numbers")

    def in_block(*i: Expr) -> Expr:
        return numbers[_put(i[:-1], axis, i[axis] + i[-1] * blocks)]

    tops = t.reduce("max", resized(blocks), [length], in_block, name="tops")
    chosen = _joined(t, _descending(t, tops, axis, k), axis)

    def among(*i: Expr) -> Expr:
        top = chosen[_put(i, axis, i[axis] % k)]
        return numbers[_put(i, axis, position_of(top) % blocks + i[axis] // k * blocks)]

    found = _joined(t, _descending(t, t.map(resized(length * k), among, name="among"), axis, k), axis)
    indices = t.map(resized(k), lambda *i: position_of(found[i]), name="indices")
    return t.map(resized(k), lambda *i: x[_put(i, axis, indices[i])], name="values"), indices


def _descending(t: Builder, numbers: Tensor, axis: int, k: int) -> list[Tensor]:
    """The `k` largest of distinct numbers along an axis, largest first."""
    shape, extent = (*numbers.shape[:axis], *numbers.shape[axis + 1 :]), [numbers.shape[axis]]
    found: list[Tensor] = []
    for _ in range(k):

        def below(*i: Expr, last: Tensor | None = found[-1] if found else None) -> Expr:
            number = numbers[_at(i, axis)]
            return number if last is None else where(number < last[i[:-1]], number, literal(0, U64))

        found.append(t.reduce("max", shape, extent, below, name="greatest"))
    return found


def _joined(t: Builder, parts: list[Tensor], axis: int) -> Tensor:
    """The parts stacked along a new axis."""
    shape = parts[0].shape

    def element(*i: Expr) -> Expr:
        outer = (*i[:axis], *i[axis + 1 :])
        value = parts[-1][outer]
        for k in reversed(range(len(parts) - 1)):
            value = where(equal(i[axis], k), parts[k][outer], value)
        return value

    return t.map((*shape[:axis], len(parts), *shape[axis:]), element, name="joined")


def _at(i: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    """A position without the axis, combined with one on it."""
    *outer, r = i
    return (*outer[:axis], r, *outer[axis:])


def _kth(t: Builder, keys: Tensor, axis: int, k: Dim) -> Tensor:
    """The `k`-th largest key: the largest key that at least `k` keys reach."""
    n, unsigned = keys.shape[axis], keys.dtype
    shape = (*keys.shape[:axis], *keys.shape[axis + 1 :])
    found = t.map(shape, lambda *_: literal(0, unsigned), name="least")
    digits = 1 << _DIGIT
    for shift in reversed(range(0, unsigned.bits, _DIGIT)):
        unit = literal(1 << shift, unsigned)

        def reaches(*i: Expr, found: Tensor = found, unit: Expr = unit) -> Expr:
            *outer, digit, r = i
            least = found[tuple(outer)] + cast(unsigned, digit) * unit
            return cast(I32, keys[_at((*outer, r), axis)] >= least)

        counts = t.sum((*shape, digits), [n], reaches, name="counts")

        def most(*i: Expr, counts: Tensor = counts) -> Expr:
            *outer, digit = i
            return cast(unsigned, cast(I64, counts[(*outer, digit + 1)]) >= wrap(k))

        digit = t.sum(shape, [digits - 1], most, name="digit")
        found = t.map(shape, lambda *i, found=found, digit=digit, unit=unit: found[i] + digit[i] * unit, name="least")
    return found


def _ranks(t: Builder, keys: Tensor, axis: int) -> Tensor:
    """How many keys precede each: larger ones, and equal ones before it."""

    def before(*i: Expr) -> Expr:
        *here, r = i
        mine, other = keys[tuple(here)], keys[_put(tuple(here), axis, r)]
        return cast(I32, (other > mine) | (equal(other, mine) & (r < here[axis])))

    return t.sum(keys.shape, [keys.shape[axis]], before, name="rank")


def _scattered(
    t: Builder, shape: tuple[Dim, ...], axis: int, k: Dim, over: tuple[Dim, ...],
    place: Callable[..., Expr], value: Callable[..., Expr],
) -> Tensor:  # fmt: skip
    """`k` values, at the positions given by `place`.

    Values placed at `k` or beyond go to an extra row, which is cut off.
    """
    spare = tuple(k + 1 if j == axis else d for j, d in enumerate(shape))
    target = lambda *u: _put(u, axis, minimum(place(*u), wrap(k)))
    made = t.scatter(spare, lambda *i: literal(0, I64), over, target, value)
    cut = tuple(k if j == axis else d for j, d in enumerate(shape))
    return t.map(cut, lambda *i: made[i], name="taken")


ALL = (TopK,)
