"""Matrix products and softmax as GE nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.window import strided
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def product(e: Emitter, x: Ref, y: Ref, dtype: str | None = None, *, ta: bool = False, tb: bool = False) -> Ref:
    """`x @ y` over the last two axes, leading ones broadcast; for operands of rank 2 or more.

    Args:
        dtype: element type of the result, that of `x` by default.
        ta, tb: whether an operand is transposed in its last two axes.

    Raises:
        Unsupported: no chip multiplies such elements.
    """
    if x.dtype == "INT32":
        raise Unsupported("no chip has a kernel of a product of INT32")
    if x.dtype == "INT8" and e.unit_for("MatMulV2", "INT8") == "fixed":
        return _product_of_codes(e, x, y, ta=ta, tb=tb)
    rows, cols = x.shape[-1 if ta else -2], y.shape[-2 if tb else -1]
    batch = tuple(int(d) for d in np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    out = Desc(dtype or x.dtype, (*batch, rows, cols))
    if len(x.shape) == len(y.shape) == 2:
        return e.op("MatMulV2", x, y, out=out, transpose_x1=ta, transpose_x2=tb)
    return e.op("BatchMatMulV2", x, y, out=out, adj_x1=ta, adj_x2=tb)


def _product_of_codes(e: Emitter, x: Ref, y: Ref, *, ta: bool, tb: bool) -> Ref:
    """A dynamic INT8 product in half precision with FLOAT sums, since INT8 kernels need known extents.

    It is exact, as sums of so few products are below 2^24; longer rows are split.

    Raises:
        Unsupported: batched products only have half-precision sums.
    """
    if len(y.shape) > 2 and not e.chip.wide_batches:
        raise Unsupported("the chip has no kernel of a batch of products of INT8 with extents that are not fixed")
    k, at, to = x.shape[-2 if ta else -1], len(x.shape) - (2 if ta else 1), len(y.shape) - (1 if tb else 2)
    total: Ref | None = None
    for start in range(0, k, _EXACT_SUMS):
        stop = min(start + _EXACT_SUMS, k)
        a, b = (_codes_as_half(e, v, axis, start, stop) for v, axis in ((x, at), (y, to)))
        part = e.cast(_rows_times(e, a, b, ta=ta, tb=tb), "INT32")
        total = part if total is None else e.op("Add", total, part)
    assert total is not None, "an operand is not empty"
    return total


_EXACT_SUMS = 1 << 10


def _codes_as_half(e: Emitter, v: Ref, axis: int, start: int, stop: int) -> Ref:
    """Some of the codes along an axis as FLOAT16; constants at build time."""
    if v.node.type == "Const":
        return e.constant(np.take(v.node.value, np.arange(start, stop), axis).astype(np.float16))
    if (start, stop) == (0, v.shape[axis]):
        return e.cast(v, "FLOAT16")
    shape = tuple(stop - start if k == axis else d for k, d in enumerate(v.shape))
    return e.cast(strided(e, v, [start], [stop], [axis], [1], Desc(v.dtype, shape)), "FLOAT16")


def _rows_times(e: Emitter, x: Ref, y: Ref, *, ta: bool, tb: bool) -> Ref:
    """A product of FLOAT16 with FLOAT sums.

    Rows times a single matrix are one product, for which every chip has such a kernel.
    """
    if len(y.shape) > 2 or ta:
        return product(e, x, y, "FLOAT", ta=ta, tb=tb)
    rows = product(e, e.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])), y, "FLOAT", tb=tb)
    return e.reshape(rows, (*x.shape[:-1], rows.shape[-1]))


def matmul(e: Emitter, x: Ref, y: Ref, dtype: str | None = None) -> Ref:
    """`numpy.matmul`: operands of rank 1 count as a row and as a column."""
    if not x.shape or not y.shape:
        raise Unsupported("an operand is a scalar")
    left = e.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    right = e.reshape(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    made = product(e, left, right, dtype)
    shape = list(made.shape)
    if len(y.shape) == 1:
        del shape[-1]
    if len(x.shape) == 1:
        del shape[-2 if len(y.shape) > 1 else -1]
    return e.reshape(made, shape)


def _matmul(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    return matmul(e, x, y)


def _gemm(e: Emitter, op: Op, x: Ref, y: Ref, c: Ref | None = None) -> Ref:
    a = op.a
    made = product(e, x, y, ta=bool(a.transA), tb=bool(a.transB))
    if a.alpha != 1:
        made = _scaled(e, made, a.alpha)
    if c is None or a.beta == 0:
        return made
    return e.op("Add", made, c if a.beta == 1 else _scaled(e, c, a.beta))


def _scaled(e: Emitter, x: Ref, by: float) -> Ref:
    return e.op("Muls", x, value=float(by))


def _softmax(kind: str) -> Row:
    def row(e: Emitter, op: Op, x: Ref) -> Ref:
        return e.op(kind, x, axes=[op.a.axis % max(len(x.shape), 1)])

    return row


def _hardmax(e: Emitter, op: Op, x: Ref) -> Ref:
    axis = op.a.axis % len(x.shape)
    shape = tuple(d for k, d in enumerate(x.shape) if k != axis)
    first = e.op("ArgMaxV2", x, e.constant(np.array(axis, np.int32)), out=Desc("INT32", shape), dtype="INT32")
    on, off, depth = e.scalar(1, x), e.scalar(0, x), e.constant(np.array(x.shape[axis], np.int32))
    at = -1 if axis == len(x.shape) - 1 else axis
    return e.op("OneHot", first, depth, on, off, out=x.desc, axis=at)


def _det(e: Emitter, op: Op, x: Ref) -> Ref:
    return e.op("MatrixDeterminant", x, out=Desc(x.dtype, x.shape[:-2]))


ROWS: dict[str, Row] = {
    "Det": _det,
    "Gemm": _gemm,
    "Hardmax": _hardmax,
    "LogSoftmax": _softmax("LogSoftmaxV2"),
    "MatMul": _matmul,
    "Softmax": _softmax("SoftmaxV2"),
}
