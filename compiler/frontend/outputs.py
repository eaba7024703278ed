"""The outputs of a model: declared ones, and intermediate values that the user requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import GraphProto

from occ.compiler.diagnostics import Sink, closest, shorten


def outputs_of(graph: GraphProto, known: Iterable[str], asked: Sequence[str], sink: Sink) -> list[str]:
    """The names of the outputs of a model, the declared ones first.

    Args:
        graph: the main graph.
        known: its inputs and weights.
        asked: requested names: values; nodes, which mean all their results; or `NODE:0`, which means one of them.
        sink: receives OCC0205 for a name that the graph does not have.
    """
    declared = [o.name for o in graph.output]
    if not asked:
        return declared
    values = {*known, *(name for node in graph.node for name in node.output)} - {""}
    nodes = {node.name: list(node.output) for node in graph.node if node.name}
    found: list[str] = []
    for name in asked:
        node, _, place = name.rpartition(":")
        if name in values:
            found.append(name)
        elif name in nodes:
            found += nodes[name]
        elif node in nodes and place.isdecimal() and any(nodes[node][int(place) : int(place) + 1]):
            found.append(nodes[node][int(place)])
        else:
            sink.error(
                "OCC0205",
                f"--outputs names `{shorten(name)}`, which is not a value or node of the main graph",
                help=_remedy(name, node, nodes, values),
            )
    return [*declared, *(n for n in dict.fromkeys(found) if n and n not in declared)]


def _remedy(name: str, node: str, nodes: dict[str, list[str]], values: set[str]) -> str:
    if node in nodes:
        count = sum(map(bool, nodes[node]))
        return (
            f"the node `{shorten(node)}` has {count} result{'s' if count != 1 else ''}; the first is "
            f"`{shorten(node)}:0`"
        )
    return closest(name, values | nodes.keys()) or "`occ dump MODEL --stage imported` shows the values"
