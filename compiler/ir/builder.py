"""Builds named ops with their types inferred on the spot: `b.Mul(x, b.Sigmoid(x))`.

The types of a composite operator are inferred from the ops that it builds, so inference is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.attribute_keys import frozen, is_plain
from occ.compiler.ir.build_te import Elements, Known, attributes, static_elements, tensor_of
from occ.compiler.ir.dim import Dim, lower, symbol, symbols, upper
from occ.compiler.ir.dtype import I64, DType
from occ.compiler.ir.location import UNKNOWN, Location
from occ.compiler.ir.op import FuncRef, Op, Region, Value, Weight
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.operator.spec import OpSpec
from occ.compiler.ir.shape import (
    Assumed,
    assume_at_least,
    assume_equal,
    assumed,
    collecting,
    equal_dims,
    equal_shapes,
    is_placeholder,
)
from occ.compiler.ir.te.function import AnyStage, Builder, Tensor
from occ.compiler.ir.te.required_extents import needed
from occ.compiler.ir.types import TensorType, Type

if TYPE_CHECKING:
    from occ.compiler.ir.module import Module

# Errors that operator definitions raise in unforeseen cases.
OPERATOR_FAILURES = (
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
        registry: Mapping[str, OpSpec] | None = None, *, types_only: bool = False,
    ) -> None:  # fmt: skip
        self._types_only = types_only  # data-dependent extents stay placeholders, as `infer` returns them
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
        for value, type_ in zip(op.results, self._settled(infer_results(op)), strict=True):
            value.type = type_
        self._region.insert(op, self._before)
        return op.result if n_results == 1 else op.results

    def _settled(self, types: Sequence[Type]) -> Sequence[Type]:
        """Types with a symbol of the module for each data-dependent extent, if the builder has one."""
        if self._module is None or self._types_only:
            return types
        found = {str(d) for t in types if isinstance(t, TensorType) for d in t.shape or () if is_placeholder(d)}
        made: dict[str, Dim] = {d: self._module.data_symbol() for d in sorted(found)}
        return [t.substituted(made) if isinstance(t, TensorType) else t for t in types]

    def call_body(
        self, name: str, operands: Sequence[Value | None], captured: Sequence[Value], types: Sequence[Type],
        body: Callable[..., Sequence[Value]], results: Sequence[Type], **attrs: Any,
    ) -> tuple[Value, ...]:  # fmt: skip
        """Append a control-flow op with a body of its own, a new function of the module.

        Returns its results.

        Args:
            name: `Loop`, `Scan` or `SequenceMap`.
            operands: formal operands.
            captured: outer values that the body also reads.
            types: of the body's arguments, captured values last.
            body: builds it: `body(builder, *arguments) -> results`.
            results: types of the results of the op.
            attrs: attributes of the op.
        """
        from occ.compiler.ir.func import Func

        assert self._module is not None, "a function needs a module"
        _fit_body(name, operands, captured, types, attrs)
        region = Region(types, [f"a{k}" for k in range(len(types))])
        given = body(GraphBuilder(region, None, self._loc, self._module, types_only=self._types_only), *region.args)
        region.close(given)
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


def _fit_body(
    name: str, operands: Sequence[Value | None], captured: Sequence[Value], types: Sequence[Type],
    attrs: Mapping[str, Any]
) -> None:  # fmt: skip
    """Require that a body's operands have the types of its arguments.

    Raises:
        Invalid: they certainly do not.
    """
    outside = [*operands, *captured]
    sequences = range(len(operands) - attrs.get("num_scan_inputs", 0), len(operands)) if name == "Scan" else range(0)
    for k, (value, wanted) in enumerate(zip(outside, types, strict=True)):
        if value is None or not isinstance(value.type, TensorType) or not isinstance(wanted, TensorType):
            continue
        if value.type.shape is not None and wanted.shape is not None:
            dims = value.type.dims[1:] if k in sequences else value.type.dims
            equal_shapes(dims, wanted.dims, f"a value that a step takes, `{value.name}`,")
    steps = [v.type.dims[0] for k in sequences if (v := operands[k]) is not None and isinstance(v.type, TensorType)]
    for n in steps[1:]:
        equal_dims(n, steps[0], f"sequences of `{name}` have different lengths")


def infer_results(op: Op, known: Known = static_elements) -> tuple[Type, ...]:
    """Result types of an op whose operands all have types.

    When assumptions are collected, the whole meaning of the operator contributes: conditions and assumptions of a
    composite, and the reads of a te body, apply to the operands just like those stated by `infer`.

    Raises:
        Invalid: the operands do not fit; Unresolved (an Invalid) if the value of an operand is needed.
    """
    spec = op.spec
    if spec.infer is None and spec.composite is not None:
        return _composite_types(op, op.operands)
    names = [spec.operand_name(k) for k in range(len(op.operands))]
    tensors = [
        tensor_of(v, n, known, static=n in spec.static or "shape" in spec.tags)
        for v, n in zip(op.operands, names, strict=True)
    ]
    types = _of_equal_op(op, tensors)
    if spec.infer is not None and spec.composite is not None and assumed() is not None:
        _agree(op, types, known)
    return types


# Result types and assumptions by what they follow from: layers of a model have the same ops on operands of equal types.
_inferred: dict[Hashable, tuple[tuple[Type, ...], list[Assumed]]] = {}
_MOST_INFERRED = 4096


def _of_equal_op(op: Op, tensors: Sequence[Any]) -> tuple[Type, ...]:
    """Result types of an op, inferred once for equal attributes and operands."""
    pairs, values = assumed(), op.attrs.values()
    plain = all(isinstance(v, (int, float, str)) or (isinstance(v, tuple) and is_plain(v)) for v in values)
    if not plain or op.regions or not all(x is None or isinstance(x, Tensor) for x in tensors):
        return _own_types(op, tensors)
    before = () if pairs is None else tuple(pairs)
    attrs = tuple(sorted((k, frozen(v)) for k, v in op.attrs.items()))
    operands = tuple(None if x is None else (x.type, x.value) for x in tensors)
    key = (op.spec, attrs, operands, len(op.results), pairs is None, before)
    if (found := _inferred.get(key)) is not None:
        types, more = found
        if pairs is not None:
            pairs += more
        return types
    if len(_inferred) >= _MOST_INFERRED:
        _inferred.clear()
    types = _own_types(op, tensors)
    _inferred[key] = types, [] if pairs is None else pairs[len(before) :]
    return types


def _own_types(op: Op, tensors: Sequence[Any]) -> tuple[Type, ...]:
    """Result types as the operator's `infer` or its body states them."""
    spec, a = op.spec, attributes(op)
    if spec.infer is not None:
        if spec.region:
            a.regions = op.regions
        results = spec.infer(*tensors, a=a)
    else:
        assert spec.body is not None, f"{op.name} has no infer"
        t = Builder()
        for k in range(len(tensors)):
            t.fresh(spec.operand_name(k))  # which no stage may have
        results = spec.body(t, *tensors, a=a)
        if assumed() is not None:
            assume_within(op.name, t.stages, {x.name: x.shape for x in tensors if isinstance(x, Tensor)})
    listed = results if isinstance(results, tuple) else (results,)
    return tuple(r.type if isinstance(r, Tensor) else r for r in listed)[: len(op.results)]


