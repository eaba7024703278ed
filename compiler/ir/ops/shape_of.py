"""Shape, Size, Range, ConstantOfShape, EyeLike: results derived from shapes and constants."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.dim import Dim, Sym, ceildiv, maximum, product
from occ.compiler.ir.dtype import F32, I64, from_numpy
from occ.compiler.ir.operator.ranks import fixed, length_of
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap


def pick(values: Sequence[Dim], k: Expr) -> Expr:
    """The k-th of a few sizes; 0 if there are none."""
    result = wrap(values[-1]) if values else wrap(0)
    for at in reversed(range(len(values) - 1)):
        result = where(equal(k, at), wrap(values[at]), result)
    return result


@op("Shape", tags=("shape",))
class Shape:
    def body(t, data, *, a):
        start, end = a.start or 0, data.rank if a.end is None else a.end
        shape = data.shape[slice(start, end)]
        return t.map([len(shape)], lambda k: pick(shape, k), name="shape")


@op("Size", tags=("shape",))
class Size:
    def body(t, data, *, a):
        return t.map([], lambda: wrap(data.type.size), name="size")


@op("ConstantOfShape", static=("input",), dtype=F32, rank=length_of(0))
class ConstantOfShape:
    def body(t, shape, *, a):
        if shape.rank != 1:
            raise Invalid(f"the shape of `ConstantOfShape` has rank {shape.rank}, not 1")
        value = np.zeros(1, np.float32) if a.value is None else a.value
        fill = literal(value.reshape(-1)[0].item(), from_numpy(value.dtype))
        return t.map(static_dims("ConstantOfShape", "input", shape), lambda *_: fill, name="fill")


def range_size(start: Dim | float, limit: Dim | float, delta: Dim | float) -> Dim:
    """Number of elements of a Range.

    For float operands that are whole numbers, it is exact below 2**24.

    Raises:
        Invalid: the step is 0; Unresolved: it is not expressible as a size.
    """
    if delta == 0:
        raise Invalid("`Range`: delta is 0")
    if any(isinstance(v, Sym) for v in (start, limit, delta)):
        if any(isinstance(v, float) and not v.is_integer() for v in (start, limit, delta)):
            raise Unresolved("Range", "limit")
        start, limit, delta = (int(v) if isinstance(v, float) else v for v in (start, limit, delta))
    elif any(isinstance(v, float) for v in (start, limit, delta)):
        return max(math.ceil((float(limit) - float(start)) / float(delta)), 0)  # pyright: ignore[reportArgumentType]
    if not isinstance(delta, int):
        raise Unresolved("Range", "delta")
    span: Any = limit - start if delta > 0 else start - limit  # pyright: ignore[reportOperatorIssue]
    return maximum(ceildiv(span, abs(delta)), 0)


@op("Range", static=("start", "limit", "delta"), rank=fixed(1))
class Range:
    def body(t, start, limit, delta, *, a):
        ends = []
        for name, operand in (("start", start), ("limit", limit), ("delta", delta)):
            equal_dims(product(operand.shape), 1, f"`Range`: `{name}` is one number")
            if operand.value is None or operand.value[0] is None:
                raise Unresolved("Range", name)
            ends.append(operand.value[0])
        n = range_size(*ends)
        first, step = (
            wrap(ends[k], I64) if not isinstance(ends[k], float) else literal(ends[k], start.dtype) for k in (0, 2)
        )
        return t.map(
            [n], lambda i: cast(start.dtype, first) + cast(start.dtype, i) * cast(start.dtype, step), name="range"
        )


@op("EyeLike")
class EyeLike:
    def body(t, x, *, a):
        dtype = a.dtype or x.dtype
        if x.rank != 2:
            raise Invalid(f"`EyeLike` takes a matrix, not rank {x.rank}")
        return t.map(x.shape, lambda i, j: where(equal(i + a.k, j), literal(1, dtype), literal(0, dtype)), name="eye")


ALL = (Shape, Size, ConstantOfShape, Range, EyeLike)
