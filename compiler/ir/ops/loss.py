"""Losses over class scores."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.reduce import count_of, softmax_parts
from occ.compiler.ir.shape import equal_dims, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def likelihood_loss(
    t: Builder, name: str, log_prob: Tensor, target: Tensor, weight: Tensor | None, a: SimpleNamespace, dtype: Any
) -> Tensor:
    """`-log_prob` at the target class, weighted, then reduced (ONNX NegativeLogLikelihoodLoss).

    Raises:
        Invalid: the shapes do not fit.
    """
    if log_prob.rank < 2 or target.rank != log_prob.rank - 1:
        raise Invalid(f"`{name}`: scores {show_shape(log_prob.shape)}, target {show_shape(target.shape)}")
    kept = (log_prob.shape[0], *log_prob.shape[2:])
    shape = tuple(
        equal_dims(x, y, f"`{name}`: the scores and the target") for x, y in zip(kept, target.shape, strict=True)
    )
    classes = wrap(log_prob.shape[1])
    acc = log_prob.dtype

    def ignored(i: tuple[Expr, ...]) -> Expr | None:
        return None if a.ignore_index is None else equal(target[i], a.ignore_index)

    def valid(*i: Expr) -> Expr:
        skip, k = ignored(i), cast(classes.dtype, target[i])
        inside = (k >= 0) & (k < classes)
        return inside if skip is None else skip | inside

    t.check(shape, valid, f"`{name}` has a target that is not a class")

    def weight_at(i: tuple[Expr, ...]) -> Expr:
        each = literal(1, acc) if weight is None else cast(acc, weight[cast(classes.dtype, target[i])])
        skip = ignored(i)
        return each if skip is None else where(skip, literal(0, acc), each)

    def element(*i: Expr) -> Expr:
        value = -log_prob[(i[0], cast(classes.dtype, target[i]), *i[1:])] * weight_at(i)
        skip = ignored(i)
        return value if skip is None else where(skip, literal(0, acc), value)

    if a.reduction == "none":
        return t.map(shape, lambda *i: cast(dtype, element(*i)), name="loss")
    loss = t.map(shape, element, name="each")
    total = t.reduce("sum", [], shape, lambda *i: loss[i], name="total")
    if a.reduction == "sum":
        return t.map([], lambda: cast(dtype, total[()]), name="loss")
    if a.reduction != "mean":
        raise Invalid(f"`reduction` of `{name}` is {a.reduction!r}", code="OCC0107")
    if weight is None and a.ignore_index is None:
        n = count_of(loss, range(loss.rank), acc)
        return t.map([], lambda: cast(dtype, total[()] / n), name="loss")
    weights = t.reduce("sum", [], shape, lambda *i: weight_at(i), name="weights")
    return t.map([], lambda: cast(dtype, total[()] / weights[()]), name="loss")


@op("NegativeLogLikelihoodLoss")
class NegativeLogLikelihoodLoss:
    def body(t, x, target, weight=None, *, a):
        log_prob = t.map(x.shape, lambda *i: f.in_acc(x[i]), name="log_prob")
        return likelihood_loss(t, "NegativeLogLikelihoodLoss", log_prob, target, weight, a, x.dtype)


@op("SoftmaxCrossEntropyLoss")
class SoftmaxCrossEntropyLoss:
    def body(t, scores, labels, weights=None, *, a):
        if scores.rank < 2:
            raise Invalid(f"`SoftmaxCrossEntropyLoss` takes scores of rank 2 and more, not {scores.rank}")
        shifted, _, total = softmax_parts(t, scores, 1)

        def element(*i):
            return shifted[i] - f.log(total[(i[0], wrap(0), *i[2:])])

        log_prob = t.map(scores.shape, element, name="log_prob")
        loss = likelihood_loss(t, "SoftmaxCrossEntropyLoss", log_prob, labels, weights, a, scores.dtype)
        if a.n_results == 1:
            return loss
        return loss, t.map(scores.shape, lambda *i: cast(scores.dtype, log_prob[i]), name="log_prob_out")


ALL = (NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss)
