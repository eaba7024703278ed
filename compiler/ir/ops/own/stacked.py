"""Sequences whose elements all have one shape, as tensors: the elements one after the other on an axis before theirs."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dim import maximum
from occ.compiler.ir.ops.spec import OpSpec, op
from occ.compiler.ir.shape import assume_equal, normalize_axis
from occ.compiler.ir.value import Value

JOINED = "concat_stacked"


@op(JOINED, own_attributes="axis=int new_axis=int")
class ConcatStacked:
    """What ConcatFromSequence makes of the elements; at least one, as it asks for."""

    operands = ("x",)

    def composite(b, x: Value, *, a):
        count, *dims = x.tensor.dims
        axis = normalize_axis(a.axis, len(dims) + bool(a.new_axis), "ConcatFromSequence")
        assume_equal(maximum(count, 1), count)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims) + 1)]
        moved = b.Transpose(x, perm=order) if axis else x
        if a.new_axis:
            return b.Identity(moved)
        dims[axis] = dims[axis] * count
        return b.Reshape(moved, b.dims(values=tuple(dims), shape=(len(dims),)), allowzero=1)


ALL: tuple[OpSpec, ...] = (ConcatStacked,)
