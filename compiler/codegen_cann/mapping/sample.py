"""Losses and image sampling as GE nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.reduce import reduced
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_INTERPOLATIONS = {"linear": "bilinear", "nearest": "nearest"}


def _negative_log(e: Emitter, op: Op, logs: Ref, labels: Ref, weight: Ref | None) -> Ref:
    """The loss of log-probabilities `[N, C, ...]` at the labels `[N, ...]` (ONNX NegativeLogLikelihoodLoss)."""
    labels = e.cast(labels, "INT64")
    ignore, kept = op.a.ignore_index, None
    if ignore is not None:
        kept = e.op("NotEqual", labels, e.scalar(ignore, labels), out=Desc("BOOL", labels.shape))
        labels = e.op("SelectV2", kept, labels, e.scalar(0, labels), out=labels.desc)
    column = e.reshape(labels, (labels.shape[0], 1, *labels.shape[1:]))
    picked = e.reshape(e.op("GatherElements", logs, column, out=Desc(logs.dtype, column.shape), dim=1), labels.shape)
    if weight is None:
        share = e.constant(np.ones(labels.shape, np.float16 if logs.dtype == "FLOAT16" else np.float32))
    else:
        axis = e.constant(np.array(0, np.int32))
        share = e.op("GatherV2", weight, labels, axis, out=Desc(weight.dtype, labels.shape))
    if kept is not None:
        share = e.op("SelectV2", kept, share, e.scalar(0, share), out=share.desc)
    loss = e.op("Neg", e.op("Mul", picked, share))
    if op.a.reduction == "none":
        return loss
    axes = list(range(len(labels.shape)))
    total = reduced(e, "ReduceSum", loss, axes, keep=False)
    return (
        total if op.a.reduction == "sum" else e.op("RealDiv", total, reduced(e, "ReduceSum", share, axes, keep=False))
    )


def _check(x: Ref) -> None:
    if x.dtype not in ("FLOAT", "FLOAT16"):
        raise Unsupported(f"GE computes no logarithms of {x.dtype} here")


def _nll(e: Emitter, op: Op, x: Ref, labels: Ref, weight: Ref | None = None) -> Ref:
    _check(x)
    return _negative_log(e, op, x, labels, weight)


def _cross_entropy(e: Emitter, op: Op, x: Ref, labels: Ref, weight: Ref | None = None) -> tuple[Ref, ...]:
    _check(x)
    logs = e.op("LogSoftmaxV2", x, axes=[1])
    return (_negative_log(e, op, logs, labels, weight), logs)[: len(op.results)]


def _grid_sample(e: Emitter, op: Op, x: Ref, grid: Ref) -> Ref:
    a = op.a
    mode = _INTERPOLATIONS.get(a.mode)
    if len(x.shape) != 4 or mode is None:
        raise Unsupported(f"GE samples four axes, bilinear or nearest, not {len(x.shape)} axes {a.mode}")
    out = Desc(x.dtype, (*x.shape[:2], *grid.shape[1:3]), "NCHW")
    made = e.op(
        "GridSampler2D", x, e.cast(grid, x.dtype), out=out, interpolation_mode=mode, padding_mode=a.padding_mode,
        align_corners=bool(a.align_corners),
    )  # fmt: skip
    made.node.formats = {"x": "NCHW"}
    return made


ROWS: dict[str, Row] = {
    "GridSample": _grid_sample,
    "NegativeLogLikelihoodLoss": _nll,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
