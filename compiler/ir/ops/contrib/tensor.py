"""Tensor operators of com.microsoft: expanding, unfolding, unique elements, warping."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.dim import floordiv
from occ.compiler.ir.dtype import I32
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import data_dim, normalize_axis
from occ.compiler.ir.te.expr import Expr
from occ.compiler.ir.types import TensorType


@op(
    f"{DOMAIN}.ExpandDims",
    static=("axis",),
    rank=lambda x, axis, *, a: x.rank + 1,
    signature=FormalSignature.of("X axis"),
)
class ExpandDims:
    """Unsqueeze of one axis, given as a scalar."""

    def composite(b, x, axis, *, a):
        known = static_elements(axis)
        if known is None or len(known) != 1 or not isinstance(known[0], int):
            raise Unresolved("ExpandDims", "axis")
        return b.Unsqueeze(x, b.constant(np.array(known, np.int64)))


@op(f"{DOMAIN}.UnfoldTensor", signature=FormalSignature.of("input", "output", dim=-1, size=None, step=1))
class UnfoldTensor:
    """Slices of `size` along an axis, `step` apart: the axis indexes them, and their elements form a new last axis."""

    def body(t, x, *, a):
        axis = normalize_axis(a.dim, x.rank, "UnfoldTensor")
        extent, size, step = x.shape[axis], a.size, a.step
        if not size or size < 1 or step < 1 or (isinstance(extent, int) and size > extent):
            raise Invalid(f"`UnfoldTensor` of {x.type} with size={size} and step={step}", code="OCC0107")
        shape = (*x.shape[:axis], floordiv(extent - size, step) + 1, *x.shape[axis + 1 :], size)

        def element(*i: Expr) -> Expr:
            return x[(*i[:axis], i[axis] * step + i[-1], *i[axis + 1 : -1])]

        return t.map(shape, element, name="unfolded")


@op(f"{DOMAIN}.Unique", signature=FormalSignature.of("x", "y idx counts"))
class UniqueInOrder:
    """Unique of a vector in order of first occurrence, the index of each element, and the counts."""

    def composite(b, x, *, a):
        if x.tensor.rank != 1:
            raise Invalid(f"`Unique` of `{DOMAIN}` takes a vector, not {x.tensor}")
        y, _, which, counts = b.Unique(x, sorted=0, n_results=4)
        return (y, which, counts)[: a.n_results]


@op(f"{DOMAIN}.DynamicTimeWarping", host="DynamicTimeWarping", signature=FormalSignature.of("input", "output"))
class DynamicTimeWarping:
    """The cheapest path through a cost matrix from corner to corner: its rows and columns, i32[2, n].

    Costs are `[rows, columns]` or `[1, rows, columns]`.
    """

    def infer(x, *, a):
        if x.type.shape is not None and (x.rank not in (2, 3) or (x.rank == 3 and x.shape[0] != 1)):
            raise Invalid(f"`DynamicTimeWarping` takes a matrix, not {x.type}")
        return TensorType(I32, (2, data_dim(0)))


ALL = (
    ExpandDims,
    UnfoldTensor,
    UniqueInOrder,
    DynamicTimeWarping,
)
