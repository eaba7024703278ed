"""Attention in two ops, `attend_scores` and `attend`, that fuse into one kernel.

Elementwise operators may come in between: masks, biases, soft caps. Roles tell the schedule what each stage is.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import call, cast, equal, literal, where, wrap
from occ.compiler.ir.te.roles import ATTENTION, HEADS, PEAK

PLAIN, ZERO_NAN, ZERO_EMPTY = "plain", "zero-nan", "zero-empty"  # value of rows without a finite score, see Attend


@op("repeat_heads", own_attributes="group=int")
class RepeatHeads:
    """`[N, G, T, D]` as `[N, G*group, T, D]`: each head of keys or values repeated for `group` query heads."""

    def body(t, x, *, a):
        n, heads, *rest = x.shape
        return t.map((n, heads * a.group, *rest), lambda i, h, *at: x[(i, h // a.group, *at)], role=HEADS)


@op("attend_scores", tags=("contraction",), own_attributes="scale=float")
class AttendScores:
    """`scale * q @ k` for `q : T[.., S, D]` and `k : T[.., D, K]`, with sums in f32.

    Leading axes are equal. T is f32 or f16.
    """

    operands = ("q", "k")

    def body(t, q, k, *, a):
        def factor(*i):
            return cast(F32, q[i]) if a.scale == 1 else cast(F32, q[i]) * a.scale

        query = t.map(q.shape, factor, role=ATTENTION["query"])
        keys = t.map(k.shape, lambda *i: cast(F32, k[i]), role=ATTENTION["keys"])

        def product(*i):
            *batch, row, column, r = i
            return query[(*batch, row, r)] * keys[(*batch, r, column)]

        acc = t.sum([*q.shape[:-1], k.shape[-1]], [q.shape[-1]], product, role=ATTENTION["scores"])
        return acc if q.dtype == F32 else t.map(acc.shape, lambda *i: cast(q.dtype, acc[i]))


@op("attend", tags=("contraction",), writes="last", own_attributes="rows=text")
class Attend:
    """`Softmax(scores) @ v` for `scores : T[.., S, K]` and `v : T[.., K, D]`, computed in f32.

    The softmax is along the last axis. T is f32 or f16.

    Rows are divided by their sum after the product, which has fewer elements. Rows of only -inf, and rows with NaN,
    have no softmax: `rows` says whether they are NaN as in ONNX (`plain`), or zero (`zero-nan`, which PyTorch exports
    as `Where(IsNaN(p), 0, p)`), or whether rows of only -inf are zero (`zero-empty`, as in the operator Attention).
    """

    operands = ("scores", "v")

    def body(t, x, v, *, a):
        keys, dtype = x.shape[-1], F32
        low, zero = literal(dtype.lowest, dtype), literal(0, dtype)
        logits = t.map(x.shape, lambda *i: cast(dtype, x[i]), role=ATTENTION["logits"])
        top = t.reduce("max", x.shape[:-1], [keys], lambda *i: logits[i], role=ATTENTION["top"])
        peak = top
        if a.rows == ZERO_EMPTY:
            peak = t.map(top.shape, lambda *i: where(equal(top[i], low), zero, top[i]), role=PEAK)
        e = t.map(x.shape, lambda *i: f.decay(logits[i] - peak[i[:-1]]), role=ATTENTION["exp"])
        total = t.sum(top.shape, [keys], lambda *i: e[i], role=ATTENTION["total"])
        values = t.map(v.shape, lambda *i: cast(dtype, v[i]), role=ATTENTION["values"])

        def product(*i):
            *batch, row, column, r = i
            return e[(*batch, row, r)] * values[(*batch, r, column)]

        acc = t.sum([*x.shape[:-1], v.shape[-1]], [keys], product, role=ATTENTION["sum"])

        def whole(*i):
            return where(equal(total[i], zero), literal(1, dtype), total[i]) if a.rows == ZERO_EMPTY else total[i]

        def element(*i):
            value = acc[i] / whole(*i[:-1])
            if a.rows == ZERO_NAN:
                value = where(call("isnan", total[i[:-1]]), zero, value)
            # Without any key the product is empty, and therefore zero.
            value = value if isinstance(keys, int) else where(equal(wrap(keys), 0), zero, value)
            return cast(v.dtype, value)

        return t.map(acc.shape, element, role=ATTENTION["out"])


ALL = (RepeatHeads, AttendScores, Attend)
