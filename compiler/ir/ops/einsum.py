"""Einsum: products of tensors by labelled axes, two at a time."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.shape import broadcast_dims, equal_dims
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, literal
from occ.compiler.ir.te.function import Builder, Tensor

Labels = tuple[str, ...]


def parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand and of the result; the axes of an ellipsis are numbered from the last.

    Raises:
        Invalid: the equation is malformed, or does not match the ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Invalid(f"`Einsum` {equation!r} has {len(terms)} terms for {len(ranks)} operands", code="OCC0107")
    labels = [_labels(equation, term, rank) for term, rank in zip(terms, ranks, strict=True)]
    numbered = sorted({x for term in labels for x in term if x.isdigit()}, key=int, reverse=True)
    if arrow:
        result = [*right.replace("...", "")] if "..." not in right else []
        if "..." in right:
            before, _, after = right.partition("...")
            result = [*before, *numbered, *after]
    else:
        counts = Counter(x for term in labels for x in term if not x.isdigit())
        result = [*numbered, *sorted(x for x, n in counts.items() if n == 1)]
    known = {x for term in labels for x in term}
    if len(set(result)) < len(result) or not set(result) <= known:
        raise Invalid(f"`Einsum` {equation!r}: the result has labels that no operand has", code="OCC0107")
    return labels, tuple(result)


def _labels(equation: str, term: str, rank: int) -> Labels:
    before, dots, after = term.partition("...")
    extra = rank - len(before) - len(after)
    if extra < 0 or (extra and not dots) or not all(c.isalpha() for c in before + after):
        raise Invalid(f"`Einsum` {equation!r}: the term {term!r} does not fit a tensor of rank {rank}", code="OCC0107")
    return (*before, *(str(k) for k in reversed(range(extra))), *after)


def _extents(terms: Sequence[tuple[Tensor, Labels]]) -> dict[str, Dim]:
    """The extent of each label; 1 broadcasts, except for a label that one operand repeats."""
    found: dict[str, Dim] = {}
    for x, labels in terms:
        own: dict[str, Dim] = {}
        for label, n in zip(labels, x.shape, strict=True):
            own[label] = equal_dims(own[label], n, f"`Einsum`: extents of {label!r}") if label in own else n
        for label, n in own.items():
            found[label] = broadcast_dims(found[label], n, f"`Einsum`: extents of {label!r}") if label in found else n
    return found


def _read(x: Tensor, labels: Labels, at: dict[str, Expr]) -> Expr:
    index = (literal(0, I64) if n == 1 else at[label] for label, n in zip(labels, x.shape, strict=True))
    return f.in_acc(x[tuple(index)])


def _joined(t: Builder, terms: Sequence[tuple[Tensor, Labels]], kept: Labels, sizes: dict[str, Dim]) -> Tensor:
    """The product of one or two operands, summed over all labels that are not kept."""
    summed = tuple(dict.fromkeys(x for _, labels in terms for x in labels if x not in kept))

    def element(*i: Expr) -> Expr:
        at = dict(zip((*kept, *summed), i, strict=True))
        parts = [_read(x, labels, at) for x, labels in terms]
        return parts[0] if len(parts) == 1 else parts[0] * parts[1]

    shape = [sizes[x] for x in kept]
    if not summed:
        return t.map(shape, element, name="einsum")
    return t.sum(shape, [sizes[x] for x in summed], element, name="einsum")


@op("Einsum", tags=("contraction",))
class Einsum:
    """Sums of products by labels; more than two operands are joined from the left."""

    def body(t, *xs, a):
        labels, result = parse_equation(a.equation, [x.rank for x in xs])
        terms = list(zip(xs, labels, strict=True))
        sizes = _extents(terms)
        while len(terms) > 2:
            later = {x for _, names in terms[2:] for x in names} | set(result)
            kept = tuple(x for x in dict.fromkeys((*terms[0][1], *terms[1][1])) if x in later)
            terms = [(_joined(t, terms[:2], kept, sizes), kept), *terms[2:]]
        acc = _joined(t, terms, result, sizes)
        dtype = xs[0].dtype
        return acc if acc.dtype == dtype else t.map(acc.shape, lambda *i: cast(dtype, acc[i]), name="round")


ALL = (Einsum,)
