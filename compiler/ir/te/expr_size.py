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
    nodes: dict[int, int] = {}
    positions: dict[int, int] = {}
    for node in walk(e):
        below = [id(c) for c in children(node)]
        here, places = 1, int(type(node) is Index)
        for c in below:
            here += nodes[c]
            places += positions[c]
        if type(node) is Load and node.source in inlined:
            body = inlined[node.source]
            here = body.nodes + body.positions * (max((nodes[c] for c in below), default=1) - 1)
            places = body.positions * max((positions[c] for c in below), default=0)
        nodes[id(node)], positions[id(node)] = here, places
    return Length(nodes[id(e)], positions[id(e)])
