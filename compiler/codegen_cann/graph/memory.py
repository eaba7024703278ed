"""Estimates the device memory of a graph."""

from __future__ import annotations

from occ.compiler.codegen_cann.graph.graph import Graph, Node

_FREE = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity"})  # GE gives their results no memory of their own


def workspace(graph: Graph) -> int:
    """Maximum bytes of intermediate values alive at once, if nodes run in order.

    Constants, inputs and outputs are not counted. Sub-graphs count where their node runs.
    """
    last = {r.node: k for k, n in enumerate(graph.nodes) for r in n.inputs if r is not None}
    given = {r.node for r in graph.outputs}
    inside = {g.name: workspace(g) for g in graph.children}
    live = peak = 0
    ends: dict[int, int] = {}
    for k, node in enumerate(graph.nodes):
        size = 0 if node in given or node.type in ("Const", "Data") else _bytes(node)
        live += size
        end = last.get(node, k)
        ends[end] = ends.get(end, 0) + size
        peak = max(peak, live + max((inside.get(g, 0) for g in node.graphs), default=0))
        live -= ends.pop(k, 0)
    return peak


def _bytes(node: Node) -> int:
    return 0 if node.type in _FREE else sum(d.nbytes for d in node.outputs)


def total(graph: Graph) -> int:
    """Total bytes: constants, intermediate values, inputs and outputs."""
    borders = sum(d.outputs[0].nbytes for d in graph.data) + sum(r.desc.nbytes for r in graph.outputs)
    return graph.weights + workspace(graph) + borders
