"""Sequences of equally shaped elements as one tensor, with a new first axis."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dim import maximum
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import assume_equal, normalize_axis

JOINED, LAID = "concat_stacked", "end_to_end"


@op(LAID, own_attributes="axis=int")
class EndToEnd:
    """Concatenates stacked elements along one of their axes: `[n, .., d, ..]` --> `[.., n*d, ..]`.

    There may be no elements.
    """

    operands = ("x",)

    def composite(b, x: Value, *, a):
        count, *dims = x.tensor.dims
        order = [*range(1, a.axis + 1), 0, *range(a.axis + 1, len(dims) + 1)]
        moved = b.Transpose(x, perm=order) if a.axis else x
        dims[a.axis] = dims[a.axis] * count
        return b.Reshape(moved, b.dims(values=tuple(dims), shape=(len(dims),)), allowzero=1)


@op(JOINED, own_attributes="axis=int new_axis=int")
class ConcatStacked:
    """ConcatFromSequence of stacked elements; there must be at least one."""

    operands = ("x",)

    def composite(b, x: Value, *, a):
        count, *dims = x.tensor.dims
        axis = normalize_axis(a.axis, len(dims) + bool(a.new_axis), "ConcatFromSequence")
        assume_equal(maximum(count, 1), count)
        if not a.new_axis:
            return b.op(LAID, x, axis=axis)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims) + 1)]
        return b.Identity(b.Transpose(x, perm=order) if axis else x)


ALL: tuple[OpSpec, ...] = (EndToEnd, ConcatStacked)
