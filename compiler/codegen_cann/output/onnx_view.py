"""GE graphs as ONNX models for viewers, with nodes of the domain `ge`."""

from __future__ import annotations

from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import stored
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.output.proto import varint

# Field numbers of onnx.proto; the view is written with this package's encoder, so no library is needed.
_ELEMENT = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "STRING": 8, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13, "COMPLEX64": 14, "COMPLEX128": 15, "BF16": 16, "INT4": 22,
}  # fmt: skip
_LARGEST = 1024  # bytes of a constant that the view includes


def _len(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def _text(number: int, value: str) -> bytes:
    return _len(number, value.encode("utf-8", "surrogateescape"))


def _int(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def onnx_view(graph: Graph) -> bytes:
    """An onnx.ModelProto of a graph; sub-graphs are graph attributes of their nodes."""
    inside = {g.name: g for g in graph.all()}
    opset = _text(1, "ge") + _int(2, 1)
    return _int(1, 8) + _text(2, "occ") + _len(7, _graph(graph, inside)) + _len(8, _int(2, 17)) + _len(8, opset)


def _graph(graph: Graph, inside: dict[str, Graph]) -> bytes:
    parts = [_len(1, _node(n, inside)) for n in graph.nodes if n.type != "Data"]
    parts.append(_text(2, graph.name))
    parts += [_len(11, _value_info(_edge(Ref(d)), d.outputs[0])) for d in graph.data]
    parts += [_len(12, _value_info(_edge(r), r.desc)) for r in graph.outputs]
    shown = [(Ref(n, k), d) for n in graph.nodes if n.type != "Data" for k, d in enumerate(n.outputs)]
    parts += [_len(13, _value_info(_edge(r), d)) for r, d in shown]
    return b"".join(parts)


def _edge(r: Ref | None) -> str:
    return "" if r is None else f"{r.node.name}:{r.index}"


def _node(n: Node, inside: dict[str, Graph]) -> bytes:
    made = b"".join(_text(1, _edge(r)) for r in n.inputs) if n.type != "Const" else b""
    made += b"".join(_text(2, _edge(Ref(n, k))) for k in range(len(n.outputs)))
    made += _text(3, n.name) + _text(4, n.type) + b"".join(_len(5, _attr(k, v, n)) for k, v in n.attrs.items())
    for slot, name in enumerate(n.graphs):
        made += _len(5, _text(1, f"graph{slot}") + _len(6, _graph(inside[name], inside)) + _int(20, 5))
    return made + _text(7, "ge")


def _attr(name: str, value: Any, node: Node) -> bytes:
    head = _text(1, name)
    match value:
        case np.ndarray():
            return head + (
                _len(5, _tensor(value, node)) + _int(20, 4)
                if value.nbytes <= _LARGEST
                else _text(4, f"{value.nbytes} bytes") + _int(20, 3)
            )
        case bool() | int():
            return head + _int(3, int(value)) + _int(20, 2)
        case float() | str():
            return head + _text(4, str(value)) + _int(20, 3)
        case _:
            return head + _text(4, str(list(value))) + _int(20, 3)


def _tensor(value: np.ndarray, node: Node) -> bytes:
    dims = b"".join(_int(1, d) for d in value.shape)
    return dims + _int(2, _ELEMENT[node.outputs[0].dtype]) + _len(9, stored(value))


def _value_info(name: str, desc: Desc) -> bytes:
    shape = b"".join(_len(1, _int(1, d) if d >= 0 else _text(2, "?")) for d in desc.shape)
    tensor = _int(1, _ELEMENT[desc.dtype]) + _len(2, shape)
    return _text(1, name) + _len(2, _len(1, tensor))
