"""Sequences and optionals.

The elements of a sequence have the extents that its type states, or arbitrary ones if it states none.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from functools import reduce

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.containers import any_piece, common_elem, is_empty
from occ.compiler.ir.dim import Dim, Sym, exact_quotient
from occ.compiler.ir.dtype import BOOL, F32, I64
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import data_dim, normalize_axis
from occ.compiler.ir.te.function import Tensor
from occ.compiler.ir.types import OptionalType, SequenceType, TensorType, Type


def _common(types: list[Type], operator: str) -> Type:
    """The element type of a sequence of values of these types."""
    first = types[0]
    if any(t != first and (not isinstance(t, TensorType) or t.dtype != first.dtype) for t in types):
        raise Invalid(
            f"`{operator}` takes values of one element type, not {' and '.join(sorted(set(map(str, types))))}"
        )
    return reduce(common_elem, types)


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
        elem = _common([_elem(sequence, "SequenceInsert"), value.type], "SequenceInsert")
        return SequenceType(value.type if is_empty(sequence) else elem)


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
        dims.insert(axis, data_dim(rank))  # those below stand for extents of the elements
        return elem.with_shape(tuple(dims))


@op("SplitToSequence", host="SplitToSequence", static=("split",))
class SplitToSequence:
    def infer(x, split=None, *, a):
        if x.type.shape is None:
            return SequenceType(TensorType(x.dtype, None))
        axis = normalize_axis(a.axis, x.rank, "SplitToSequence")
        dims = list(x.shape)
        if split is None and not a.keepdims:
            return SequenceType(TensorType(x.dtype, (*dims[:axis], *dims[axis + 1 :])))
        dims[axis] = 1 if split is None else _piece(split, dims[axis]) or any_piece(axis)
        return SequenceType(TensorType(x.dtype, tuple(dims)))


def _piece(split: Tensor, whole: Dim) -> Dim | None:
    """The common extent of all pieces of an axis, if they have one."""
    sizes = {n for n in split.value or (None,) if isinstance(n, (int, Sym))}
    if len(sizes) != 1 or None in (split.value or (None,)):
        return None
    (size,) = sizes
    return size if split.rank or (size and exact_quotient(whole, size) is not None) else None


@op("Optional", host="Optional")
class Optional:
    def infer(x=None, *, a):
        if x is None and a.type is None:
            raise Invalid("`Optional` has neither an operand nor the attribute `type`", code="OCC0107")
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
