"""Operands that are one number, as a scalar or in a tensor of one element."""

from __future__ import annotations

from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te.expr import Expr
from occ.compiler.ir.te.function import Tensor


def scalar(name: str, operand: str, x: Tensor) -> Expr:
    """The element of an operand; the runtime checks that there is one where that is not known.

    Raises:
        Invalid: it has none, or several.
    """
    for n in x.shape:
        equal_dims(n, 1, f"`{name}` takes one number as `{operand}`: extents")
    return x[(0,) * x.rank]
