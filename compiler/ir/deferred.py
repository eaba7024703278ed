"""Deferred operators: compiled at run time, once the shapes of their operands are known.

An op is deferred if its shape depends on an operand computed at run time (such as the `shape` of a Reshape that is a
model input), if an operand's rank is unknown, if native code does not support its element types (strings, complex
numbers), or if its extents would be unmanageably long formulas. The runtime compiles it for the actual operands, and
caches the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.access import access
from occ.compiler.ir.build_te import Known, build_te, static_elements, typed_operands
from occ.compiler.ir.builder import infer_results
from occ.compiler.ir.dim import LONGEST, Dim, weight
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.op import Op
from occ.compiler.ir.operator.onnx_values import DTYPE_ATTRS, onnx_type_name
from occ.compiler.ir.shape import data_dim, depends_on_data
from occ.compiler.ir.types import TensorType, Type

MOST_AXES = 64  # as in numpy
_FOREIGN = frozenset("sc")  # kinds of elements that native code does not support: strings and complex numbers


def has_unknown_rank(op: Op) -> bool:
    """Whether an operand is a tensor of unknown rank."""
    return any(isinstance(v.type, TensorType) and v.type.shape is None for v in op.inputs)


def foreign_types(op: Op) -> list[str]:
    """Element types of an op that native code does not support."""
    types = (v.type for v in (*op.inputs, *op.results))
    return [t.dtype.name for t in types if isinstance(t, TensorType) and t.dtype.kind in _FOREIGN]


def is_deferred(op: Op) -> bool:
    """Whether an op has to wait for its operands; every value has a type."""
    spec = op.spec
    if spec.host or spec.region or not op.results:
        return False
    types = [v.type for v in (*op.inputs, *op.results)]
    foreign = foreign_types(op) and spec.composite is None  # each part of a composite is judged separately
    if foreign or any(not isinstance(t, TensorType) or t.shape is None for t in types):
        return True
    waiting = any(
        spec.operand_name(k) in spec.static and static_elements(v) is None
        for k, v in enumerate(op.operands)
        if v is not None
    )
    loose = any(isinstance(t, TensorType) and any(map(depends_on_data, t.dims)) for t in types)
    if spec.body is not None and not waiting and not loose:
        return False
    try:
        if any(map(_too_long, infer_results(op))):
            return True
        if spec.body is not None:
            build_te("probe", [op], list(dict.fromkeys(op.inputs)), op.results)
    except Unresolved:
        return True
    except Invalid:
        return False
    return False


def result_types(op: Op, known: Known) -> Sequence[Type]:
    """Result types of an op; those of a deferred one if they are data-dependent or too long.

    Raises:
        Invalid: the operands do not fit.
    """
    try:
        types = infer_results(op, known)
    except Unresolved:
        return deferred_types(op)
    return [_shortened(t, k) for k, t in enumerate(types)]


def _shortened(t: Type, k: int) -> Type:
    """A type in which data-dependent extents replace those that are too long."""
    if not _too_long(t):
        return t
    assert isinstance(t, TensorType)
    return t.with_shape(tuple(data_dim(16 * k + i) if weight(d) > LONGEST else d for i, d in enumerate(t.dims)))


def _too_long(t: Type) -> bool:
    """Whether an extent's formula is too long: a chain of Concat and Slice doubles it each time."""
    return isinstance(t, TensorType) and any(weight(d) > LONGEST for d in t.shape or ())


def deferred_types(op: Op) -> tuple[TensorType, ...]:
    """Result types of a deferred op: element types from the schema, and the rank from the operator (`rank`).

    Extents are data-dependent, except those that broadcasting fixes for an elementwise op.

    """
    rank = None
    if op.spec.rank is not None and not has_unknown_rank(op):
        rank = op.spec.rank(*typed_operands(op), a=op.a)
    elif access(op).elementwise:
        return (TensorType(_result_dtype(op, 0), _broadcast(op)),)
    made: list[TensorType] = []
    for k in range(len(op.results)):
        if rank is not None and rank > MOST_AXES:
            raise Invalid(f"a result of `{op.name}` would have {rank} axes")
        shape = None if rank is None else tuple(data_dim(16 * k + axis) for axis in range(rank))
        made.append(TensorType(_result_dtype(op, k), shape))
    return tuple(made)


def _broadcast(op: Op) -> tuple[Dim, ...]:
    """The shape of an elementwise op: an extent common to all operands is kept, and so is one above 1."""
    rank = max(v.tensor.rank for v in op.inputs)
    made: list[Dim] = []
    for axis in range(rank):
        back = axis - rank
        found = {v.tensor.dims[back] for v in op.inputs if v.tensor.rank >= -back} - {1}
        sure = [d for d in found if isinstance(d, int)] or list(found) * (len(found) == 1) or [1] * (not found)
        made.append(sure[0] if sure else data_dim(axis))
    return tuple(made)


def _result_dtype(op: Op, k: int) -> DType:
    """Element type of a result, by the type variables of the ONNX schema."""
    spec, a = op.spec, op.a
    for name in DTYPE_ATTRS - {"stash_type", "softmax_precision", "precision"}:
        stated = getattr(a, name, None)
        if isinstance(stated, DType):
            return stated
    formal = spec.results[min(k, len(spec.results) - 1)] if spec.results else None
    for j, v in enumerate(op.operands):
        if v is None or not isinstance(v.type, TensorType) or not spec.operands or formal is None:
            continue
        if formal.type_var and spec.operands[min(j, len(spec.operands) - 1)].type_var == formal.type_var:
            return v.type.dtype
    if formal is not None and len(formal.types) == 1:
        (only,) = formal.types
        return next(d for d in _every_dtype() if onnx_type_name(d) == only)
    value = getattr(a, "value", None)
    if value is not None:
        from occ.compiler.ir.dtype import from_numpy

        return from_numpy(value.dtype)
    if spec.dtype is not None:
        return spec.dtype
    first = next(v.type for v in op.inputs if isinstance(v.type, TensorType))
    return first.dtype


def _every_dtype() -> list[DType]:
    from occ.compiler.ir.dtype import BY_NAME

    return list(BY_NAME.values())
