"""Products of matrices by one level of Strassen's method: 7 products of quarters instead of 8.

Strassen, "Gaussian elimination is not optimal" (1969). It has the smallest error bound among methods with 7 products;
Winograd's variant saves 3 of 18 sums, one of them in each non-constant operand.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import ceildiv
from occ.compiler.ir.layout import Layout
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, equal, minimum, where, wrap
from occ.compiler.ir.te.roles import STRASSEN

# Signs of the quarters 11, 12, 21, 22 of the operands in each of the products, and of the products in each quarter of
# the result.
LEFT = ((1, 0, 0, 1), (0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 0), (-1, 0, 1, 0), (0, 1, 0, -1))
RIGHT = ((1, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, -1), (-1, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (0, 0, 1, 1))
RESULT = ((1, 0, 0, 1, -1, 0, 1), (0, 0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 0, 0), (1, -1, 1, 0, 0, 1, 0))


def quarters_of_weight(w: np.ndarray, width: int) -> np.ndarray:
    """f[K, N] --> the same type [4, K/2, N/2], its quarters 11, 12, 21, 22.

    N is a multiple of `2 * width`.

    The halves of K follow each other; those of N alternate, `width` columns at a time.
    """
    k, n = (size // 2 for size in w.shape)
    parts = w.reshape(2, k, n // width, 2, width)
    return np.stack([parts[i, :, :, j].reshape(k, n) for i in (0, 1) for j in (0, 1)])


def _sum(signs: Sequence[int], values: Sequence[Expr]) -> Expr:
    """The sum of values with signs, the positive ones first."""
    terms = sorted(((s, v) for s, v in zip(signs, values, strict=True) if s), key=lambda t: -t[0])
    total = terms[0][1]
    for s, v in terms[1:]:
        total = total + v if s > 0 else total - v
    return total


def _choose(which: Expr, options: Sequence[Expr]) -> Expr:
    value = options[-1]
    for k in reversed(range(len(options) - 1)):
        value = where(equal(which, k), options[k], value)
    return value


@op("strassen", tags=("contraction",), reads="last", own_attributes="rows=size width=int")
class Strassen:
    """`x @ w` for `x : f32[.., M, K]` and `u`, the `quarters_of_weight` of `w : f32[K, N]` for `width`.

    The halves of the rows alternate, `rows` at a time, like those of the columns: so a block of rows and a panel of
    columns contain all quarters of a product. Rows missing from the last block repeat the last row, and are discarded.
    """

    operands = ("x", "u")

    def weight(x, u, *, a, lanes):
        return Layout((2, 0, 1), ((2, a.width),))

    def body(t, x, u, *, a):
        *batch, m, k = x.shape
        _, k2, n2 = u.shape
        half, width, nb = a.rows, a.width, len(batch)
        if k != 2 * k2 or n2 % width:
            raise Invalid(f"`strassen`: f32[{m}, {k}] does not fit f32[4, {k2}, {n2}] and panels of {width}")
        blocks = ceildiv(m, 2 * half)

        def left(*i):
            b, block, e, row, r = i[:nb], *i[nb:]
            first = block * (2 * half) + row
            rows = (
                [first, first + half]
                if blocks * 2 * half == m
                else [minimum(r, wrap(m - 1)) for r in (first, first + half)]
            )
            return _choose(e, [_sum(signs, [x[(*b, p, q)] for p in rows for q in (r, r + k2)]) for signs in LEFT])

        v = t.map([*batch, blocks, len(LEFT), half, k2], left, role=STRASSEN["left"])

        def product(*i):
            *outer, e, row, panel, column, r = i
            right = _choose(e, [_sum(signs, [u[q, r, panel * width + column] for q in range(4)]) for signs in RIGHT])
            return f.in_acc(v[(*outer, e, row, r)]) * f.in_acc(right)

        acc = t.sum([*batch, blocks, len(LEFT), half, n2 // width, width], [k2], product, role=STRASSEN["sum"])
        p = t.map(acc.shape, lambda *i: acc[i], role=STRASSEN["products"])

        def result(*i):
            b, row, column = i[:nb], *i[nb:]
            at = (row % half, column // (2 * width), column % width)
            parts = [p[(*b, row // (2 * half), e, *at)] for e in range(len(LEFT))]
            return _choose(row // half % 2 * 2 + column // width % 2, [_sum(signs, parts) for signs in RESULT])

        return t.map([*batch, m, 2 * n2], result, role=STRASSEN["result"])


ALL = (Strassen,)
