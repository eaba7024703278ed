"""Scores of ai.onnx.ml classifiers: their transformations and labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import BOOL, F32, F64, I64
from occ.compiler.ir.op import Value

POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # in the order of TreeEnsemble's numbers


def floats(b: GraphBuilder, x: Value) -> Value:
    """f64 stays; everything else is computed in f32."""
    return x if x.tensor.dtype in (F32, F64) else b.Cast(x, to=F32)


def rows(b: GraphBuilder, x: Value) -> Value:
    """A matrix of f32, or of f64 if the operand is; a vector is one row.

    Raises:
        Invalid: it is neither.
    """
    if x.tensor.rank not in (1, 2):
        raise Invalid(f"a vector or a matrix is needed, not {x.type}")
    return floats(b, x if x.tensor.rank == 2 else b.Unsqueeze(x, b.constant([0], I64)))


def single(b: GraphBuilder, y: Value) -> Value:
    """Scores as f32."""
    return y if y.tensor.dtype == F32 else b.Cast(y, to=F32)


def columns(b: GraphBuilder, y: Value, which: Sequence[int]) -> Value:
    """Columns of a matrix, given as a constant list."""
    if list(which) == list(range(len(which))) and y.tensor.dims[1] == len(which):
        return y
    return b.Gather(y, b.constant(list(which), I64), axis=1)


def labelled(b: GraphBuilder, positions: Value, strings: Sequence[str] | None, ints: Sequence[int] | None) -> Value:
    """The labels at some positions, i64 or bool; the positions themselves if there are no labels."""
    if strings:
        if positions.tensor.dtype == BOOL:
            positions = b.Cast(positions, to=I64)
        keys = tuple(range(len(strings)))
        return b.op("ai.onnx.ml.LabelEncoder", positions, keys_int64s=keys, values_strings=tuple(strings))
    if positions.tensor.dtype == BOOL:
        first, second = ints if ints else (0, 1)
        return b.Where(positions, b.constant(second, I64), b.constant(first, I64))
    if not ints or tuple(ints) == tuple(range(len(ints))):
        return positions
    return b.Gather(b.constant(tuple(ints), I64), positions)


def best(b: GraphBuilder, y: Value) -> Value:
    """The column of each row's largest score, the first among equal ones: i64[n]."""
    return b.ArgMax(y, axis=1, keepdims=0)


def transformed(b: GraphBuilder, y: Value, how: str) -> Value:
    """`post_transform` of ai.onnx.ml, on rows of scores.

    Raises:
        Invalid: there is no such transformation.
    """
    match how:
        case "NONE":
            return y
        case "LOGISTIC":
            return b.Sigmoid(y)
        case "SOFTMAX":
            return b.Softmax(y, axis=-1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(b, y)
        case "PROBIT":
            return _probit(b, y)
        case _:
            raise Invalid(f"`post_transform` is {how!r}", code="OCC0107", note=f"one of {', '.join(POST_TRANSFORMS)}")


def _softmax_zero(b: GraphBuilder, y: Value) -> Value:
    """Softmax in which zeros stay 0."""
    rows = b.constant([-1], I64)
    top = b.ReduceMax(y, rows, keepdims=1)
    is_zero = b.Less(b.Abs(y), b.constant(1e-7, y.tensor.dtype))
    each = b.Where(is_zero, b.Mul(y, b.Exp(b.Neg(top))), b.Exp(b.Sub(y, top)))
    total = b.ReduceSum(each, rows, keepdims=1)
    none = b.Equal(total, b.constant(0.0, y.tensor.dtype))
    return b.Where(
        none, b.constant(0.5, y.tensor.dtype), b.Div(each, b.Where(none, b.constant(1.0, y.tensor.dtype), total))
    )


def _probit(b: GraphBuilder, y: Value) -> Value:
    """Quantile of the normal distribution, by Winitzki's approximation, as in onnxruntime."""

    def c(value: float) -> Value:
        return b.constant(value, y.tensor.dtype)

    u = b.Sub(b.Mul(y, c(2.0)), c(1.0))
    log = b.Log(b.Mul(b.Sub(c(1.0), u), b.Add(c(1.0), u)))
    v = b.Add(c(2 / (np.pi * 0.147)), b.Mul(c(0.5), log))
    inside = b.Sub(b.Sqrt(b.Sub(b.Mul(v, v), b.Mul(c(1 / 0.147), log))), v)
    return b.Mul(b.Mul(b.Sign(u), b.Sqrt(inside)), c(1.41421356))
