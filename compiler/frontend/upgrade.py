"""Upgrades nodes of old operator sets to the latest version of their operator.

A rule is keyed by operator and by the schema version below which it applies; rules of one operator run in order of
version. Defaults that changed between versions are filled in first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from occ.compiler.frontend.node import Node, UpgradeStep
from occ.compiler.ir import dtype as dt
from occ.compiler.ir.ops.fold import IN_OUTPUT_SHAPE
from occ.compiler.ir.types import TensorType


def _drop(*names: str) -> UpgradeStep:
    def rule(n: Node) -> None:
        for name in names:
            n.attrs.pop(name, None)

    return rule


def _operand(attr: str, k: int, dtype: Any = np.int64) -> UpgradeStep:
    return lambda n: n.to_operand(attr, k, dtype)


def _legacy_broadcast(n: Node) -> None:
    """`axis` and `broadcast` of opsets below 7: the second operand is aligned at `axis` of the first."""
    axis, broadcast = n.attrs.pop("axis", None), n.attrs.pop("broadcast", 0)
    if broadcast and axis is not None:
        n.operands[1] = n.emit("legacy.Align", [n.operands[1], n.operands[0]], {"axis": int(axis)})


def _prelu(n: Node) -> None:
    """Below opset 7 a 1-D slope is per channel."""
    n.operands[1] = n.emit("legacy.Align", [n.operands[1], n.operands[0]], {"axis": 1})


def _flat_softmax(n: Node) -> None:
    """Below opset 13 the tensor is a matrix, split at `axis`, whose rows are normalised."""
    n.name = "legacy." + n.name


def _clip(n: Node) -> None:
    low, high = n.attrs.pop("min", None), n.attrs.pop("max", None)
    for k, bound in ((1, low), (2, high)):
        if bound is not None:
            value = n.constant(np.asarray(bound, np.float32))
            n.put(k, n.emit("CastLike", [value, n.operands[0]], {}))


def _pad(n: Node) -> None:
    pads = n.attrs.pop("pads", n.attrs.pop("paddings", None))
    value = n.attrs.pop("value", 0.0)
    n.put(1, n.constant(np.asarray(pads, np.int64)))
    n.put(2, n.emit("CastLike", [n.constant(np.asarray(value, np.float32)), n.operands[0]], {}))


def _slice(n: Node) -> None:
    for k, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        n.to_operand(name, k)


def _dropout(n: Node) -> None:
    _drop("ratio", "is_test", "consumed_inputs")(n)
    n.operands = n.operands[:1]


def _batch_norm(n: Node) -> None:
    """Below opset 14 five results mean training. Below 9 there is a form with a scale per element."""
    spatial = n.attrs.get("spatial", 1)
    if n.n_results > 1 or not spatial:
        n.name = "legacy.BatchNormalization"
        n.attrs = {"epsilon": 1e-5, "momentum": 0.9, **n.attrs, "spatial": spatial}
        _drop("is_test", "consumed_inputs")(n)
    else:
        _drop("is_test", "consumed_inputs", "spatial", "momentum")(n)


def _cast(n: Node) -> None:
    """Below opset 6 the target type is a string such as `FLOAT`."""
    if isinstance(to := n.attrs.get("to"), str):
        from onnx import TensorProto

        n.attrs["to"] = dt.BY_ONNX[TensorProto.DataType.Value(to.upper())]


def _upsample(n: Node) -> None:
    """Upsample is Resize with asymmetric coordinates and floor."""
    scales = n.attrs.pop("scales", None)
    for side in ("height_scale", "width_scale"):
        if side in n.attrs:
            scales = [1.0, 1.0, n.attrs["height_scale"], n.attrs["width_scale"]]
    _drop("height_scale", "width_scale")(n)
    given = n.constant(np.asarray(scales, np.float32)) if scales is not None else n.operands[1]
    mode = n.attrs.get("mode", "nearest")
    n.name, n.operands = "Resize", [n.operands[0], None, given]
    n.attrs = {"mode": "linear" if mode == "bilinear" else mode}
    n.attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _resize10(n: Node) -> None:
    """Resize of opset 10, where the direction decides the nearest element.

    It is the preceding one along an axis that grows, and the following one along an axis that shrinks: ONNX's own test
    of opset 10 and onnxruntime do so. Today's Resize uses one of them for all axes.
    """
    x, scales = n.operands
    n.attrs["coordinate_transformation_mode"] = "asymmetric"
    if n.attrs.get("mode", "nearest") == "nearest":
        one = n.constant(np.ones(1, np.float32))
        grown = n.emit("Max", [scales, one], {})
        x = n.emit("Resize", [x, None, grown], n.attrs | {"nearest_mode": "floor"})
        scales = n.emit("Min", [scales, one], {})
        n.attrs["nearest_mode"] = "ceil"
    n.operands = [x, None, scales]


def _tile1(n: Node) -> None:
    """Tile-1 repeats one axis."""
    n.name = "legacy.Tile"


def _rename(name: str) -> UpgradeStep:
    def rule(n: Node) -> None:
        n.name = name

    return rule


def _topk(n: Node) -> None:
    n.put(1, n.constant(np.asarray([n.attrs.pop("k")], np.int64)))


def _group_norm18(n: Node) -> None:
    """Below opset 21 scale and bias are per group."""
    groups = n.attrs["num_groups"]
    for k in (1, 2):
        n.operands[k] = n.emit("legacy.PerChannel", [n.operands[k], n.operands[0]], {"num_groups": groups})


def _dft17(n: Node) -> None:
    """Below opset 20 the axis is an attribute, 1 by default."""
    n.put(2, n.constant(np.asarray(n.attrs.pop("axis", 1), np.int64)))


def _grid_sample(n: Node) -> None:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    n.attrs["mode"] = names.get(n.attrs.get("mode", "bilinear"), n.attrs.get("mode"))


def _roi_align10(n: Node) -> None:
    """Below opset 16 regions are not shifted by half a pixel."""
    n.attrs.setdefault("coordinate_transformation_mode", "output_half_pixel")


_BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
_REDUCE18 = (
    "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceSumSquare",
)  # fmt: skip


def _max_unpool(n: Node) -> None:
    """Positions that a MaxPool of the model found count in what it pooled, so in `output_shape`, as in onnxruntime.

    ONNX's own case has those of an input count in the default shape, which is padded to `output_shape` afterwards.
    """
    x, indices, shape, *_ = *n.operands, None, None, None
    maker = None if indices is None else indices.defining_op
    if x is None or shape is None or maker is None or maker.name != "MaxPool" or indices is not maker.results[1]:
        return
    n.attrs[IN_OUTPUT_SHAPE] = 1


# operator -> ((version, rule), ...): the rule applies to nodes whose schema is older than the version
RULES: dict[str, tuple[tuple[int, UpgradeStep], ...]] = {
    **dict.fromkeys(_BROADCAST, ((7, _legacy_broadcast),)),
    **{name: ((18, _operand("axes", 1)),) for name in _REDUCE18},
    "ReduceSum": ((13, _operand("axes", 1)),),
    "BatchNormalization": ((14, _batch_norm),),
    "Cast": ((6, _cast),),
    "Clip": ((6, _drop("consumed_inputs")), (11, _clip)),
    "DFT": ((20, _dft17),),
    "Dropout": ((12, _dropout),),
    "Gemm": ((7, _drop("broadcast")),),
    "GridSample": ((20, _grid_sample),),
    "GroupNormalization": ((21, _group_norm18),),
    "Hardmax": ((13, _flat_softmax),),
    "MaxUnpool": ((99, _max_unpool),),
    "LogSoftmax": ((13, _flat_softmax),),
    "PRelu": ((6, _drop("consumed_inputs")), (7, _prelu)),
    "Pad": ((11, _pad),),
    "Reshape": ((5, _operand("shape", 1)),),
    "Resize": ((11, _resize10),),
    "RoiAlign": ((16, _roi_align10),),
    "Scatter": ((99, _rename("ScatterElements")),),
    "Slice": ((10, _slice),),
    "Softmax": ((13, _flat_softmax),),
    "Split": ((13, _operand("split", 1)),),
    "Squeeze": ((13, _operand("axes", 1)),),
    "Tile": ((6, _tile1),),
    "TopK": ((10, _topk),),
    "Unsqueeze": ((13, _operand("axes", 1)),),
    "Upsample": ((99, _upsample),),
}
_EVERYWHERE = _drop("consumed_inputs")


def _flat_pads(n: Node) -> None:
    """`pads` may be a row of a matrix."""
    if len(n.operands) > 1:
        n.operands[1] = n.emit("Reshape", [n.operands[1], n.constant(np.array([-1], np.int64))], {})


def _step_of_one(n: Node) -> None:
    if len(n.operands) == 2 and (start := n.operands[0]) is not None:
        kind = start.tensor.dtype.numpy if isinstance(start.type, TensorType) else np.int64
        one = n.constant(np.asarray(1, kind))
        n.put(2, one if start.type is not None else n.emit("CastLike", [one, start], {}))


def _wide_indices(n: Node) -> None:
    """Indices may be i32."""
    if len(n.operands) > 1:
        n.operands[1] = n.emit("Cast", [n.operands[1]], {"to": dt.I64})


# Operators equivalent to others: onnxruntime's quantiser writes two for types that old operator sets lack, one was
# renamed, and some predate those of ONNX and were written by torch exporters; one was experimental in ONNX. Those have
# another form, and a rule follows.
SAME: dict[str, tuple[str, UpgradeStep | None]] = {
    "DynamicSlice": ("Slice", None),
    "com.microsoft.QuantizeLinear": ("QuantizeLinear", None),
    "com.microsoft.DequantizeLinear": ("DequantizeLinear", None),
    "com.microsoft.TransposeMatMul": ("com.microsoft.FusedMatMul", None),
    "com.microsoft.GatherND": ("GatherND", _wide_indices),
    "com.microsoft.GridSample": ("GridSample", _grid_sample),
    "com.microsoft.Pad": ("Pad", _flat_pads),
    "com.microsoft.Range": ("Range", _step_of_one),
    "com.microsoft.SampleOp": ("Identity", None),
    "com.microsoft.Trilu": ("Trilu", None),
}


def rename(node: Node) -> None:
    """Rename an operator that is equivalent to another one to that one, in its form, in place."""
    if node.name in SAME:
        node.name, rule = SAME[node.name]
        if rule is not None:
            rule(node)


def upgrade(node: Node, version: int, old_defaults: dict[str, Any], new_defaults: dict[str, Any]) -> None:
    """Upgrade a node of schema `version` to the latest form, in place.

    Args:
        node: the node.
        version: `since_version` of the schema that the node follows.
        old_defaults: attribute defaults of that schema.
        new_defaults: attribute defaults of the latest one.
    """
    for name, value in old_defaults.items():
        if value is not None and name not in node.attrs and name in new_defaults and value != new_defaults[name]:
            node.attrs[name] = value
    for below, rule in RULES.get(node.name, ()):
        if version < below:
            rule(node)
    _EVERYWHERE(node)
