"""Reductions, extrema, sorting and cumulative sums as GE nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import FLOATS, occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.elementwise import absolute, computing_type, widened
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def reduced(e: Emitter, kind: str, x: Ref, axes: Sequence[int], *, keep: bool) -> Ref:
    """A reduction over known axes; over none, the operand itself."""
    if not axes:
        return x
    shape = tuple(1 if k in axes else d for k, d in enumerate(x.shape) if keep or k not in axes)
    inner = computing_type(e, kind, x.dtype)
    made = e.op(kind, e.cast(x, inner), e.ints(sorted(axes)), out=Desc(inner, shape), keep_dims=keep)
    return e.cast(made, x.dtype)


def axes_of(e: Emitter, op: Op, rank: int) -> list[int]:
    """The axes that a reduction runs over."""
    given = e.known(op, 1)
    listed = [] if given is None else [int(k) % rank for k in given.reshape(-1)]
    return listed or ([] if op.a.noop_with_empty_axes else list(range(rank)))


def _reduce(kind: str, before: str = "", after: str = "") -> Row:
    def row(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
        axes = axes_of(e, op, len(x.shape))
        if 0 in x.shape:
            raise Unsupported("its operand is empty")
        value = absolute(e, x) if before == "Abs" else widened(e, before, x) if before else x
        value = reduced(e, kind, value, axes, keep=bool(op.a.keepdims))
        value = widened(e, after, value) if after else value
        return e.op("Identity", value) if value is x else value

    return row


def _log_sum_exp(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    if x.dtype not in FLOATS or 0 in x.shape:
        raise Unsupported(f"GE reduces no {x.dtype} this way")
    axes = axes_of(e, op, len(x.shape))
    top = e.op("Maximum", reduced(e, "ReduceMax", x, axes, keep=True), e.scalar(_lowest(x), x))
    total = e.op("Log", reduced(e, "ReduceSum", e.op("Exp", e.op("Sub", x, top)), axes, keep=True))
    made = e.op("Add", total, top)
    shape = [d for k, d in enumerate(made.shape) if op.a.keepdims or k not in axes]
    return e.reshape(made, shape)


def _lowest(x: Ref) -> float:
    """The lowest finite value: used for -inf, so that no difference becomes NaN."""
    import ml_dtypes

    return float(ml_dtypes.finfo(occ_type(x.dtype).numpy).min)


def _arg(kind: str) -> Row:
    def row(e: Emitter, op: Op, x: Ref) -> Ref:
        axis, size = op.a.axis % len(x.shape), x.shape[op.a.axis]
        value = e.cast(x, computing_type(e, kind, x.dtype))
        if op.a.select_last_index:
            value = e.op("ReverseV2", value, e.ints([axis], np.int32), out=value.desc)
        shape = tuple(d for k, d in enumerate(x.shape) if k != axis)
        found = e.op(kind, value, e.constant(np.array(axis, np.int32)), out=Desc("INT32", shape), dtype="INT32")
        if op.a.select_last_index:
            found = e.op("Sub", e.scalar(size - 1, found), found, out=found.desc)
        return e.reshape(e.cast(found, "INT64"), e.type(op.result).shape)

    return row


def _top_k(e: Emitter, op: Op, x: Ref, *_: Any) -> tuple[Ref, Ref]:
    k = e.known(op, 1)
    assert k is not None, "TopK has k"
    axis = op.a.axis % len(x.shape)
    count = int(k.reshape(-1)[0])
    shape = tuple(count if n == axis else d for n, d in enumerate(x.shape))
    inner = computing_type(e, "TopK", x.dtype)
    outs = [Desc(inner, shape), Desc("INT32", shape)]
    given = e.cast(x, inner)
    values, indices = e.op(
        "TopK",
        given,
        e.constant(np.array(count, np.int32)),
        out=outs,
        sorted=True,
        largest=bool(op.a.largest),
        dim=axis,
    )
    return e.cast(values, x.dtype), e.cast(indices, "INT64")


def _cumulative(kind: str) -> Row:
    def row(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
        axis = e.known(op, 1)
        assert axis is not None, "a cumulative operator has an axis"
        k = e.constant(np.array(int(axis.reshape(-1)[0]) % len(x.shape), np.int32))
        return e.op(kind, x, k, out=x.desc, exclusive=bool(op.a.exclusive), reverse=bool(op.a.reverse))

    return row


ROWS: dict[str, Row] = {
    "ArgMax": _arg("ArgMaxV2"), "ArgMin": _arg("ArgMin"), "CumProd": _cumulative("Cumprod"),
    "CumSum": _cumulative("Cumsum"), "ReduceL1": _reduce("ReduceSum", "Abs"),
    "ReduceL2": _reduce("ReduceSum", "Square", "Sqrt"), "ReduceLogSum": _reduce("ReduceSum", "", "Log"),
    "ReduceLogSumExp": _log_sum_exp, "ReduceMax": _reduce("ReduceMax"), "ReduceMean": _reduce("ReduceMean"),
    "ReduceMin": _reduce("ReduceMin"), "ReduceProd": _reduce("ReduceProd"), "ReduceSum": _reduce("ReduceSum"),
    "ReduceSumSquare": _reduce("ReduceSum", "Square"), "TopK": _top_k,
}  # fmt: skip
