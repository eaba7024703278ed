"""Einsum as batched products: GE's own operator has no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from occ.compiler.codegen_cann.graph.graph import Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.linear import product
from occ.compiler.codegen_cann.mapping.reduce import reduced
from occ.compiler.codegen_cann.mapping.shape import broadcast, sliced
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
_PRODUCTS = ("FLOAT", "FLOAT16", "BF16")  # element types of the matrix unit; others are multiplied element by element


class _Term(NamedTuple):
    """A tensor with a label for each axis."""

    ref: Ref
    labels: str

    def extent(self, label: str) -> int:
        return self.ref.shape[self.labels.index(label)]


def _einsum(e: Emitter, op: Op, *xs: Ref) -> Ref:
    inputs, result = _spelled_out(op.a.equation, [len(x.shape) for x in xs])
    terms = [_diagonal(e, _Term(x, t)) for x, t in zip(xs, inputs, strict=True)]
    total = terms[0]
    for k, term in enumerate(terms[1:], 2):
        later = {c for t in terms[k:] for c in t.labels} | set(result)
        total = _contracted(e, total, term, later)
    total = _summed(e, total, set(result))
    made = _ordered(e, total, result).ref
    shape = e.type(op.result).shape
    return made if made.shape == shape else broadcast(e, made, shape)


def _spelled_out(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Labels of the operands and of the result, with separate letters for the axes of `...`.

    Without an arrow, the result has the labels that occur once, in alphabetical order, after the ellipsis, as in numpy.
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    own = [rank - len(t.replace("...", "")) if "..." in t else 0 for t, rank in zip(terms, ranks, strict=True)]
    used = set(equation)
    free = [c for c in map(chr, range(ord("A"), ord("z") + 1)) if c.isalpha() and c not in used]
    if max(own) > len(free):
        raise Unsupported("its equation has too many axes")
    letters = "".join(free[: max(own)])
    spelled = [t.replace("...", letters[len(letters) - n :]) for t, n in zip(terms, own, strict=True)]
    if not arrow:
        plain = left.replace("...", "").replace(",", "")
        result = letters + "".join(sorted(c for c in set(plain) if plain.count(c) == 1))
    return spelled, result.replace("...", letters)


def _diagonal(e: Emitter, t: _Term) -> _Term:
    """A term without repeated labels: they become diagonals."""
    twice = next((c for c in t.labels if t.labels.count(c) > 1), None)
    if twice is None:
        return t
    i = t.labels.index(twice)
    j = t.labels.index(twice, i + 1)
    rest = [k for k in range(len(t.labels)) if k not in (i, j)]
    last = e.transpose(t.ref, [*rest, i, j])
    lead, n = last.shape[:-2], last.shape[-1]
    flat = e.reshape(last, (*lead, n * n))
    picked = sliced(e, flat, [0], [n * n], [len(lead)], [n + 1])
    return _diagonal(e, _Term(picked, "".join(t.labels[k] for k in rest) + twice))


def _summed(e: Emitter, t: _Term, kept: set[str]) -> _Term:
    """A term summed over labels that nothing else has."""
    axes = [k for k, c in enumerate(t.labels) if c not in kept]
    made = reduced(e, "ReduceSum", t.ref, axes, keep=False)
    return _Term(made, "".join(c for c in t.labels if c in kept))


def _ordered(e: Emitter, t: _Term, labels: str) -> _Term:
    return _Term(e.transpose(t.ref, [t.labels.index(c) for c in labels]), labels)


def _contracted(e: Emitter, a: _Term, b: _Term, later: set[str]) -> _Term:
    """The product of two terms, summed over labels that nothing later has."""
    a, b = _summed(e, a, later | set(b.labels)), _summed(e, b, later | set(a.labels))
    both = [c for c in a.labels if c in b.labels]
    a, b = _stretched(e, a, b, both), _stretched(e, b, a, both)
    batch = "".join(c for c in both if c in later)
    inner = "".join(c for c in both if c not in later)
    left = "".join(c for c in a.labels if c not in both)
    right = "".join(c for c in b.labels if c not in both)
    x, y = _ordered(e, a, batch + left + inner), _ordered(e, b, batch + right + inner)
    sizes = [[t.extent(c) for c in group] for t, group in ((a, batch), (a, left), (b, right), (a, inner))]
    outer, rows, cols, depth = (prod(s) for s in sizes)
    shape = (*sizes[0], *sizes[1], *sizes[2])
    if inner and x.ref.dtype in _PRODUCTS:
        made = product(e, _grouped(e, x, outer, rows, depth), _grouped(e, y, outer, cols, depth), tb=True)
    else:  # nothing is summed, or the matrix unit has no such type
        wide = e.reshape(x.ref, (outer, rows, 1, depth)), e.reshape(y.ref, (outer, 1, cols, depth))
        made = reduced(e, "ReduceSum", e.op("Mul", *wide), [3], keep=False) if inner else e.op("Mul", *wide)
    return _Term(e.reshape(made, shape), batch + left + right)


def _stretched(e: Emitter, t: _Term, other: _Term, both: Sequence[str]) -> _Term:
    """A term with its extents of 1 expanded to the other term's."""
    shape = [max(d, other.extent(c)) if c in both else d for c, d in zip(t.labels, t.ref.shape, strict=True)]
    return t if tuple(shape) == t.ref.shape else _Term(broadcast(e, t.ref, shape), t.labels)


def _grouped(e: Emitter, t: _Term, outer: int, rows: int, depth: int) -> Ref:
    return e.reshape(t.ref, (rows, depth) if outer == 1 else (outer, rows, depth))


ROWS: dict[str, Row] = {"Einsum": _einsum}
