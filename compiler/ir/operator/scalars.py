"""Single-number operands, as a scalar or a one-element tensor."""

from __future__ import annotations

from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te.expr import Expr
from occ.compiler.ir.te.function import Tensor


def scalar(name: str, operand: str, x: Tensor) -> Expr:
    """The element of an operand; if it is not known to have exactly one, the runtime checks.

    Raises:
        Invalid: it has none, or several.
    """
    for n in x.shape:
        equal_dims(n, 1, f"`{name}` takes a single number as `{operand}`: extents")
    return x[(0,) * x.rank]
