"""Sequences and optionals. The elements of a sequence have the extents that its type states, or any where it states none."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import BOOL, F32, I64
from occ.compiler.ir.ops.spec import OpSpec, op
from occ.compiler.ir.shape import data_dim, normalize_axis
from occ.compiler.ir.types import OptionalType, SequenceType, TensorType, Type


def _common(types: list[Type], operator: str) -> Type:
    """The element type of a sequence of values of these types."""
    first = types[0]
    if all(t == first for t in types):
        return first
    if any(not isinstance(t, TensorType) or t.dtype != first.dtype for t in types):
        raise Invalid(
            f"`{operator}` takes values of one element type, not {' and '.join(sorted(set(map(str, types))))}"
        )
    return TensorType(first.dtype, None)


def _elem(sequence, operator: str) -> Type:
    if not isinstance(sequence.type, SequenceType):
        raise Invalid(f"`{operator}` takes a sequence, not {sequence.type}")
    return sequence.type.elem


@op("SequenceEmpty", host="SequenceEmpty")
class SequenceEmpty:
    def infer(*, a):
        return SequenceType(TensorType(a.dtype or F32, None))


@op("SequenceConstruct", host="SequenceConstruct")
class SequenceConstruct:
    def infer(*values, a):
        return SequenceType(_common([v.type for v in values], "SequenceConstruct"))


@op("SequenceInsert", host="SequenceInsert")
class SequenceInsert:
    def infer(sequence, value, position=None, *, a):
        return SequenceType(_common([_elem(sequence, "SequenceInsert"), value.type], "SequenceInsert"))


@op("SequenceErase", host="SequenceErase")
class SequenceErase:
    def infer(sequence, position=None, *, a):
        return SequenceType(_elem(sequence, "SequenceErase"))


@op("SequenceAt", host="SequenceAt")
class SequenceAt:
    def infer(sequence, position, *, a):
        return _elem(sequence, "SequenceAt")


@op("SequenceLength", host="SequenceLength")
class SequenceLength:
    def infer(sequence, *, a):
        _elem(sequence, "SequenceLength")
        return TensorType(I64, ())


@op("ConcatFromSequence", host="ConcatFromSequence")
class ConcatFromSequence:
    def infer(sequence, *, a):
        elem = _elem(sequence, "ConcatFromSequence")
        if elem.shape is None:
            return elem
        rank = elem.rank + bool(a.new_axis)
        axis = normalize_axis(a.axis, rank, "ConcatFromSequence")
        dims = list(elem.dims)
        if not a.new_axis:
            dims.pop(axis)
        dims.insert(axis, data_dim(0))
        return elem.with_shape(tuple(dims))


@op("SplitToSequence", host="SplitToSequence")
class SplitToSequence:
    def infer(x, split=None, *, a):
        if x.type.shape is None or split is not None:
            return SequenceType(TensorType(x.dtype, None))
        axis = normalize_axis(a.axis, x.rank, "SplitToSequence")
        dims = [1 if k == axis else d for k, d in enumerate(x.shape) if k != axis or a.keepdims]
        return SequenceType(TensorType(x.dtype, tuple(dims)))


@op("Optional", host="Optional")
class Optional:
    def infer(x=None, *, a):
        return OptionalType(a.type if x is None else x.type)


@op("OptionalGetElement", host="OptionalGetElement")
class OptionalGetElement:
    def infer(x, *, a):
        return x.type.elem if isinstance(x.type, OptionalType) else x.type


@op("OptionalHasElement", host="OptionalHasElement")
class OptionalHasElement:
    def infer(x=None, *, a):
        return TensorType(BOOL, ())


ALL: tuple[OpSpec, ...] = (
    SequenceEmpty, SequenceConstruct, SequenceInsert, SequenceErase, SequenceAt, SequenceLength, ConcatFromSequence,
    SplitToSequence, Optional, OptionalGetElement, OptionalHasElement,
)  # fmt: skip
