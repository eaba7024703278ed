"""Prefix sums and products."""

from __future__ import annotations

from collections.abc import Callable

from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.te.expr import Expr, binary, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.roles import PREFIX
from occ.compiler.ir.te.scatter_rows import RUNNING

_BLOCK = 512  # bits of elements combined one by one: a vector adds each of them to those lanes that it precedes
_LEVELS = 3  # of blocks, where their number is not known: beyond, each total is combined with all preceding ones


def running(t: Builder, x: Tensor, axis: int, combine: str, neutral: Expr, level: int = 0) -> Tensor:
    """Each element of `x` combined with all preceding ones along `axis`.

    `y[i] = before[i // 16] + sum(x[k] for k in the block of i, up to i)`, where `before` are prefix sums of totals of
    blocks, their last sums. So `n` elements take about `17 n` steps, in vectors of 16 lanes, for any `n`.

    Args:
        t: receives the stages.
        x: the elements, in the type in which they are combined.
        axis: not negative.
        combine: `add` or `mul`.
        neutral: of `combine`, of the same type.
        level: how many levels of blocks there are above.
    """
    n = x.shape[axis]
    size = _BLOCK // x.dtype.bits
    kind = "sum" if combine == "add" else "prod"
    if (isinstance(n, int) and n <= 2 * size) or level == _LEVELS:
        return t.reduce(kind, x.shape, [n], lambda *i: where(i[-1] <= i[axis], x[_at(i, axis, i[-1])], neutral))
    blocks = ceildiv(n, size)

    def term(*i: Expr) -> Expr:
        *_, lane, k = i
        # The last block may extend past the end: nobody sees the sums there.
        place = minimum(i[axis] * size + k, wrap(n - 1))
        return where(k <= lane, x[(*i[:axis], place, *i[axis + 1 : -2])], neutral)

    shape = tuple(blocks if k == axis else e for k, e in enumerate(x.shape))
    within = t.reduce(kind, (*shape, size), [size], term, role=PREFIX)
    totals = t.map(shape, lambda *i: within[(*i, size - 1)], name="totals")
    through = running(t, totals, axis, combine, neutral, level + 1)

    def element(*i: Expr) -> Expr:
        block, lane = i[axis] // size, i[axis] % size
        before = where(block >= 1, through[(*i[:axis], block - 1, *i[axis + 1 :])], neutral)
        return binary(combine, before, within[(*i[:axis], block, *i[axis + 1 :], lane)])

    return t.map(x.shape, element, name="running")


def _at(i: tuple[Expr, ...], axis: int, place: Expr) -> tuple[Expr, ...]:
    """A position of a reduction with another place along an axis."""
    return (*i[:axis], place, *i[axis + 1 : -1])


def columns(
    t: Builder,
    shape: tuple[Dim, ...],
    axis: int,
    read: Callable[..., Expr],
    combine: str,
    neutral: Expr,
    *,
    reverse: bool,
) -> Tensor:
    """Each element combined with all preceding ones along `axis`, one position of it after the other.

    In each of the `n` steps all columns take part, the elements of the other axes.

    Args:
        t: receives the stage.
        shape: of the elements.
        axis: not negative.
        read: the element at a position.
        combine: `add` or `mul`.
        neutral: of `combine`, of the same type.
        reverse: the last element is the first one.
    """
    order = [axis, *(k for k in range(len(shape)) if k != axis)]
    last = wrap(shape[axis] - 1)

    def place(*u: Expr) -> tuple[Expr, ...]:
        at = dict(zip(order, u, strict=True))
        at[axis] = last - at[axis] if reverse else at[axis]
        return tuple(at[k] for k in range(len(shape)))

    return t.scatter(
        shape,
        lambda *i: neutral,
        [shape[k] for k in order],
        place,
        lambda *u: read(*place(*u)),
        combine=RUNNING + combine,
    )
