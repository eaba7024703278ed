"""Optimizers of ai.onnx.preview.training: Adagrad, Adam, Momentum."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.operator.scalars import scalar
from occ.compiler.ir.operator.spec import OpSpec
from occ.compiler.ir.shape import equal_dims, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, literal, where
from occ.compiler.ir.te.function import Builder, Tensor

DOMAIN = "ai.onnx.preview.training"
UpdateRule = Callable[..., Sequence[Expr]]


def _optimizer(name: str, groups: int, rule: UpdateRule) -> OpSpec:
    """The operator with a rate, a step and `groups` lists of tensors as operands; results exclude the gradients."""

    def body(t: Builder, rate: Tensor, step: Tensor, *xs: Tensor, a: SimpleNamespace) -> tuple[Tensor, ...]:
        if len(xs) % groups:
            raise Invalid(f"`{name}` takes groups of {groups} tensors, not {len(xs)}")
        n = len(xs) // groups
        results: list[list[Tensor]] = [[] for _ in range(groups - 1)]
        for k in range(n):
            parts = xs[k::n]
            for other in parts[1:]:
                _same_shape(name, parts[0], other)

            def element(*i: Expr, which: int, parts: Sequence[Tensor] = parts) -> Expr:
                r, t_ = scalar(name, "R", rate), scalar(name, "T", step)
                return rule(cast(parts[0].dtype, r), cast(parts[0].dtype, t_), *(p[i] for p in parts), a=a)[which]

            for which in range(groups - 1):
                made = t.map(parts[0].shape, lambda *i, w=which, e=element: e(*i, which=w), name="updated")
                results[which].append(made)
        return tuple(x for group in results for x in group)

    return OpSpec(f"{DOMAIN}.{name}", {"body": body})


def _same_shape(name: str, x: Tensor, y: Tensor) -> None:
    if x.rank != y.rank:
        raise Invalid(f"`{name}`: {show_shape(x.shape)} and {show_shape(y.shape)} of one group")
    for n, m in zip(x.shape, y.shape, strict=True):
        equal_dims(n, m, f"`{name}`: the shapes of one group")


def _adagrad(r: Expr, t: Expr, x: Expr, g: Expr, h: Expr, *, a: SimpleNamespace) -> Sequence[Expr]:
    rate = r / (t * a.decay_factor + 1.0)
    gradient = x * a.norm_coefficient + g
    squared = h + gradient * gradient
    return x - rate * gradient / (f.root(squared) + a.epsilon), squared


def _adam(r: Expr, t: Expr, x: Expr, g: Expr, v: Expr, h: Expr, *, a: SimpleNamespace) -> Sequence[Expr]:
    gradient = x * a.norm_coefficient + g
    first = v * a.alpha + gradient * (1 - a.alpha)
    second = h * a.beta + gradient * gradient * (1 - a.beta)
    corrected = r * f.root(1.0 - f.power(literal(a.beta, t.dtype), t)) / (1.0 - f.power(literal(a.alpha, t.dtype), t))
    rate = where(t > 0, corrected, r)
    return (x - rate * (first / (f.root(second) + a.epsilon))) * (1 - a.norm_coefficient_post), first, second


def _momentum(r: Expr, t: Expr, x: Expr, g: Expr, v: Expr, *, a: SimpleNamespace) -> Sequence[Expr]:
    if a.mode not in ("standard", "nesterov"):
        raise Invalid(f"`mode` of `Momentum` is {a.mode!r}", code="OCC0107")
    gradient = x * a.norm_coefficient + g
    velocity = v * a.alpha + gradient * where(t > 0, literal(a.beta, t.dtype), literal(1, t.dtype))
    return x - r * (velocity if a.mode == "standard" else gradient + velocity * a.alpha), velocity


ALL = (_optimizer("Adagrad", 3, _adagrad), _optimizer("Adam", 4, _adam), _optimizer("Momentum", 3, _momentum))
