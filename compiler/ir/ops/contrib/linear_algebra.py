"""Matrix products, inverses and distances of com.microsoft."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import I32, U32
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.attention import scaled
from occ.compiler.ir.ops.contrib.activation import activated
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.ops.prefix import LARGEST_MATRIX, largest_pivot_first
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


@op(
    f"{DOMAIN}.FusedMatMul",
    signature=FormalSignature.of("A B", alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0),
)
class FusedMatMul:
    """`alpha * A' @ B'`, where each operand may be transposed.

    With `transBatchA` the first axis moves before the last one; the batch axes then start after it.
    """

    def composite(b, x, y, *, a):
        def turned(v: Value, swap: int, batch: int) -> Value:
            rank = v.tensor.rank
            perm = list(range(rank))
            if batch and rank > 2:
                perm = [*perm[1:-1], 0, perm[-1]]
            if swap and rank > 1:
                perm[-1], perm[-2] = perm[-2], perm[-1]
            return v if perm == sorted(perm) else b.Transpose(v, perm=tuple(perm))

        made = b.MatMul(turned(x, a.transA, a.transBatchA), turned(y, a.transB, a.transBatchB))
        return scaled(b, made, a.alpha)


@op(
    f"{DOMAIN}.FusedGemm",
    signature=FormalSignature.of(
        "A B C?", alpha=1.0, beta=1.0, transA=0, transB=0, activation=None, activation_alpha=None, activation_beta=None,
        activation_gamma=None,
    ),
)  # fmt: skip
class FusedGemm:
    """An activation of Gemm."""

    def composite(b, x, y, c=None, *, a):
        made = b.Gemm(x, y, c, alpha=a.alpha, beta=a.beta, transA=a.transA, transB=a.transB)
        values = tuple(v for v in (a.activation_alpha, a.activation_beta, a.activation_gamma) if v is not None)
        return activated(b, made, a.activation, values)


@op(f"{DOMAIN}.MatMulInteger16", signature=FormalSignature.of("A B"))
class MatMulInteger16:
    """A product of 16-bit integers, in 32 bits."""

    def composite(b, x, y, *, a):
        signed = x.tensor.dtype.name == "i16" or y.tensor.dtype.name == "i16"
        return b.MatMul(*(b.Cast(v, to=I32 if signed else U32) for v in (x, y)))


@op(f"{DOMAIN}.CDist", signature=FormalSignature.of("A B", "C", metric="sqeuclidean"))
class CDist:
    """Pairwise distances of the rows of `A` `[m, k]` and `B` `[n, k]`: `[m, n]`."""

    def composite(b, x, y, *, a):
        if a.metric not in ("sqeuclidean", "euclidean"):
            raise Invalid(f"`metric` is {a.metric!r}", code="OCC0107", help="`sqeuclidean` and `euclidean` are known")
        at = [b.constant(np.array([k], np.int64)) for k in (1, 0, 2)]
        apart = b.Sub(b.Unsqueeze(x, at[0]), b.Unsqueeze(y, at[1]))
        squares = b.ReduceSum(b.Mul(apart, apart), at[2], keepdims=0)
        return b.Sqrt(squares) if a.metric == "euclidean" else squares


@op(f"{DOMAIN}.Inverse", signature=FormalSignature.of("X"))
class Inverse:
    """Inverses of square matrices by elimination with pivoting, one column per stage; inf or NaN if singular."""

    def body(t, x, *, a):
        n = x.shape[-1] if x.rank else 0
        if x.rank < 2 or x.shape[-2] != n or not isinstance(n, int):
            raise Invalid(f"`Inverse` takes square matrices of constant size, not {x.type}")
        if n > LARGEST_MATRIX:
            raise Invalid(
                f"`Inverse` takes matrices of up to {LARGEST_MATRIX} rows, not {n}: each column is a stage of the "
                "kernel"
            )
        dtype = x.dtype.acc

        def with_unit(*i: Expr) -> Expr:
            *at, column = i
            unit = where(equal(column - n, at[-1]), literal(1, dtype), literal(0, dtype))
            return where(column < n, cast(dtype, x[(*at, minimum(column, n - 1))]), unit)

        m = t.map((*x.shape[:-1], 2 * n), with_unit, name="matrix")
        for c in range(n):
            m = _reduced(t, m, c)
        return t.map(x.shape, lambda *i: cast(x.dtype, m[(*i[:-1], i[-1] + n)]), name="inverse")


def _reduced(t: Builder, m: Tensor, c: int) -> Tensor:
    """Turn column `c` into a unit vector by row operations, after moving its largest remaining element to row `c`."""
    s, _ = largest_pivot_first(t, m, c)

    def element(*i: Expr) -> Expr:
        *b, row, column = i
        own = s[(*b, wrap(c), column)] / s[(*b, wrap(c), wrap(c))]
        return where(equal(row, c), own, s[i] - s[(*b, row, wrap(c))] * own)

    return t.map(m.shape, element, name="reduced")


ALL = (
    FusedMatMul,
    FusedGemm,
    MatMulInteger16,
    CDist,
    Inverse,
)
