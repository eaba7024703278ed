"""Normalisations as GE nodes: of batches, layers, groups, instances, and LRN."""

from __future__ import annotations

import math

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.elementwise import Row
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.window import pad, strided
from occ.compiler.ir.op import Op


def per_channel(e: Emitter, v: Ref, rank: int) -> Ref:
    """A per-channel vector that broadcasts on axis 1 of `rank` axes."""
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
    """InstanceNorm of NCHW; from operators for unknown extents if necessary."""
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
    """`x` at full size: expanded at compile time if it is constant."""
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
    """LRN from operators for unknown extents: `x * (bias + alpha * sum) ** -beta`.

    The sum is over the squares of neighbouring channels.
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


ROWS: dict[str, Row] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mvn,
    "RMSNormalization": _rms_norm,
}
