"""A device operator that occ only knows by name; the GE graph gets it unchanged."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import BY_NAME
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.types import TensorType


@op(
    "device_operator",
    host="device_operator",
    pure=False,
    tags=("device",),
    own_attributes="type=text attributes=text dtypes=texts ranks=ints dims=sizes",
)
class DeviceOperator:
    """The operator `type` with attributes in JSON; its results have the given element types, ranks and extents.

    A result without an element type is like the first operand.
    """

    def infer(*operands, a):
        made, start = [], 0
        for dtype, rank in zip(a.dtypes, a.ranks, strict=True):
            made.append(TensorType(BY_NAME[dtype], tuple(a.dims[start : start + rank])) if dtype else operands[0].type)
            start += rank
        return tuple(made)


ALL: tuple[OpSpec, ...] = (DeviceOperator,)
