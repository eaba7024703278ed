"""Checks nodes against the prototypes of their operators, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.graph.prototypes import Formal, FormalAttr, prototypes

# Attributes that GE accepts on any node, in addition to the prototype's.
_EXTRA = frozenset({"_keep_dtype", "_parent_node_index"})


def node_problems(node: Node) -> Iterator[str]:
    """Errors of a node against its prototype."""
    proto = prototypes().get(node.type)
    if proto is None:
        yield f"GE has no operator `{node.type}`"
        return
    yield from _inputs(node, proto.inputs)
    yield from _outputs(node, proto.outputs)
    for name, attr in proto.attrs.items():
        if name in node.attrs:
            if not _fits(attr, node.attrs[name]):
                yield f"attribute `{name}` of GE `{node.type}` is {attr.type}, not {node.attrs[name]!r}"
        elif attr.required:
            yield f"GE `{node.type}` needs the attribute `{name}`"
    for name in node.attrs:
        if name not in proto.attrs and name not in _EXTRA:
            yield f"GE `{node.type}` has no attribute `{name}`"
    if len(node.graphs) != len(proto.graphs):
        yield f"GE `{node.type}` has {len(proto.graphs)} sub-graphs, not {len(node.graphs)}"


def _expected(formals: Sequence[Formal], names: Sequence[str]) -> list[Formal] | None:
    """The formal parameter of each actual name; None if the names do not follow the prototype."""
    found: list[Formal] = []
    k = 0
    for formal in formals:
        if formal.kind == "dynamic":
            n = 0
            while k < len(names) and names[k] == f"{formal.name}{n}":
                found.append(formal)
                k, n = k + 1, n + 1
        elif k < len(names) and names[k] == formal.name:
            found.append(formal)
            k += 1
        elif formal.kind == "required":
            return None
    return found if k == len(names) else None


def _inputs(node: Node, formals: Sequence[Formal]) -> Iterator[str]:
    if node.type == "Data":
        return
    expected = _expected(formals, node.input_names)
    if expected is None or len(node.inputs) != len(node.input_names):
        yield f"GE `{node.type}` takes ({', '.join(f.name for f in formals)}), not ({', '.join(node.input_names)})"
        return
    for formal, ref in zip(expected, node.inputs, strict=True):
        if ref is None and formal.kind != "optional":
            yield f"GE `{node.type}` needs the input `{formal.name}`"
        elif ref is not None:
            yield from _type(node, formal, ref.desc)


def _outputs(node: Node, formals: Sequence[Formal]) -> Iterator[str]:
    expected = _expected(formals, node.output_names)
    if expected is None or len(expected) != len(node.outputs):
        yield f"GE `{node.type}` gives ({', '.join(f.name for f in formals)}), not ({', '.join(node.output_names)})"
        return
    for formal, desc in zip(expected, node.outputs, strict=True):
        yield from _type(node, formal, desc)


def _type(node: Node, formal: Formal, desc: Desc) -> Iterator[str]:
    if formal.dtypes and desc.dtype not in formal.dtypes:
        yield f"`{formal.name}` of GE `{node.type}` takes {', '.join(sorted(formal.dtypes))}, not {desc.dtype}"


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _fits(attr: FormalAttr, value: Any) -> bool:
    if attr.type.startswith("List"):
        inner = FormalAttr(attr.name, attr.type.removeprefix("List"), True)
        return isinstance(value, (tuple, list)) and all(_fits(inner, v) for v in value)
    match attr.type:
        case "Int":  # some hold an element type, given by name
            return _is_int(value) or (isinstance(value, str) and re.fullmatch("[A-Z0-9]+", value) is not None)
        case "Float":
            return isinstance(value, (float, int)) and not isinstance(value, bool)
        case "Bool":
            return isinstance(value, bool)
        case "String" | "Type":
            return isinstance(value, str)
        case _:
            return isinstance(value, np.ndarray)


def graph_problems(graph: Graph) -> Iterator[str]:
    """Errors of a graph and its sub-graphs: nodes, order, names, edges."""
    names: set[str] = set()
    known = {g.name for g in graph.all()}
    for g in graph.all():
        seen: set[Node] = set()
        for node in g.nodes:
            yield from (f"{node.name}: {p}" for p in node_problems(node))
            if node.name in names or not node.name:
                yield f"{node.name}: the name is not unique"
            names.add(node.name)
            if any(r is not None and not _resolves(r, seen) for r in node.inputs):
                yield f"{node.name}: an input does not come from a node before it"
            if missing := [s for s in node.graphs if s not in known]:
                yield f"{node.name}: no sub-graph {missing[0]}"
            seen.add(node)
        if any(not _resolves(r, seen) for r in g.outputs):
            yield f"{g.name}: an output does not come from a node of the graph"


def _resolves(r: Ref, seen: set[Node]) -> bool:
    return r.node in seen and 0 <= r.index < len(r.node.outputs)
