"""Graph queries that fusion rules share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Graph, Node, Ref


class Users:
    """The nodes that read each node of a graph; None for the graph itself, if it is an output."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Node, list[Node | None]] = defaultdict(list)
        for node in graph.nodes:
            for r in node.inputs:
                if r is not None:
                    self._of[r.node].append(node)
        for r in graph.outputs:
            self._of[r.node].append(None)

    def __getitem__(self, node: Node) -> list[Node | None]:
        return self._of.get(node, [])


def made_by(x: Ref | None, kind: str) -> Ref | None:
    """The first operand of the node that computes a value, if it has a given type."""
    return x.node.inputs[0] if x is not None and x.node.type == kind else None


def constant(x: Ref | None) -> np.ndarray | None:
    """The value of a constant."""
    return x.node.value if x is not None and x.node.type == "Const" else None


def scalar(x: Ref | None) -> float | None:
    """The value of a one-element constant."""
    value = constant(x)
    return float(value.reshape(())) if value is not None and value.size == 1 and value.dtype.kind != "b" else None


def either(node: Node) -> Iterator[tuple[Ref, Ref]]:
    """The operands of a commutative node in both orders."""
    if len(node.inputs) == 2 and node.inputs[0] is not None and node.inputs[1] is not None:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def through(graph: Graph, old: Ref, new: Ref) -> None:
    """Redirect all readers of one value to another."""
    for node in graph.nodes:
        node.inputs = [new if r == old else r for r in node.inputs]
    graph.outputs = [new if r == old else r for r in graph.outputs]
