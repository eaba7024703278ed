"""Matrix products, softmax and normalisations as GE nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.window import pad, strided
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def product(e: Emitter, x: Ref, y: Ref, dtype: str | None = None, *, ta: bool = False, tb: bool = False) -> Ref:
    """`x @ y` over the last two axes, leading ones broadcast; of operands of rank 2 or more.

    Args:
        dtype: element type of the result, that of `x` by default.
        ta, tb: take an operand transposed in its last two axes.

    Raises:
        Unsupported: no chip multiplies such elements.
    """
    if x.dtype == "INT32":
        raise Unsupported("no chip has a kernel of a product of INT32")
    if x.dtype == "INT8" and e.unit_for("MatMulV2", "INT8") == "fixed":
        return _product_of_codes(e, x, y, ta=ta, tb=tb)
    rows, cols = x.shape[-1 if ta else -2], y.shape[-2 if tb else -1]
    batch = tuple(int(d) for d in np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    out = Desc(dtype or x.dtype, (*batch, rows, cols))
    if len(x.shape) == len(y.shape) == 2:
        return e.op("MatMulV2", x, y, out=out, transpose_x1=ta, transpose_x2=tb)
    return e.op("BatchMatMulV2", x, y, out=out, adj_x1=ta, adj_x2=tb)


def _product_of_codes(e: Emitter, x: Ref, y: Ref, *, ta: bool, tb: bool) -> Ref:
    """A dynamic INT8 product in half precision with FLOAT sums, since INT8 kernels need known extents.

    It is exact, as sums of so few products are below 2^24; longer rows are cut.

    Raises:
        Unsupported: products of several matrices have sums in half precision alone.
    """
    if len(y.shape) > 2 and not e.chip.wide_batches:
        raise Unsupported("the chip has no kernel of a batch of products of INT8 with extents that are not fixed")
    k, at, to = x.shape[-2 if ta else -1], len(x.shape) - (2 if ta else 1), len(y.shape) - (1 if tb else 2)
    total: Ref | None = None
    for start in range(0, k, _EXACT_SUMS):
        stop = min(start + _EXACT_SUMS, k)
        a, b = (_codes_as_half(e, v, axis, start, stop) for v, axis in ((x, at), (y, to)))
        part = e.cast(_rows_times(e, a, b, ta=ta, tb=tb), "INT32")
        total = part if total is None else e.op("Add", total, part)
    assert total is not None, "an operand is not empty"
    return total


_EXACT_SUMS = 1 << 10


def _codes_as_half(e: Emitter, v: Ref, axis: int, start: int, stop: int) -> Ref:
    """Some of the codes along an axis as FLOAT16; constants at build time."""
    if v.node.type == "Const":
        return e.constant(np.take(v.node.value, np.arange(start, stop), axis).astype(np.float16))
    if (start, stop) == (0, v.shape[axis]):
        return e.cast(v, "FLOAT16")
    shape = tuple(stop - start if k == axis else d for k, d in enumerate(v.shape))
    return e.cast(strided(e, v, [start], [stop], [axis], [1], Desc(v.dtype, shape)), "FLOAT16")


def _rows_times(e: Emitter, x: Ref, y: Ref, *, ta: bool, tb: bool) -> Ref:
    """A product of FLOAT16 with sums in FLOAT.

    All rows times one matrix are one product, whose kernels have these on every chip.
    """
    if len(y.shape) > 2 or ta:
        return product(e, x, y, "FLOAT", ta=ta, tb=tb)
    rows = product(e, e.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])), y, "FLOAT", tb=tb)
    return e.reshape(rows, (*x.shape[:-1], rows.shape[-1]))


def matmul(e: Emitter, x: Ref, y: Ref, dtype: str | None = None) -> Ref:
    """`numpy.matmul`: operands of rank 1 count as a row and as a column."""
    if not x.shape or not y.shape:
        raise Unsupported("an operand is a scalar")
    left = e.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    right = e.reshape(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    made = product(e, left, right, dtype)
    shape = list(made.shape)
    if len(y.shape) == 1:
        del shape[-1]
    if len(x.shape) == 1:
        del shape[-2 if len(y.shape) > 1 else -1]
    return e.reshape(made, shape)


def _matmul(e: Emitter, op: Op, x: Ref, y: Ref) -> Ref:
    return matmul(e, x, y)


def _gemm(e: Emitter, op: Op, x: Ref, y: Ref, c: Ref | None = None) -> Ref:
    a = op.a
    made = product(e, x, y, ta=bool(a.transA), tb=bool(a.transB))
    if a.alpha != 1:
        made = _scaled(e, made, a.alpha)
    if c is None or a.beta == 0:
        return made
    return e.op("Add", made, c if a.beta == 1 else _scaled(e, c, a.beta))


def _scaled(e: Emitter, x: Ref, by: float) -> Ref:
    return e.op("Muls", x, value=float(by))


def _softmax(kind: str) -> Row:
    def row(e: Emitter, op: Op, x: Ref) -> Ref:
        return e.op(kind, x, axes=[op.a.axis % max(len(x.shape), 1)])

    return row


def _hardmax(e: Emitter, op: Op, x: Ref) -> Ref:
    axis = op.a.axis % len(x.shape)
    shape = tuple(d for k, d in enumerate(x.shape) if k != axis)
    first = e.op("ArgMaxV2", x, e.constant(np.array(axis, np.int32)), out=Desc("INT32", shape), dtype="INT32")
    on, off, depth = e.scalar(1, x), e.scalar(0, x), e.constant(np.array(x.shape[axis], np.int32))
    at = -1 if axis == len(x.shape) - 1 else axis
    return e.op("OneHot", first, depth, on, off, out=x.desc, axis=at)


def per_channel(e: Emitter, v: Ref, rank: int) -> Ref:
    """A vector of channels as something that broadcasts against axis 1 of `rank` axes."""
    return e.reshape(v, (v.shape[0], *(1,) * (rank - 2)) if rank > 2 else v.shape)


def _batch_norm(e: Emitter, op: Op, x: Ref, scale: Ref, bias: Ref, mean: Ref, var: Ref) -> Ref:
    if any(r.uses for r in op.results[1:]):
        raise Unsupported("it is in training mode")
    if len(x.shape) == 4 and x.dtype in ("FLOAT", "FLOAT16") and scale.dtype == mean.dtype == "FLOAT":
        layout = Desc(x.dtype, x.shape, "NCHW")
        outs = [layout, scale.desc, scale.desc, scale.desc, scale.desc, Desc("FLOAT", (1,))]
        made = e.op(
            "BatchNorm",
            x,
            scale,
            bias,
            mean,
            var,
            out=outs,
            epsilon=float(op.a.epsilon),
            data_format="NCHW",
            is_training=False,
        )
        made[0].node.formats = {"x": "NCHW"}
        return made[0]
    rank = len(x.shape)
    factor = e.op("RealDiv", e.cast(scale, var.dtype), e.op("Sqrt", e.op("Adds", var, value=float(op.a.epsilon))))
    centred = e.op("Sub", e.cast(x, var.dtype), per_channel(e, mean, rank))
    made = e.op(
        "Add", e.op("Mul", centred, per_channel(e, factor, rank)), per_channel(e, e.cast(bias, var.dtype), rank)
    )
    return e.cast(made, x.dtype)


def _instance_norm(e: Emitter, op: Op, x: Ref, scale: Ref, bias: Ref) -> Ref:
    wide = e.reshape(x, (*x.shape[:2], 1, math.prod(x.shape[2:]))) if len(x.shape) != 4 else x
    return e.reshape(instance_norm(e, wide, scale, bias, op.a.epsilon), x.shape)


def instance_norm(e: Emitter, x: Ref, scale: Ref, bias: Ref, epsilon: float) -> Ref:
    """InstanceNorm of NCHW; of operators that take unknown extents where it must."""
    if e.unit_for("InstanceNorm", x.dtype) != "AI Core":
        centred = e.op("Sub", x, _mean_of(e, x, [2, 3]))
        spread = e.op("Rsqrt", e.op("Adds", _mean_of(e, e.op("Square", centred), [2, 3]), value=float(epsilon)))
        scaled = e.op("Mul", e.op("Mul", centred, spread), per_channel(e, scale, 4))
        return e.op("Add", scaled, per_channel(e, bias, 4))
    stats = Desc(x.dtype, (*x.shape[:2], 1, 1), "NCHW")
    made = e.op(
        "InstanceNorm",
        x,
        scale,
        bias,
        out=[Desc(x.dtype, x.shape, "NCHW"), stats, stats],
        data_format="NCHW",
        epsilon=float(epsilon),
    )
    made[0].node.formats = {"x": "NCHW"}
    return made[0]


def _layer_norm(e: Emitter, op: Op, x: Ref, scale: Ref, bias: Ref | None = None) -> tuple[Ref, ...]:
    axis = op.a.axis % len(x.shape)
    inner = x.shape[axis:]
    dtype = x.dtype
    if dtype not in ("FLOAT", "FLOAT16", "BF16"):
        raise Unsupported(f"GE `LayerNorm` does not take {dtype}")
    gamma = _broadcast(e, e.cast(scale, dtype), inner)
    beta = e.constant(np.zeros(inner, _numpy(dtype))) if bias is None else _broadcast(e, e.cast(bias, dtype), inner)
    stats = Desc(dtype, (*x.shape[:axis], *(1,) * len(inner)))
    y, mean, var = e.op(
        "LayerNorm", x, gamma, beta, out=[x.desc, stats, stats], begin_norm_axis=axis, begin_params_axis=axis,
        epsilon=float(op.a.epsilon),
    )  # fmt: skip
    if not any(r.uses for r in op.results[1:]):
        return (y, mean, var)[: len(op.results)]
    kind = e.type(op.results[1]).dtype
    inverse = e.op("Rsqrt", e.op("Adds", e.cast(var, kind), value=float(op.a.epsilon)))
    return (y, e.cast(mean, kind), inverse)[: len(op.results)]


def _numpy(dtype: str) -> np.dtype:
    from occ.compiler.codegen_cann.graph.formats import occ_type

    return occ_type(dtype).numpy


def _broadcast(e: Emitter, x: Ref, shape: tuple[int, ...]) -> Ref:
    """`x` at full size: at compile time where it is a constant."""
    if x.shape == shape:
        return x
    if x.node.type == "Const":
        return e.constant(np.ascontiguousarray(np.broadcast_to(x.node.value, shape)))
    return e.op("BroadcastTo", x, e.ints(shape), out=Desc(x.dtype, shape))


def _group_norm(e: Emitter, op: Op, x: Ref, scale: Ref, bias: Ref) -> Ref:
    n, c, *rest = x.shape
    groups, rank = op.a.num_groups, len(x.shape)
    grouped = e.reshape(e.cast(x, "FLOAT") if x.dtype != "FLOAT16" else x, (n, groups, c // groups, math.prod(rest)))
    one, zero = (e.constant(np.full(groups, v, _numpy(grouped.dtype))) for v in (1, 0))
    normal = e.cast(e.reshape(instance_norm(e, grouped, one, zero, op.a.epsilon), x.shape), x.dtype)
    return e.op("Add", e.op("Mul", normal, per_channel(e, scale, rank)), per_channel(e, bias, rank))


def _rms_norm(e: Emitter, op: Op, x: Ref, scale: Ref) -> Ref:
    axis = op.a.axis % len(x.shape)
    axes = list(range(axis, len(x.shape)))
    wide = e.cast(x, "FLOAT") if x.dtype in ("FLOAT16", "BF16") else x
    mean = _mean_of(e, e.op("Square", wide), axes)
    normal = e.op("Mul", wide, e.op("Rsqrt", e.op("Adds", mean, value=float(op.a.epsilon))))
    return e.op("Mul", e.cast(normal, scale.dtype), scale)


def _mean_of(e: Emitter, x: Ref, axes: list[int]) -> Ref:
    shape = tuple(1 if k in axes else d for k, d in enumerate(x.shape))
    return e.op("ReduceMean", x, e.ints(axes), out=Desc(x.dtype, shape), keep_dims=True)


def _lrn(e: Emitter, op: Op, x: Ref) -> Ref:
    a = op.a
    if a.size % 2 == 0 or len(x.shape) != 4:
        raise Unsupported("GE `LRN` has a window of odd size over the channels of four axes")
    if e.unit_for("LRN", x.dtype) != "AI Core":
        return _lrn_written_out(e, x, a.size, float(a.alpha / a.size), float(a.beta), float(a.bias))
    made = e.op(
        "LRN", x, out=Desc(x.dtype, x.shape, "NCHW"), depth_radius=(a.size - 1) // 2, alpha=float(a.alpha / a.size),
        beta=float(a.beta), bias=float(a.bias), norm_region="ACROSS_CHANNELS",
    )  # fmt: skip
    made.node.formats = {"x": "NCHW"}
    return made


def _lrn_written_out(e: Emitter, x: Ref, size: int, alpha: float, beta: float, bias: float) -> Ref:
    """LRN in operators that take unknown extents: `x * (bias + alpha * sum) ** -beta`.

    The sum is of the squares of near channels.
    """
    side, channels = (size - 1) // 2, x.shape[1]
    ends = [0, side, *[0] * (len(x.shape) - 2)]
    squares = pad(e, e.op("Square", x), ends, ends, [d + 2 * p for d, p in zip(x.shape, ends, strict=True)])
    total = strided(e, squares, [0], [channels], [1], [1], x.desc)
    for k in range(1, size):
        total = e.op("Add", total, strided(e, squares, [k], [k + channels], [1], [1], x.desc))
    base = e.op("Adds", e.op("Muls", total, value=alpha), value=bias)
    return e.op("Mul", x, e.op("Pow", base, e.scalar(-beta, base)))


def _lp_norm(e: Emitter, op: Op, x: Ref) -> Ref:
    axis = op.a.axis % len(x.shape)
    shape = tuple(1 if k == axis else d for k, d in enumerate(x.shape))
    power = e.op("Abs", x) if op.a.p == 1 else e.op("Square", x)
    total = e.op("ReduceSum", power, e.ints([axis]), out=Desc(x.dtype, shape), keep_dims=True)
    return e.op("DivNoNan", x, total if op.a.p == 1 else e.op("Sqrt", total), out=x.desc)


def _mvn(e: Emitter, op: Op, x: Ref) -> Ref:
    axes = sorted(k % len(x.shape) for k in (op.a.axes or (0, 2, 3)))
    centred = e.op("Sub", x, _mean_of(e, x, axes))
    deviation = e.op("Sqrt", _mean_of(e, e.op("Square", centred), axes))
    return e.op("RealDiv", centred, e.op("Maximum", deviation, e.scalar(1e-9, x)))


def _det(e: Emitter, op: Op, x: Ref) -> Ref:
    return e.op("MatrixDeterminant", x, out=Desc(x.dtype, x.shape[:-2]))


ROWS: dict[str, Row] = {
    "BatchNormalization": _batch_norm, "Det": _det, "Gemm": _gemm, "GroupNormalization": _group_norm,
    "Hardmax": _hardmax, "InstanceNormalization": _instance_norm, "LRN": _lrn, "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax("LogSoftmaxV2"), "LpNormalization": _lp_norm, "MatMul": _matmul,
    "MeanVarianceNormalization": _mvn, "RMSNormalization": _rms_norm, "Softmax": _softmax("SoftmaxV2"),
}  # fmt: skip
