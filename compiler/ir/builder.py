"""Builds named ops with their types inferred on the spot: `b.Mul(x, b.Sigmoid(x))`.

The types of a composite operator are those of the ops that it builds, so inference lies here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.compiler.ir.dtype import DType
from occ.compiler.ir.location import UNKNOWN, Location
from occ.compiler.ir.meaning import Known, attributes, static_elements, tensor_of
from occ.compiler.ir.op import FuncRef, Op, Region
from occ.compiler.ir.ops import builtin
from occ.compiler.ir.ops.spec import OpSpec
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.types import Type
from occ.compiler.ir.value import Value, Weight

if TYPE_CHECKING:
    from occ.compiler.ir.module import Module

# What definitions of operators come to where nobody thought of a case.
STUMBLES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    MemoryError,
    RecursionError,
)


class GraphBuilder:
    """Appends ops to a region, or inserts them before an op.

    Any attribute that is an operator name is a function: positional operands (None for absent ones), attributes by
    keyword, `n_results` for operators with several; the domain of other operator sets is written `b.op(name, ...)`.
    """

    def __init__(
        self, region: Region, before: Op | None = None, loc: Location = UNKNOWN, module: Module | None = None,
        registry: Mapping[str, OpSpec] | None = None,
    ) -> None:  # fmt: skip
        self._region, self._before, self._loc, self._module = region, before, loc, module
        if registry is None:
            registry = builtin() if module is None else module.registry
        self._registry = registry

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *operands, **attrs: self.op(name, *operands, **attrs)

    def op(self, name: str, *operands: Value | None, n_results: int = 1, **attrs: Any) -> Any:
        """Append the operator; returns its result, or a tuple when there are several."""
        given = list(operands)
        while given and given[-1] is None:
            given.pop()
        attrs = {k: v for k, v in attrs.items() if v is not None}
        op = Op(self._registry[name], given, attrs, (None,) * n_results, loc=self._loc)
        for value, type_ in zip(op.results, infer_results(op), strict=True):
            value.type = type_
        self._region.insert(op, self._before)
        return op.result if n_results == 1 else op.results

    def call_body(
        self, name: str, operands: Sequence[Value | None], captured: Sequence[Value], types: Sequence[Type],
        body: Callable[..., Sequence[Value]], results: Sequence[Type], **attrs: Any,
    ) -> tuple[Value, ...]:  # fmt: skip
        """Append an op of control flow with a body of its own, a new function of the module; returns its results.

        Args:
            name: `Loop`, `Scan` or `SequenceMap`.
            operands: formal operands.
            captured: what the body reads besides.
            types: of the arguments of the body, captured values last.
            body: builds it: `body(builder, *arguments) -> results`.
            results: types of the results of the op.
            attrs: attributes of the op.
        """
        from occ.compiler.ir.module import Func

        assert self._module is not None, "a function needs a module"
        region = Region(types, [f"a{k}" for k in range(len(types))])
        given = body(GraphBuilder(region, None, self._loc, self._module), *region.args)
        region.insert(Op("yield", given, {}, ()))
        ref = self._module.unused_func(f"{name.lower()}.body")
        self._module.funcs[ref] = Func(ref, region, [])
        attrs = {**attrs, "body": FuncRef(ref), "captures": len(captured)}
        op = Op(name, [*operands, *captured], attrs, results, loc=self._loc)
        self._region.insert(op, self._before)
        return op.results

    def constant(self, data: Any, dtype: DType | None = None) -> Weight:
        """A constant, added to the weights of the module if the builder has one."""
        array = np.asarray(data, dtype.numpy if dtype else None)
        return self._module.add_weight("c", array) if self._module else Weight("c", array)


def infer_results(op: Op, known: Known = static_elements) -> tuple[Type, ...]:
    """Result types of an op whose operands all have types.

    Raises:
        Invalid: the operands do not fit; Unresolved (an Invalid) where the value of an operand is needed.
    """
    spec = op.spec
    a = attributes(op)
    if spec.infer is None and spec.composite is not None:
        return _infer_composite(op)
    names = [spec.operand_name(k) for k in range(len(op.operands))]
    tensors = [
        tensor_of(v, n, known, static=n in spec.static or "shape" in spec.tags)
        for v, n in zip(op.operands, names, strict=True)
    ]
    if spec.infer is not None:
        if spec.region:
            a.regions = op.regions
        results = spec.infer(*tensors, a=a)
    else:
        assert spec.body is not None, f"{op.name} has no infer"
        results = spec.body(Builder(), *tensors, a=a)
    listed = results if isinstance(results, tuple) else (results,)
    types = tuple(r.type if isinstance(r, Tensor) else r for r in listed)
    return types[: len(op.results)]


def _infer_composite(op: Op) -> tuple[Type, ...]:
    scratch = Region()
    results = expand_composite(op, GraphBuilder(scratch, registry=op.spec.registry), op.operands)
    types = tuple(r.type for r in results if r.type is not None)
    for inner in scratch:
        inner.set_operands(())
    return types[: len(op.results)]


def expand_composite(op: Op, b: GraphBuilder, operands: Sequence[Value | None]) -> tuple[Value, ...]:
    """Build the body of a composite operator on other operands; returns its results."""
    assert op.spec.composite is not None
    results = op.spec.composite(b, *operands, a=attributes(op))
    return results if isinstance(results, tuple) else (results,)
