"""Prefix sums and products."""

from __future__ import annotations

from collections.abc import Callable

from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.te.expr import Expr, binary, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor

_BLOCK = 128  # elements combined by doubling; the preceding blocks contribute one sum


def running(t: Builder, x: Tensor, axis: int, combine: str, neutral: Expr) -> Tensor:
    """Each element of `x` combined with all preceding ones along `axis`.

    Blocks of 128 by doubling: after step `k` an element holds the last `2**k`. Then the total of all preceding blocks
    is added, one sum per block. So `n` elements take `7 n + (n / 128)**2` steps, whether or not `n` is known.

    Args:
        t: receives the stages.
        x: the elements, in the type in which they are combined.
        axis: not negative.
        combine: `add` or `mul`.
        neutral: of `combine`, of the same type.
    """
    n = x.shape[axis]
    if isinstance(n, int) and n <= 2 * _BLOCK:
        return _doubled(t, x, axis, n, combine)
    blocks = ceildiv(n, _BLOCK)
    shape = (*x.shape[:axis], blocks, _BLOCK, *x.shape[axis + 1 :])

    def piece(*i: Expr) -> Expr:
        at = i[axis] * _BLOCK + i[axis + 1]
        inside = x[(*i[:axis], minimum(at, wrap(n - 1)), *i[axis + 2 :])]
        return where(at < wrap(n), inside, neutral)

    pieces = _doubled(t, t.map(shape, piece, name="pieces"), axis + 1, _BLOCK, combine)
    before = _before(t, pieces, axis, blocks, combine, neutral)

    def element(*i: Expr) -> Expr:
        block, within = i[axis] // _BLOCK, i[axis] % _BLOCK
        here = pieces[(*i[:axis], block, within, *i[axis + 1 :])]
        return binary(combine, before[(*i[:axis], block, *i[axis + 1 :])], here)

    return t.map(x.shape, element, name="running")


def _doubled(t: Builder, x: Tensor, axis: int, n: int, combine: str) -> Tensor:
    step = 1
    while step < n:
        x = t.map(x.shape, _doubling(x, axis, step, combine), name="doubled")
        step *= 2
    return x


def _doubling(x: Tensor, axis: int, step: int, combine: str) -> Callable[..., Expr]:
    def element(*i: Expr) -> Expr:
        before = x[(*i[:axis], i[axis] - step, *i[axis + 1 :])]
        return where(i[axis] >= step, binary(combine, before, x[i]), x[i])

    return element


def _before(t: Builder, pieces: Tensor, axis: int, blocks: Dim, combine: str, neutral: Expr) -> Tensor:
    """The combined last elements of all preceding blocks, per block."""
    shape = (*pieces.shape[: axis + 1], *pieces.shape[axis + 2 :])

    def whole(*i: Expr) -> Expr:
        *here, block = i
        return where(block < here[axis], pieces[(*here[:axis], block, wrap(_BLOCK - 1), *here[axis + 1 :])], neutral)

    return t.reduce("sum" if combine == "add" else "prod", shape, [blocks], whole, name="before")
