"""Stable sorting along an axis: blocks ranked directly, then runs merged by binary search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from occ.compiler.ir.dim import Dim, ceildiv, floordiv, minimum, upper
from occ.compiler.ir.dtype import I32, I64
from occ.compiler.ir.ops.sort_keys import numbered, position_of
from occ.compiler.ir.ops.window_merge import descending_numbers
from occ.compiler.ir.te.expr import Carried, Expr, binary, cast, equal, literal, where, wrap
from occ.compiler.ir.te.expr import minimum as least_of
from occ.compiler.ir.te.function import Builder, Tensor
from occ.runtime.dataclass import dataclass

BLOCK = 256  # elements ranked directly: each is compared with each
_MOST = 1 << 31  # elements of an axis, as native code counts them


def descending(t: Builder, keys: Tensor, axis: int) -> Tensor:
    """Positions of all keys along an axis, largest key first, equal ones in order of position.

    Each round merges runs: an element moves by the number of elements of the neighbouring runs that precede it, found
    by binary search. So `n` elements take `256 n` comparisons in vectors and `n log(n)**2 / 2` steps. The number of
    rounds is that of the longest axis possible; those that find one run alone move nothing. Where that is known and a
    key fits in a number with its position, windows are searched for instead of elements.

    Args:
        t: receives the stages.
        keys: unsigned integers.
        axis: not negative.
    """
    n = keys.shape[axis]
    if isinstance(n, int) and keys.dtype.bits <= 32:
        numbers = t.map(keys.shape, lambda *i: numbered(keys[i], i[axis]), name="numbers")
        largest_first = descending_numbers(t, numbers, axis)
        return t.map(keys.shape, lambda *i: position_of(largest_first[i]), name="order")
    blocks = ceildiv(n, BLOCK)
    at = _Axis(t, keys, axis, blocks * BLOCK, n)
    order = at.blocks()
    run, ways = BLOCK, 2 if isinstance(n, int) else 4
    while run < upper(minimum(at.total, _MOST)):
        order = at.merged(order, run, ways)
        run *= ways
    return t.map(keys.shape, lambda *i: cast(I64, order[i]), name="order")


@dataclass(frozen=True)
class _Axis:
    """The axis of `keys` that is sorted, as whole blocks of `total` positions; those from `n` on come last."""

    t: Builder
    keys: Tensor
    axis: int
    total: Dim
    n: Dim

    @property
    def shape(self) -> tuple[Dim, ...]:
        before, after = self.keys.shape[: self.axis], self.keys.shape[self.axis + 1 :]
        return (*before, self.total, *after)

    def put(self, i: Sequence[Expr], position: Expr) -> tuple[Expr, ...]:
        """A position with another element on the axis."""
        return (*i[: self.axis], position, *i[self.axis + 1 :])

    def key(self, i: Sequence[Expr], position: Expr) -> Expr:
        """A key by its position, the lowest one past the end."""
        inside = self.keys[self.put(i, least_of(position, wrap(self.n - 1)))]
        return inside if self.total == self.n else where(position < wrap(self.n), inside, literal(0, self.keys.dtype))

    def blocks(self) -> Tensor:
        """The order once each block is sorted: an element moves to the number of those that precede it."""
        before, after = self.keys.shape[: self.axis], self.keys.shape[self.axis + 1 :]
        shape = (*before, floordiv(self.total, BLOCK), BLOCK, *after)

        def flat(i: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
            return (*i[: self.axis], i[self.axis] * BLOCK + place, *i[self.axis + 2 :])

        def key(*i: Expr) -> Expr:
            at = flat(i, i[self.axis + 1])
            return self.key(at, at[self.axis])

        keys = self.t.map(shape, key, name="keys")

        def precedes(*i: Expr) -> Expr:
            *here, r = i
            mine, at = keys[tuple(here)], here[self.axis + 1]
            theirs = keys[(*here[: self.axis + 1], r, *here[self.axis + 2 :])]
            return cast(I32, (theirs > mine) | (equal(theirs, mine) & (r < at)))

        ranks = self.t.sum(shape, [BLOCK], precedes, name="rank")
        return self._scattered(
            shape, lambda *u: flat(u, cast(I64, ranks[u])), lambda *u: cast(I32, flat(u, u[self.axis + 1])[self.axis])
        )

    def _scattered(
        self, over: tuple[Dim, ...], target: Callable[..., Sequence[Expr]], value: Callable[..., Expr]
    ) -> Tensor:
        return self.t.scatter(self.shape, lambda *_: literal(0, I32), over, target, value)

    def merged(self, order: Tensor, run: int, ways: int) -> Tensor:
        """The order after merging that many neighbouring runs each."""
        axis, total = self.axis, wrap(self.total)
        keys = self.t.map(self.shape, lambda *i: self.key(i, cast(I64, order[i])), name="ordered")
        several = minimum(ceildiv(self.total, run) - 1, 1)  # 0 if there is one run
        steps = several * (run.bit_length())

        def search(*i: Expr) -> Expr:
            """How many of another run precede an element: one more step of a binary search."""
            other, *here, step = i
            at = here[axis]
            mine = at // run % ways
            theirs = (mine + 1 + other) % ways
            start = (at // run - mine + theirs) * run
            found = Carried(I32) + binary("shr", literal(run, I32), cast(I32, step))
            last = start + cast(I64, found) - 1
            probe = keys[self.put(here, least_of(last, total - 1))]
            key = keys[tuple(here)]
            precedes = (probe > key) | (equal(probe, key) & (theirs < mine))
            inside = (found <= run) & (last < total)
            return where(inside & precedes, found, Carried(I32))

        counts = self.t.reduce("fold", (ways - 1, *self.shape), [steps], search, name="counts")

        def place(*u: Expr) -> tuple[Expr, ...]:
            at = u[axis]
            moved = reduce(add, (counts[(k, *u)] for k in range(ways - 1)))
            return self.put(u, at // (run * ways) * (run * ways) + at % run + cast(I64, moved))

        return self._scattered(self.shape, place, lambda *u: order[u])
