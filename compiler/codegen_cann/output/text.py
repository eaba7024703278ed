"""GE graphs as text for people: one node per line, in the style of `.occ` text."""

from __future__ import annotations

from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import stored_size
from occ.compiler.codegen_cann.graph.graph import Graph, Node, Ref
from occ.compiler.diagnostics import shorten

_SHOWN = 8  # elements of a constant


def graph_text(graph: Graph) -> str:
    """A graph and its sub-graphs."""
    return "\n".join(_one(g) for g in graph.all())


def _one(g: Graph) -> str:
    data = ", ".join(f"{quoted(d.name)}: {d.outputs[0]}" for d in g.data)
    lines = [f"graph {quoted(g.name)}({data}) {{"]
    lines += ["  " + node_text(n) for n in g.nodes if n.type != "Data"]
    given = zip(g.output_names, g.outputs, strict=True)
    lines.append("  return " + ", ".join(f"{quoted(name)} = {_ref(r)}" for name, r in given))
    return "\n".join([*lines, "}", ""])


def node_text(n: Node) -> str:
    """A node: outputs, operator, inputs by name, attributes, types."""
    types = ", ".join(map(str, n.outputs))
    if n.type == "Const":
        return f"{quoted(n.name)} = Const({_value(n.value)}) : {types}"
    inputs = ", ".join(f"{k}={_ref(r)}" for k, r in zip(n.input_names, n.inputs, strict=True) if r is not None)
    attrs = ", ".join(f"{k}={_plain(v)}" for k, v in n.attrs.items())
    graphs = "".join(f" @{quoted(g)}" for g in n.graphs)
    return f"{quoted(n.name)} = {n.type}({inputs})" + (f" {{{attrs}}}" if attrs else "") + graphs + f" : {types}"


def quoted(name: str) -> str:
    """A quoted name, on one line whatever it contains."""
    clean = shorten(name, 120).replace('"', '\\"')
    return f'"{clean}"'


def _ref(r: Ref) -> str:
    return quoted(r.node.name) + (f":{r.index}" if r.index or len(r.node.outputs) > 1 else "")


def _value(x: np.ndarray) -> str:
    if x.size > _SHOWN:
        return f"{stored_size(x)} bytes"
    return str(x.tolist())


def _plain(v: Any) -> str:
    if isinstance(v, str):
        return quoted(v)
    if isinstance(v, (list, tuple)):
        return "[" + ", ".join(map(_plain, v)) + "]"
    return str(v).lower() if isinstance(v, bool) else str(v)
