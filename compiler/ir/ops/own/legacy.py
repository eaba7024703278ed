"""Operators with the semantics of old opsets, until ranks are known."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.movement import reshaped, static_ints
from occ.compiler.ir.shape import equal_part, equal_shapes, normalize_axis
from occ.compiler.ir.te.expr import wrap


@op("legacy.Align", tags=("view",), own_attributes="axis=int")
class Align:
    """Appends axes of 1 to the first operand, so that it broadcasts from `axis` (opset < 7)."""

    def body(t, x, like, *, a):
        if like.rank and x.rank == like.rank:  # a slope of a row has no channels
            return reshaped(t, x, x.shape, "align")
        axis = normalize_axis(a.axis, max(like.rank, 1), "broadcast")
        behind = max(like.rank - axis - x.rank, 0) if x.rank else 0
        return reshaped(t, x, (*x.shape, *(1,) * behind), "align")


@op("legacy.PerChannel", own_attributes="num_groups=int")
class PerChannel:
    """A value per group, repeated for each channel of the group (GroupNormalization, opset < 21)."""

    def body(t, x, like, *, a):
        each = equal_part(like.shape[1], a.num_groups, "`GroupNormalization`: channels are split in groups")
        if x.shape[0] == 1:  # of all groups, as in onnxruntime
            return t.map([like.shape[1]], lambda i: x[wrap(0)], name="per_channel")
        equal_shapes(x.shape, (a.num_groups,), "the scale or bias of `GroupNormalization`")
        return t.map([like.shape[1]], lambda i: x[i // wrap(each)], name="per_channel")


@op("legacy.Tile", static=("tiles", "axis"), own_attributes="")
class Tile:
    """`tiles` copies along `axis` (opset < 6)."""

    operands = ("input", "tiles", "axis")

    def body(t, x, tiles, axis, *, a):
        k = normalize_axis(static_ints("Tile", "axis", axis)[0], x.rank, "Tile")
        times = static_ints("Tile", "tiles", tiles)[0]
        shape = [n * times if j == k else n for j, n in enumerate(x.shape)]
        return t.map(shape, lambda *i: x[(*i[:k], i[k] % wrap(x.shape[k]), *i[k + 1 :])], name="tile")


def _flat(name: str) -> OpSpec:
    """Softmax and similar on a matrix of rows: axes before `axis`, and the rest (opset < 13)."""

    def composite(b, x: Value, *, a):
        rank = x.tensor.rank
        axis = normalize_axis(1 if getattr(a, "axis", None) is None else a.axis, max(rank, 1), name)
        if axis == rank - 1:
            return b.op(name, x, axis=-1)
        rows = b.Flatten(x, axis=axis)
        back = b.dims(values=x.tensor.dims, shape=(rank,))
        return b.Reshape(b.op(name, rows, axis=-1), back, allowzero=1)

    return OpSpec(f"legacy.{name}", {"composite": composite, "own_attributes": "axis=int?"})


@op("legacy.BatchNormalization", own_attributes="epsilon=float momentum=float spatial=int")
class BatchNormalization:
    """BatchNormalization of opset < 14, with five results in training.

    Today's results are followed by the mean of the data, and the inverse root of its variance, as in onnxruntime. With
    `spatial` 0 (opset < 9) each element of a row has its own scale, bias, mean and variance.
    """

    operands = ("x", "scale", "bias", "mean", "var")

    def composite(b, x, scale, bias, mean, var, *, a):
        rank, kind = x.tensor.rank, x.tensor.dtype
        small = b.constant(a.epsilon, kind)
        if not a.spatial:
            if a.n_results > 1:
                raise Invalid("`BatchNormalization` with spatial=0 in training is not supported", code="OCC0301")
            for name, v in (("scale", scale), ("bias", bias), ("mean", mean), ("var", var)):
                equal_shapes(v.tensor.dims, x.tensor.dims[1:], f"`{name}` of `BatchNormalization` with spatial=0")
            centred = b.Div(b.Sub(x, mean), b.Sqrt(b.Add(var, small)))
            return b.Add(b.Mul(centred, scale), bias)
        y, *running = b.BatchNormalization(
            x, scale, bias, mean, var, n_results=3, training_mode=1, epsilon=a.epsilon, momentum=a.momentum
        )
        axes = b.constant([k for k in range(rank) if k != 1], I64)
        own = b.ReduceMean(x, axes, keepdims=1)
        spread = b.ReduceMean(b.Mul(b.Sub(x, own), b.Sub(x, own)), axes, keepdims=0)
        saved = b.Squeeze(own, axes), b.Reciprocal(b.Sqrt(b.Add(spread, small)))
        return (y, *running, *saved)[: a.n_results]


ALL = (Align, PerChannel, BatchNormalization, Tile, _flat("Softmax"), _flat("LogSoftmax"), _flat("Hardmax"))
