"""Single-operator models as the JSON of `atc --singleop`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from occ.compiler.codegen_cann.graph.formats import TYPES, stored
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.graph.prototypes import prototypes
from occ.runtime.element_types import ELEMENT_TYPES

_TYPE_NAMES = {t.ge: t.spelled for t in ELEMENT_TYPES.values() if t.ge}
_ATTR_TYPES = {
    "Int": "int", "Float": "float", "Bool": "bool", "String": "string", "Type": "data_type", "ListInt": "list_int",
    "ListFloat": "list_float", "ListBool": "list_bool", "ListString": "list_string", "ListListInt": "list_list_int",
}  # fmt: skip
_STRUCTURE = frozenset({"Data", "Const", "If", "While"})
_LARGEST = 1024  # elements of an operand up to which the operator is compiled for its value


def single_ops(graphs: Iterable[Graph]) -> list[dict[str, Any]]:
    """An entry for each distinct operator of some graphs, in order of appearance."""
    found: dict[str, dict[str, Any]] = {}
    for g in graphs:
        for node in g.nodes:
            if node.type not in _STRUCTURE:
                entry = _entry(node)
                found.setdefault(repr(entry), entry)
    return list(found.values())


def program(graph: Graph) -> tuple[bytes, bytes] | None:
    """A graph as operators to run one by one, in the form that `occ.runtime.acl.singleop` reads, and its constants.

    Returns:
        None for a graph with sub-graphs, which only a compiled graph supports.
    """
    if graph.children:
        return None
    numbers: dict[tuple[Node, int], int] = {(n, 0): k for k, n in enumerate(graph.data)}
    constants = [n for n in graph.nodes if n.type == "Const"]
    numbers |= {(n, 0): len(numbers) + k for k, n in enumerate(constants)}
    places: list[list[int]] = []
    data = bytearray()
    for n in constants:
        data += bytes(-len(data) % 64)
        raw = stored(n.value)
        places.append([len(data), len(raw)])
        data += raw
    operators: list[dict[str, Any]] = []
    for node in (n for n in graph.nodes if n.type not in _STRUCTURE):
        reads = [-1 if r is None else numbers[r.node, r.index] for r in node.inputs]
        numbers |= {(node, k): len(numbers) + k for k in range(len(node.outputs))}
        writes = [numbers[node, k] for k in range(len(node.outputs))]
        operators.append({"name": node.name, "entry": _entry(node), "reads": reads, "writes": writes})
    outputs = [numbers[r.node, r.index] for r in graph.outputs]
    record = {"inputs": len(graph.data), "constants": places, "operators": operators, "outputs": outputs}
    return json.dumps(record).encode(), bytes(data)


def _entry(node: Node) -> dict[str, Any]:
    proto = prototypes()[node.type]
    dynamic = {f.name for f in proto.inputs if f.kind == "dynamic"}
    inputs = [_operand(n, r, node, dynamic) for n, r in zip(node.input_names, node.inputs, strict=True)]
    attrs = [
        {"name": k, "type": _ATTR_TYPES[proto.attrs[k].type], "value": _value(proto.attrs[k].type, v)}
        for k, v in node.attrs.items()
        if k in proto.attrs
    ]
    made: dict[str, Any] = {"op": node.type, "input_desc": inputs, "output_desc": [_desc(d) for d in node.outputs]}
    return {**made, "attr": attrs} if attrs else made


def _value(kind: str, value: Any) -> Any:
    if isinstance(value, str) and kind == "Int":
        return TYPES[value][1]
    return _TYPE_NAMES[value] if kind == "Type" else value


def _operand(port: str, r: Ref | None, node: Node, dynamic: set[str]) -> dict[str, Any]:
    if r is None:
        return {"format": "RESERVED", "type": "UNDEFINED", "shape": []}
    made = _desc(Desc(r.dtype, r.shape, node.formats.get(port, r.desc.format)))
    base = port.rstrip("0123456789")
    if base in dynamic:
        made["dynamic_input"] = base
    if r.node.type == "Const" and r.node.value.dtype.kind in "iu" and r.node.value.size <= _LARGEST:
        made |= {"is_const": True, "const_value": r.node.value.reshape(-1).tolist()}
    return made


def _desc(d: Desc) -> dict[str, Any]:
    return {"format": d.format, "type": _TYPE_NAMES[d.dtype], "shape": list(d.shape)}
