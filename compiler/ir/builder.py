"""Builds named ops with their types inferred on the spot: `b.Mul(x, b.Sigmoid(x))`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.location import UNKNOWN, Location
from occ.compiler.ir.op import Op, Region
from occ.compiler.ir.value import Value, Weight

if TYPE_CHECKING:
    from occ.compiler.ir.module import Module


class GraphBuilder:
    """Appends ops to a region, or inserts them before an op.

    Any attribute that is an operator name is a function: positional operands (None for absent ones), attributes by
    keyword, `n_results` for operators with several; the domain of other operator sets is written `b.op(name, ...)`.
    """

    def __init__(
        self, region: Region, before: Op | None = None, loc: Location = UNKNOWN, module: Module | None = None
    ) -> None:
        self._region, self._before, self._loc, self._module = region, before, loc, module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *operands, **attrs: self.op(name, *operands, **attrs)

    def op(self, name: str, *operands: Value | None, n_results: int = 1, **attrs: Any) -> Any:
        """Append the operator; gives its result, or a tuple when there are several."""
        from occ.compiler.ir.meaning import infer_results

        given = list(operands)
        while given and given[-1] is None:
            given.pop()
        attrs = {k: v for k, v in attrs.items() if v is not None}
        op = Op(name, given, attrs, (None,) * n_results, loc=self._loc)
        for value, type_ in zip(op.results, infer_results(op), strict=True):
            value.type = type_
        self._region.insert(op, self._before)
        return op.result if n_results == 1 else op.results

    def constant(self, data: Any, dtype: DType | None = None) -> Weight:
        """A constant, added to the weights of the module if the builder has one."""
        array = np.asarray(data, dtype.numpy if dtype else None)
        return self._module.add_weight("c", array) if self._module else Weight("c", array)
