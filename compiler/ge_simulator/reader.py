"""Reads `.air` bytes into nodes and edges, with the checks that GE makes on load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from occ.compiler.ge_simulator.schema import model_class
from occ.runtime.dataclass import dataclass

# The enumeration of ge.proto, and that of ge::DataType, which attributes use.
_PROTO_TYPES: dict[int, Any] = {
    1: np.float32, 2: np.float16, 3: np.int8, 4: np.uint8, 5: np.int16, 6: np.uint16, 7: np.int32, 8: np.int64,
    9: np.uint32, 10: np.uint64, 11: np.bool_, 12: np.float64, 16: np.complex64, 17: np.complex128,
    27: ml_dtypes.bfloat16, 28: ml_dtypes.int4,
}  # fmt: skip
_CPP_TYPES: dict[int, Any] = {
    0: np.float32, 1: np.float16, 2: np.int8, 3: np.int32, 4: np.uint8, 6: np.int16, 7: np.uint16, 8: np.uint32,
    9: np.int64, 10: np.uint64, 11: np.float64, 12: np.bool_, 16: np.complex64, 17: np.complex128,
    27: ml_dtypes.bfloat16, 29: ml_dtypes.int4,
}  # fmt: skip
_FORMATS = {0: "NCHW", 1: "NHWC", 2: "ND", 27: "NDHWC", 30: "NCDHW"}
_LISTS = {1: "s", 2: "i", 3: "f", 4: "b", 10: "dt"}


class BadGraph(Exception):
    """The file is not a graph that GE would load or run."""


class NoKernel(BadGraph):
    """The chip is known to lack something that a graph needs."""


class NotSimulated(BadGraph):
    """The simulator does not support an operator of the graph."""


@dataclass(frozen=True)
class Tensor:
    """A tensor description; `dtype` is None if the file says UNDEFINED."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int, ...]
    format: str

    def __str__(self) -> str:
        return f"{self.dtype or 'nothing'}{list(self.shape)}"


@dataclass(eq=False)
class Node:
    """A node of a GE graph, as read from a file.

    Attributes:
        inputs: (producer, output index), or None.
        constants: the values of the inputs that are constants, by position.
    """

    name: str
    type: str
    inputs: list[tuple[str, int] | None]
    attrs: dict[str, Any]
    input_descs: list[Tensor]
    output_descs: list[Tensor]
    subgraphs: list[str]
    constants: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])