def assume_within(name: str, stages: Sequence[AnyStage], shapes: Mapping[str, Sequence[Dim]]) -> None:
    """Require that what a te body reads exists, as far as its indices show.

    Raises:
        Invalid: it certainly does not.
    """
    for n in needed(stages, shapes):
        if n.reads == 1 and (upper(n.extent - n.last) <= 0 or upper(n.first) < 0):
            where = f"{n.last} of {n.extent}" if upper(n.extent - n.last) <= 0 else str(n.first)
            what = f"`{n.source}`" if n.source in shapes else "what it computes"
            raise Invalid(f"`{name}` reads position {where} along axis {n.axis} of {what}")
        if lower(n.extent - n.last) <= 0:
            assume_at_least(n.extent, n.last + 1)
        if (least := lower(n.first)) < 0:
            assume_at_least(n.first, (1 - n.reads) * int(least) if isfinite(least) else 0)


def _composite_types(op: Op, operands: Sequence[Value | None], given: Mapping[int, Elements] = {}) -> tuple[Type, ...]:
    """The result types of a composite operator's ops; `given` are known elements of operands."""
    from occ.compiler.ir.module import Module

    scratch, m = Region(), Module("scratch")
    b = GraphBuilder(scratch, module=m, registry=op.spec.registry, types_only=True)
    reads = [
        b.dims(values=given[k], shape=v.tensor.dims, **({} if v.tensor.dtype == I64 else {"dtype": v.tensor.dtype}))
        if v is not None and k in given
        else v
        for k, v in enumerate(operands)
    ]
    try:
        results = expand_composite(op, b, reads)
        return tuple(r.type for r in results if r.type is not None)[: len(op.results)]
    finally:
        for inner in (*scratch.walk(), *(o for f in m.funcs.values() for o in f.body.walk())):
            inner.set_operands(())


def _agree(op: Op, types: Sequence[Type], known: Known) -> None:
    """Require that an operator with stated types matches its composite."""
    static = [k for k, v in enumerate(op.operands) if v is not None and op.spec.operand_name(k) in op.spec.static]
    elements = {k: known(v) for k in static if isinstance(v := op.operands[k], Value) and not isinstance(v, Weight)}
    given = {k: e for k, e in elements.items() if e is not None and all(x is not None for x in e)}
    pairs: list[Assumed] = []
    with collecting(pairs):
        made = _composite_types(op, op.operands, given)
        for stated, found in zip(types, made, strict=False):
            if isinstance(stated, TensorType) and isinstance(found, TensorType):
                equal_shapes(found.dims, stated.dims, f"`{op.name}`: a result")
    for a, b, spread in pairs:
        if not any(is_placeholder(symbol(n)) for n in symbols(a, b)):
            assume_equal(a, b, spread=spread)


def expand_composite(op: Op, b: GraphBuilder, operands: Sequence[Value | None]) -> tuple[Value, ...]:
    """Build the body of a composite operator on other operands; returns its results."""
    assert op.spec.composite is not None
    results = op.spec.composite(b, *operands, a=attributes(op))
    return results if isinstance(results, tuple) else (results,)
