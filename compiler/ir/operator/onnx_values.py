"""ONNX attributes and types as plain Python values and types of the IR."""

from __future__ import annotations

from typing import Any

import onnx
from onnx.defs import OpSchema

from occ.compiler.ir import dtype as dt
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from occ.runtime.element_types import ELEMENT_TYPES

DTYPE_ATTRS = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"}
)


def attr_kind(attr: OpSchema.Attribute) -> str:
    """The type of a formal attribute, as AttributeProto names it: `INT`, `FLOATS`, ..."""
    return attr.type.name  # pyright: ignore[reportAttributeAccessIssue] - an enumeration at run time


def attr_value(proto: onnx.AttributeProto) -> Any:
    """An attribute as a plain Python value; tensors become arrays, element types become `DType`."""
    value = onnx.helper.get_attribute_value(proto)
    if proto.name in DTYPE_ATTRS and isinstance(value, int):
        return dt.BY_ONNX.get(value)
    match value:
        case None:
            raise ValueError(f"attribute `{proto.name}` has no value")
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case onnx.TensorProto():
            return onnx.numpy_helper.to_array(value)
        case str() | int() | float():
            return value
        case onnx.TypeProto():
            return value_type(value)
        case onnx.GraphProto() | onnx.SparseTensorProto():
            return value
        case _:
            if not value or not isinstance(value[0], bytes):
                return tuple(value)
            texts = {v: v.decode("utf-8", "surrogateescape") for v in set(value)}  # trees repeat a few modes
            return tuple(map(texts.__getitem__, value))


def is_unstated(attr: onnx.AttributeProto, schema: OpSchema | None) -> bool:
    """Whether an attribute names no element type, as its default does: some files state the 0 that stands for none."""
    formal = schema.attributes.get(attr.name) if schema is not None and attr.name in DTYPE_ATTRS else None
    return formal is not None and bool(formal.default_value.type) and attr.i == formal.default_value.i == 0


def value_type(proto: onnx.TypeProto) -> Type | None:
    """A type that an attribute states; extents are left open."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            dtype = dt.BY_ONNX.get(proto.tensor_type.elem_type)
            return None if dtype is None else TensorType(dtype, None)
        case "sequence_type":
            elem = value_type(proto.sequence_type.elem_type)
            return None if elem is None else SequenceType(elem)
        case "optional_type":
            elem = value_type(proto.optional_type.elem_type)
            return None if elem is None else OptionalType(elem)
        case "map_type":
            key, value = dt.BY_ONNX.get(proto.map_type.key_type), value_type(proto.map_type.value_type)
            return MapType(key, value) if key is not None and isinstance(value, TensorType) else None
        case _:
            return None


def onnx_type_name(dtype: DType) -> str:
    """The ONNX type constraint for tensors of this element type: `tensor(float)`."""
    return f"tensor({ELEMENT_TYPES[dtype.name].spelled})"
