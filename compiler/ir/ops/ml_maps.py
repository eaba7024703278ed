"""ai.onnx.ml operators on labels and maps, implemented as host routines."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import F32, I64, STR, DType, from_numpy
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.shape import data_dim
from occ.compiler.ir.types import MapType, SequenceType, TensorType


@op("ai.onnx.ml.LabelEncoder", host="LabelEncoder")
class LabelEncoder:
    """Looks up each element in a table with keys of one kind and values of one kind."""

    def infer(x, *, a):
        for side in ("keys", "values"):
            kinds = [f"{side}_{k}" for k in ("strings", "int64s", "floats", "tensor")]
            if len(given := [k for k in kinds if getattr(a, k, None) is not None]) > 1:
                raise Invalid(f"`LabelEncoder` has {' and '.join(given)}, of which it takes one", code="OCC0107")
        keys = [k for k in ("int64s", "floats", "strings") if getattr(a, f"keys_{k}", None) is not None]
        if keys and (x.dtype == STR) != (keys == ["strings"]):
            raise Invalid(f"`LabelEncoder` has keys_{keys[0]} for elements of type {x.dtype}", code="OCC0107")
        made = _encoded(x.dtype, a)
        _check_default(made, getattr(a, "default_tensor", None))
        return TensorType(made, x.type.shape)


def _check_default(made: DType, default: np.ndarray | None) -> None:
    if default is None:
        return
    stated = STR if default.dtype.kind in "OUST" else from_numpy(default.dtype)
    if default.size != 1 or stated != made:
        said = f"`default_tensor` of `LabelEncoder` has {default.size} elements of type {stated}"
        raise Invalid(said, code="OCC0107", note=f"it is one element of the type of the values, {made}")


def _encoded(dtype: DType, a: SimpleNamespace) -> DType:
    if getattr(a, "classes_strings", None):  # ai.onnx.ml 1: between strings and their positions
        return I64 if dtype == STR else STR
    if a.values_tensor is not None:
        return STR if a.values_tensor.dtype.kind in "OUST" else from_numpy(a.values_tensor.dtype)
    for name, made in (("values_strings", STR), ("values_int64s", I64), ("values_floats", F32)):
        if getattr(a, name) is not None:
            return made
    raise Invalid("`LabelEncoder` has no values", code="OCC0107")


@op("ai.onnx.ml.CategoryMapper", host="CategoryMapper")
class CategoryMapper:
    """Strings to numbers, or numbers to strings."""

    def infer(x, *, a):
        return TensorType(I64 if x.dtype == STR else STR, x.type.shape)


@op("ai.onnx.ml.OneHotEncoder", host="OneHotEncoder")
class OneHotEncoder:
    """A new last axis with a 1 at the category of each element (one-hot)."""

    def infer(x, *, a):
        categories = len(a.cats_strings or a.cats_int64s or ())
        return TensorType(F32, None if x.type.shape is None else (*x.shape, categories))


@op("ai.onnx.ml.ZipMap", host="ZipMap")
class ZipMap:
    """A map from class to score for each row."""

    def infer(x, *, a):
        return SequenceType(MapType(STR if a.classlabels_strings else I64, TensorType(F32, ())))


@op("ai.onnx.ml.DictVectorizer", host="DictVectorizer")
class DictVectorizer:
    """The values of a map, in vocabulary order."""

    def infer(x, *, a):
        if not isinstance(x.type, MapType):
            raise Invalid(f"`DictVectorizer` takes a map, not {x.type}")
        words = len(a.string_vocabulary or a.int64_vocabulary or ())
        return TensorType(x.type.value.dtype, (1, words))


@op("ai.onnx.ml.CastMap", host="CastMap")
class CastMap:
    """The values of a map as a tensor: in key order, or each at its key as index."""

    def infer(x, *, a):
        if not isinstance(x.type, MapType):
            raise Invalid(f"`CastMap` takes a map, not {x.type}")
        made = {"TO_FLOAT": F32, "TO_INT64": I64, "TO_STRING": STR}.get(a.cast_to)
        if made is None:
            raise Invalid(f"`cast_to` of `CastMap` is {a.cast_to!r}", code="OCC0107")
        return TensorType(made, (1, a.max_map if a.map_form == "SPARSE" else data_dim(0)))


ALL: tuple[OpSpec, ...] = (LabelEncoder, CategoryMapper, OneHotEncoder, ZipMap, DictVectorizer, CastMap)
