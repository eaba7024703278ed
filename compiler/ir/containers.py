"""Element types of sequences and optionals, with placeholders for extents that vary.

`seq<f32[_0,128]>` holds tensors with 128 columns and any number of rows; taking an element out binds its rows to a
symbol.
"""

from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.op import Value
from occ.compiler.ir.shape import data_dim, depends_on_data
from occ.compiler.ir.types import EmptySequenceType, MapType, OptionalType, SequenceType, TensorType, Type


def is_empty(sequence: Value) -> bool:
    """Whether a sequence is certainly empty."""
    op = sequence.defining_op
    return isinstance(sequence.type, EmptySequenceType) or (op is not None and op.name == "SequenceEmpty")


def any_piece(axis: int) -> Dim:
    """The extent of an axis on which elements may differ."""
    return data_dim(axis)


def loose(t: Type) -> Type:
    """A type whose containers hold elements of every iteration: data-dependent extents may differ."""
    match t:
        case TensorType() | MapType():
            return t
        case EmptySequenceType(elem):
            return SequenceType(elem)
        case SequenceType(elem):
            return SequenceType(_loose_elem(elem))
        case OptionalType(elem):
            return OptionalType(_loose_elem(elem))


def _loose_elem(t: Type) -> Type:
    if not isinstance(t, TensorType) or t.shape is None:
        return loose(t)
    return t.with_shape(tuple(any_piece(k) if depends_on_data(d) else d for k, d in enumerate(t.shape)))


def joined_containers(a: Type | None, b: Type | None) -> Type:
    """The common type of two containers, or of a container and an element.

    Raises:
        Invalid: their kinds differ.
    """
    match a, b:
        case EmptySequenceType(), SequenceType() if b is not None:
            return b
        case SequenceType(), EmptySequenceType():
            return a
        case SequenceType(x), SequenceType(y):
            return SequenceType(common_elem(x, y))
        case OptionalType(x), OptionalType(y):
            return OptionalType(common_elem(x, y))
        case OptionalType(x), y if y is not None:
            return OptionalType(common_elem(x, y))
        case x, OptionalType(y) if x is not None:
            return OptionalType(common_elem(x, y))
        case _:
            raise Invalid(f"the branches return {a} and {b}")


def common_elem(a: Type, b: Type) -> Type:
    """The common type of two element values, which have one element type if they are tensors."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return joined_containers(a, b)
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype, None)
    dims = tuple(x if x == y else any_piece(k) for k, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)))
    return TensorType(a.dtype, dims)
