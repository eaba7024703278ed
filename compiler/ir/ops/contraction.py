"""Matrix products: MatMul and Gemm."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import F64
from occ.compiler.ir.layout import Layout, in_panels
from occ.compiler.ir.operator.matrix_product import MatrixProduct
from occ.compiler.ir.operator.random_shapes import matrices
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.shape import broadcast_shapes, broadcasts_to, equal_dims, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast
from occ.compiler.ir.te.function import Builder, Tensor


def matmul(t: Builder, name: str, a_: Tensor, b_: Tensor) -> Tensor:
    """numpy.matmul in the accumulation type: 1-D operands are a row on the left and a column on the right.

    Raises:
        Invalid: the extents do not fit.
    """
    if a_.rank == 0 or b_.rank == 0:
        raise Invalid(f"`{name}` does not take scalars")
    row, column = a_.rank == 1, b_.rank == 1
    what = f"`{name}`: inner extents of {show_shape(a_.shape)} and {show_shape(b_.shape)} differ"
    k = equal_dims(a_.shape[-1], b_.shape[0] if column else b_.shape[-2], what)
    batch = broadcast_shapes(a_.shape[:-2], b_.shape[:-2], op=name)
    shape = [*batch, *([] if row else [a_.shape[-2]]), *([] if column else [b_.shape[-1]])]
    nb = len(batch)

    def product(*i: Expr) -> Expr:
        index, r = list(i[:-1]), i[-1]
        m = [] if row else [index[nb]]
        n = [] if column else [index[-1]]
        left = a_.at((*index[:nb], *m, r))
        right = b_.at((*index[:nb], r, *n))
        return f.in_acc(left) * f.in_acc(right)

    return t.sum(shape, [k], product, name="matmul")


def _panels(w: Tensor, axis: int, lanes: int) -> Layout | None:
    """Panels of columns, along one axis of a matrix of floats.

    In panels of as many numbers as f32 has, f64 has four vectors, whose sums leave registers: 128 rows of [512, 512]
    take 2.6 times as long (Zen 4; AVX2 1.8).

    Args:
        w: the matrix.
        axis: of the columns.
        lanes: f32 per vector.
    """
    own = lanes // 2 if w.dtype == F64 else lanes
    return in_panels(w.shape, axis, (axis, 1 - axis), own, own // 2) if w.dtype.is_float else None


@op("MatMul", tags=("contraction",), sample=matrices, reads="last", writes="last")
class MatMul:
    """numpy.matmul: 1-D operands are a row on the left and a column on the right, batch axes broadcast."""

    def matrix_product(a):
        return MatrixProduct()

    def weight(a_, b_, *, a, lanes):
        return _panels(b_, 1, lanes) if b_.rank == 2 else None

    def body(t, a_, b_, *, a):
        acc = matmul(t, "MatMul", a_, b_)
        return acc if acc.dtype == a_.dtype else t.map(acc.shape, lambda *i: cast(a_.dtype, acc[i]), name="round")


@op("Gemm", tags=("contraction",), sample=matrices, reads="rows")
class Gemm:
    """`alpha * A' @ B' + beta * C`."""

    def matrix_product(a):
        return MatrixProduct(bool(a.transA), bool(a.transB), a.alpha, a.beta)

    def weight(a_, b_, c=None, *, a, lanes):
        axis = 0 if a.transB else 1
        return _panels(b_, axis, lanes)

    def body(t, a_, b_, c=None, *, a):
        if a_.rank != 2 or b_.rank != 2:
            raise Invalid(f"`Gemm` multiplies matrices, not ranks {a_.rank} and {b_.rank}")
        m, ka = reversed(a_.shape) if a.transA else a_.shape
        kb, n = reversed(b_.shape) if a.transB else b_.shape
        what = f"`Gemm`: inner extents of {show_shape(a_.shape)} and {show_shape(b_.shape)} differ"
        k = equal_dims(ka, kb, what)
        if c is not None:
            what = f"`Gemm`: C of shape {show_shape(c.shape)} does not broadcast to {show_shape((m, n))}"
            broadcasts_to(c.shape, (m, n), what)

        def product(i, j, r):
            left = a_[r, i] if a.transA else a_[i, r]
            right = b_[j, r] if a.transB else b_[r, j]
            return f.in_acc(left) * f.in_acc(right)

        acc = t.sum([m, n], [k], product, name="gemm")

        real = acc.dtype.is_int and any(n % 1 for n in (a.alpha, a.beta))  # a non-integer factor on integers

        def scaled(value, factor):
            value = cast(F64, value) if real else value
            return value if factor == 1 else value * factor

        def element(*i):
            value = scaled(acc[i], a.alpha)
            if c is not None:
                value = value + scaled(f.in_acc(c.at(i)), a.beta)
            return cast(a_.dtype, value)

        return t.map([m, n], element, name="gemm_out")


ALL = (MatMul, Gemm)