@dataclass(eq=False)
class Graph:
    """A graph, with its nodes in an order in which they can run."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    data: list[Node] = field(default_factory=list)
    outputs: list[tuple[str, int]] = field(default_factory=list)


def cpp_type(number: int) -> np.dtype:
    """The numpy dtype of a ge::DataType number."""
    return np.dtype(_CPP_TYPES[number])


def proto_type(number: int) -> np.dtype | None:
    """The numpy dtype for a number in the enumeration of ge.proto; None if numpy has none."""
    found = _PROTO_TYPES.get(number)
    return None if found is None else np.dtype(found)


def read(data: bytes, files: Mapping[str, bytes] | None = None) -> dict[str, Graph]:
    """The graphs of an `.air` file by name, the root first.

    Args:
        data: the file.
        files: contents of the files that constants refer to, by name.

    Raises:
        BadGraph: GE would reject it.
    """
    message = model_class()()
    try:
        message.ParseFromString(data)
    except DecodeError as e:
        raise BadGraph(f"not a ModelDef: {e}") from None
    _no_unknown(message)
    graphs = {g.name: _graph(g, files or {}) for g in message.graph}
    if len(graphs) != len(message.graph) or not graphs:
        raise BadGraph("no graph, or two of one name")
    for g in graphs.values():
        for node in g.nodes:
            if missing := [s for s in node.subgraphs if s not in graphs]:
                raise BadGraph(f"{node.name}: no sub-graph {missing[0]}")
    return graphs


def _no_unknown(message: Any) -> None:
    if len(UnknownFieldSet(message)):
        raise BadGraph(f"{message.DESCRIPTOR.name} has unknown fields")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            items = value.values()
        else:
            items = [value] if hasattr(value, "ListFields") else value
        for item in items:
            _no_unknown(item)


def _graph(message: Any, files: Mapping[str, bytes]) -> Graph:
    nodes = [_node(op, files) for op in message.op]
    by_name = {n.name: n for n in nodes}
    if len(by_name) != len(nodes):
        raise BadGraph(f"{message.name}: two nodes of one name")
    for n in nodes:
        for edge in n.inputs:
            if edge is not None and (edge[0] not in by_name or edge[1] >= len(by_name[edge[0]].output_descs)):
                raise BadGraph(f"{n.name}: no output {edge[0]}:{edge[1]}")
        makers = {k: by_name[edge[0]] for k, edge in enumerate(n.inputs) if edge is not None}
        n.constants = {
            k: m.attrs["value"] for k, m in makers.items() if m.type in ("Const", "Constant", "FileConstant")
        }
    made = Graph(message.name, _ordered(nodes, by_name))
    made.data = sorted((n for n in nodes if n.type == "Data"), key=lambda n: n.attrs["index"])
    if [n.attrs["index"] for n in made.data] != list(range(len(made.data))):
        raise BadGraph(f"{message.name}: the indices of Data have holes")
    collectors = [n for n in nodes if n.type == "NetOutput"]
    listed = [_edge(o) for o in message.output]
    made.outputs = [e for e in (collectors[0].inputs if collectors else listed) if e is not None]
    return made


def _edge(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    name, _, index = text.rpartition(":")
    return name, int(index)


def _ordered(nodes: list[Node], by_name: Mapping[str, Node]) -> list[Node]:
    done: dict[str, None] = {}
    for start in nodes:
        work = [(start, False)]
        while work:
            node, ready = work.pop()
            if ready:
                done[node.name] = None
            elif node.name not in done:
                work.append((node, True))
                work += [(by_name[e[0]], False) for e in node.inputs if e is not None and e[0] not in done]
    return [by_name[n] for n in done]


def _node(op: Any, files: Mapping[str, bytes]) -> Node:
    attrs = {k: v for k in op.attr if (v := _attr(op.attr[k])) is not None}
    ins, outs = [_desc(d) for d in op.input_desc], [_desc(d) for d in op.output_desc]
    edges = [_edge(e) for e in op.input if not e.endswith(":-1")]
    if len(edges) != len(ins) and op.type != "Data":
        raise BadGraph(f"{op.name}: {len(edges)} edges for {len(ins)} inputs")
    if op.type == "FileConstant":
        name = attrs["file_path"]
        if name not in files:
            raise BadGraph(f"{op.name}: no file {name}")
        dtype = np.dtype(_CPP_TYPES[attrs["dtype"]])
        attrs["value"] = _elements(op.name, files[name], dtype, attrs["shape"])
    return Node(op.name, op.type, edges if op.type != "Data" else [], attrs, ins, outs, list(op.subgraph_name))


def _desc(d: Any) -> Tensor:
    layout = _FORMATS.get(d.attr["format_for_int"].i, "?") if "format_for_int" in d.attr else d.layout or "ND"
    kind = _PROTO_TYPES.get(d.dtype)
    return Tensor(d.name, None if kind is None else np.dtype(kind), tuple(d.shape.dim), layout)


def _elements(name: str, data: bytes, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """An array from its bytes; in INT4 a byte holds two elements, the first one in its low half."""
    if dtype != ml_dtypes.int4:
        return np.frombuffer(data, dtype).reshape(shape)
    count = int(np.prod(shape))
    if len(data) != (count + 1) // 2:
        raise BadGraph(f"{name}: {len(data)} bytes for {count} elements of INT4")
    pairs = np.frombuffer(data, np.uint8)
    nibbles = np.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[:count].astype(np.int8)
    return np.where(nibbles > 7, nibbles - 16, nibbles).astype(dtype).reshape(shape)


def _attr(a: Any) -> Any:
    """The value of an attribute; lists without a type are dropped, as GE does on load."""
    match a.WhichOneof("value"):
        case "s":
            return a.s.decode("utf-8", "surrogateescape")
        case "t":
            desc = _desc(a.t.desc)
            if desc.dtype is None:
                raise BadGraph("a constant of no type")
            return _elements("a constant", a.t.data, desc.dtype, desc.shape)
        case "list":
            if a.list.val_type == 0:
                return None
            values = list(getattr(a.list, _LISTS[a.list.val_type]))
            return [v.decode() if isinstance(v, bytes) else v for v in values]
        case "list_list_int":
            return [list(v.list_i) for v in a.list_list_int.list_list_i]
        case None:
            return None
        case kind:
            return getattr(a, kind)
