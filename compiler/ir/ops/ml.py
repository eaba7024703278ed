"""Operators of ai.onnx.ml, as converters of classical models (scikit-learn and similar) write them.

Arithmetic consists of tensor operators, so it is compiled and fused; trees are in `ml_trees`; labels, maps and support
vectors are host routines. Where the ONNX text is ambiguous, onnxruntime decides, as these files are written for it.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import F32, I64, STR, DType
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.ml_scores import best, floats, labelled, rows, single, transformed
from occ.compiler.ir.shape import data_dim
from occ.compiler.ir.types import TensorType

DOMAIN = "ai.onnx.ml"


def _f32(b: GraphBuilder, x: Value) -> Value:
    return x if x.tensor.dtype == F32 else b.Cast(x, to=F32)


def _row(values: tuple[float, ...] | None, features: object, name: str) -> tuple[float, ...] | None:
    """Values for each feature, or one for all."""
    if values is not None and isinstance(features, int) and len(values) not in (1, features):
        raise Invalid(f"`{name}` has {len(values)} values for {features} features", code="OCC0107")
    return values


def _matrix_rank(operator: str, x: Value, ranks: tuple[int, ...] = (1, 2)) -> int:
    if x.tensor.rank not in ranks:
        raise Invalid(f"`{operator}` takes a vector or a matrix, not {x.type}")
    return x.tensor.rank


@op("ai.onnx.ml.Scaler")
class Scaler:
    """`(x - offset) * scale`, as f32."""

    def composite(b, x, *, a):
        x = floats(b, x)
        features = x.tensor.dims[-1] if x.tensor.rank else 1
        if a.offset is not None:
            x = b.Sub(x, b.constant(_row(a.offset, features, "offset"), x.tensor.dtype))
        if a.scale is not None:
            x = b.Mul(x, b.constant(_row(a.scale, features, "scale"), x.tensor.dtype))
        return _f32(b, x)


@op("ai.onnx.ml.Normalizer")
class Normalizer:
    """Each row divided by its norm; a row with norm 0 is unchanged."""

    def composite(b, x, *, a):
        _matrix_rank("Normalizer", x)
        x = _f32(b, x)
        axes = b.constant([-1], I64)
        match a.norm:
            case "MAX":
                norm = b.ReduceMax(x, axes, keepdims=1)
            case "L1":
                norm = b.ReduceL1(x, axes, keepdims=1)
            case "L2":
                norm = b.ReduceL2(x, axes, keepdims=1)
            case _:
                raise Invalid(f"`norm` of `Normalizer` is {a.norm!r}", code="OCC0107")
        is_zero = b.Equal(norm, b.constant(0.0, F32))
        return b.Div(x, b.Where(is_zero, b.constant(1.0, F32), norm))


@op("ai.onnx.ml.Binarizer")
class Binarizer:
    """1 if an element exceeds the threshold, else 0."""

    def composite(b, x, *, a):
        wide = floats(b, x)
        return b.Cast(b.Greater(wide, b.constant(a.threshold, wide.tensor.dtype)), to=x.tensor.dtype)


@op("ai.onnx.ml.Imputer")
class Imputer:
    """Replaces one value by a per-feature value."""

    def composite(b, x, *, a):
        dtype = x.tensor.dtype
        values, old = (
            (a.imputed_value_floats, a.replaced_value_float)
            if dtype.is_float
            else (a.imputed_value_int64s, a.replaced_value_int64)
        )
        if not values:
            raise Invalid(f"`Imputer` has no values to put into {x.type}", code="OCC0107")
        _row(values, x.tensor.dims[-1] if x.tensor.rank else 1, "imputed_value")
        missing = b.IsNaN(x) if dtype.is_float and np.isnan(old) else b.Equal(x, b.constant(old, dtype))
        return b.Where(missing, b.constant(values, dtype), x)


@op("ai.onnx.ml.ArrayFeatureExtractor")
class ArrayFeatureExtractor:
    """Elements of the last axis by position; a vector counts as a matrix with one row."""

    def composite(b, x, positions, *, a):
        if not x.tensor.rank:
            raise Invalid(f"`ArrayFeatureExtractor` takes a tensor with axes, not {x.type}")
        if x.tensor.rank == 1:
            x = b.Unsqueeze(x, b.constant([0], I64))
        return b.Gather(x, b.Reshape(positions, b.constant([-1], I64)), axis=x.tensor.rank - 1)


@op("ai.onnx.ml.FeatureVectorizer")
class FeatureVectorizer:
    """Concatenates features as f32, each truncated or zero-padded to its stated width.

    A vector is one row.
    """

    def composite(b, *xs, a):
        if a.inputdimensions is None or len(a.inputdimensions) != len(xs):
            raise Invalid("`FeatureVectorizer` needs one of `inputdimensions` for each operand", code="OCC0107")
        return b.Concat(*(_of_width(b, x, n) for x, n in zip(xs, a.inputdimensions, strict=True)), axis=1)


def _of_width(b: GraphBuilder, x: Value, width: int) -> Value:
    if _matrix_rank("FeatureVectorizer", x) == 1:
        x = b.Unsqueeze(x, b.constant([0], I64))
    x = _f32(b, x)
    given = x.tensor.dims[1]
    if given == width:
        return x
    missing = max(width - given, 0) if isinstance(given, int) else width
    if missing:
        x = b.Pad(x, b.constant([0, 0, 0, missing], I64))
    if isinstance(given, int) and given <= width:
        return x
    return b.Slice(x, b.constant([0], I64), b.constant([width], I64), b.constant([1], I64))


@op("ai.onnx.ml.LinearRegressor")
class LinearRegressor:
    """`x @ coefficients.T + intercepts`, then a transformation."""

    def composite(b, x, *, a):
        rank = _matrix_rank("LinearRegressor", x)
        x = floats(b, x if rank == 2 else b.Unsqueeze(x, b.constant([0], I64)))
        if not a.coefficients or len(a.coefficients) % a.targets:
            raise Invalid(f"`LinearRegressor` needs coefficients for {a.targets} targets", code="OCC0107")
        table = np.reshape(a.coefficients, (a.targets, -1)).T
        y = b.MatMul(x, b.constant(table, x.tensor.dtype))
        if a.intercepts:
            y = b.Add(y, b.constant(_row(a.intercepts, a.targets, "intercepts"), x.tensor.dtype))
        return transformed(b, _f32(b, y), a.post_transform)


@op("ai.onnx.ml.LinearClassifier")
class LinearClassifier:
    """The class of each row and the scores of all classes, with one linear function each.

    For two classes there may be a single function.
    """

    def composite(b, x, *, a):
        x, labels = rows(b, x), a.classlabels_strings or a.classlabels_ints or ()
        features, dtype = x.tensor.dims[1], x.tensor.dtype
        count = (
            len(a.intercepts or labels) if not isinstance(features, int) else len(a.coefficients) // max(features, 1)
        )
        if not count or len(a.coefficients) % count or (a.intercepts and len(a.intercepts) not in (1, count)):
            raise Invalid(f"`coefficients` of `LinearClassifier` do not fit {x.type}", code="OCC0107")
        y = b.MatMul(x, b.constant(np.reshape(a.coefficients, (count, -1)).T, dtype))
        if a.intercepts:
            y = b.Add(y, b.constant(a.intercepts, dtype))
        if count > 1:
            label = labelled(b, best(b, y), a.classlabels_strings, a.classlabels_ints)
            return label, single(b, transformed(b, y, a.post_transform))
        second = b.Reshape(b.Greater(y, b.constant(0, dtype)), b.constant([-1], I64))
        if len(labels) != 2:
            return b.Cast(second, to=I64), single(b, transformed(b, y, a.post_transform))
        both = transformed(b, b.Concat(b.Neg(y), y, axis=1), a.post_transform)
        return labelled(b, second, a.classlabels_strings, a.classlabels_ints), single(b, both)


# Host routines --------------------------------------------------------------------------------------------------------


def _batch(x) -> tuple[object, ...]:
    """Rows of a matrix; a vector is one row."""
    if x.type.shape is None:
        return (data_dim(0),)
    if x.rank not in (1, 2):
        raise Invalid(f"a vector or a matrix is needed, not {x.type}")
    return (1,) if x.rank == 1 else (x.shape[0],)


def _classifier(name: str, ints: str, columns: Callable[[SimpleNamespace, int], object]) -> OpSpec:
    """An operator that returns the label and the scores of each row."""

    def infer(x, *, a):
        labels = len(a.classlabels_strings or getattr(a, ints) or ())
        dtype: DType = STR if a.classlabels_strings else I64
        return TensorType(dtype, _batch(x)), TensorType(F32, (*_batch(x), columns(a, labels)))

    doc = f"The class of each row and the scores of all classes, by {name}."
    return OpSpec(f"{DOMAIN}.{name}", {"infer": infer, "host": name, "__doc__": doc})


def _svm_columns(a: SimpleNamespace, labels: int) -> object:
    if a.prob_a or not a.vectors_per_class:
        return data_dim(1)
    pairs = labels * (labels - 1) // 2
    return pairs if pairs > 1 else data_dim(1)


SVMClassifier = _classifier("SVMClassifier", "classlabels_ints", _svm_columns)


@op("ai.onnx.ml.SVMRegressor", host="SVMRegressor")
class SVMRegressor:
    """Support vector regression, or novelty detection: 1 inside and -1 outside."""

    def infer(x, *, a):
        return TensorType(F32, (*_batch(x), 1))


ALL: tuple[OpSpec, ...] = (
    Scaler,
    Normalizer,
    Binarizer,
    Imputer,
    ArrayFeatureExtractor,
    FeatureVectorizer,
    LinearRegressor,
    LinearClassifier,
    SVMClassifier,
    SVMRegressor,
)
