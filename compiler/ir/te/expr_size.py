"""Size of expressions when written out, since shared nodes repeat in generated code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from occ.compiler.ir.te.expr import Expr, Index, Load
from occ.compiler.ir.te.walks import children, walk


class Length(NamedTuple):
    """The size of an expression: its nodes, and those that are positions.

    A shared node counts once per use.
    """

    nodes: int
    positions: int


def length_of(exprs: Iterable[Expr], inlined: Mapping[str, Length]) -> Length:
    """The combined size of expressions after inlining the stages in `inlined`; an upper bound."""
    found = [_length(e, inlined) for e in exprs]
    return Length(sum(x.nodes for x in found), sum(x.positions for x in found))


def _length(e: Expr, inlined: Mapping[str, Length]) -> Length:
    known: dict[int, Length] = {}
    for node in walk(e):
        below = [known[id(c)] for c in children(node)]
        nodes, positions = 1 + sum(x.nodes for x in below), sum(x.positions for x in below) + isinstance(node, Index)
        if isinstance(node, Load) and node.source in inlined:
            body = inlined[node.source]
            nodes = body.nodes + body.positions * (max((x.nodes for x in below), default=1) - 1)
            positions = body.positions * max((x.positions for x in below), default=0)
        known[id(node)] = Length(nodes, positions)
    return known[id(e)]
