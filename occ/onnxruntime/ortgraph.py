"""Reads graphs of onnxruntime as ONNX, through its C API."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from occ.onnxruntime.ort_api import Api
from occ.runtime.dataclass import dataclass

_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _GRAPH, _TENSOR = 1, 2, 3, 4, 5, 6, 7, 8


@dataclass
class GraphFacts:
    """A graph of onnxruntime.

    Attributes:
        nodes: as ONNX; those without an ONNX form, such as with sub-graphs, are in `opaque`.
        handles: the same nodes, as onnxruntime's pointers.
        opaque: positions of nodes that belong to another provider, or have sub-graphs or unreadable attributes.
        nested: positions of nodes in `opaque` whose sub-graphs have been read; `read_graph` does so on request.
        assigned: names of providers that already own nodes, by node position.
        implicit: outer values that nodes with sub-graphs read, by position.
        types: of values that are tensors of known type.
        weights: constant initializers, by name.
        inputs, outputs: names of those of the graph.
        opsets: versions by domain.
        scalars_known: whether a type without axes is a scalar; up to level 23, onnxruntime reports any rank so.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    opaque: set[int] = field(default_factory=set)
    nested: set[int] = field(default_factory=set)
    assigned: dict[int, str] = field(default_factory=dict)
    implicit: dict[int, list[str]] = field(default_factory=dict)
    types: dict[str, ValueInfoProto] = field(default_factory=dict)
    weights: dict[str, TensorProto] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    opsets: dict[str, int] = field(default_factory=dict)
    scalars_known: bool = False

    def has_rank(self, name: str) -> bool:
        """Whether the rank of a value is known."""
        found = self.types.get(name)
        return found is not None and (self.scalars_known or len(found.type.tensor_type.shape.dim) > 0)


def read_graph(table: int, graph: int, *, nested: bool = False) -> GraphFacts:
    """The facts of a graph.

    Args:
        table: onnxruntime's functions, of level 23; with `nested`, of level 24.
        graph: the handle.
        nested: whether to read sub-graphs too.

    Raises:
        RuntimeError: onnxruntime rejects a call.
    """
    return _Reader(Api(table), nested).graph(graph)


class _Reader:
    def __init__(self, api: Api, nested: bool) -> None:
        self.api, self.nested = api, nested
        self.found = GraphFacts(scalars_known=nested)
        self.outer: set[str] = set()  # values of enclosing graphs

    def graph(self, graph: int) -> GraphFacts:
        n = self.api.number("NumOpsets", graph)
        domains, versions = (c.c_char_p * n)(), (c.c_int64 * n)()
        self.api.Opsets(graph, domains, versions, c.c_size_t(n))
        listed = [(d or b"").decode() for d in domains]
        self.found.opsets = {"" if d == "ai.onnx" else d: v for d, v in zip(listed, versions, strict=True)}
        self.found.inputs = [self.value(v) for v in self.api.pointers("NumInputs", "Inputs", graph)]
        self.found.outputs = [self.value(v) for v in self.api.pointers("NumOutputs", "Outputs", graph)]
        for k, node in enumerate(self.api.pointers("NumNodes", "Nodes", graph)):
            assert node is not None
            self.node(k, node)
        return self.found

    def node(self, k: int, node: int) -> None:
        api, found = self.api, self.found
        inputs = [self.value(v, weight=True) for v in api.pointers("NumNodeInputs", "NodeInputs", node)]
        outputs = [self.value(v) for v in api.pointers("NumNodeOutputs", "NodeOutputs", node)]
        while inputs and not inputs[-1]:
            inputs.pop()
        domain = api.text("NodeDomain", node)
        made = helper.make_node(api.text("NodeType", node), inputs, outputs, api.text("NodeName", node), domain=domain)
        found.handles.append(node)
        found.nodes.append(made)
        if owner := api.text("EpName", node):
            found.assigned[k] = owner
        if k in found.assigned or api.number("NumSubgraphs", node):
            found.opaque.add(k)
            found.implicit[k] = [
                self.value(v, weight=self.nested) for v in api.pointers("NumImplicit", "Implicit", node)
            ]
            if self.nested and k not in found.assigned:
                self._read_nested(k, node, made)
            return
        try:
            made.attribute.extend(self.attributes(node))
        except (RuntimeError, TypeError, ValueError):
            found.opaque.add(k)

    def _read_nested(self, k: int, node: int, made: NodeProto) -> None:
        """Add a node's sub-graphs, if they can be expressed in ONNX."""
        n = self.api.number("NumSubgraphs", node)
        graphs, names = (c.c_void_p * n)(), (c.c_char_p * n)()
        try:
            self.api.Subgraphs(node, graphs, c.c_size_t(n), names)
            bodies = {(name or b"").decode(): self._body(g) for g, name in zip(graphs, names, strict=True) if g}
            made.attribute.extend(self.attributes(node))
            made.attribute.extend(helper.make_attribute(name, body) for name, body in bodies.items())
        except (RuntimeError, TypeError, ValueError):
            del made.attribute[:]
        else:
            self.found.nested.add(k)

    def _body(self, graph: int) -> GraphProto:
        """A sub-graph.

        Raises:
            TypeError: one of its nodes cannot be expressed in ONNX.
        """
        inner = _Reader(self.api, nested=True)
        facts = inner.graph(graph)
        if facts.opaque - facts.nested:
            raise TypeError("a node of a sub-graph")
        self.outer |= inner.outer - {n for node in self.found.nodes for n in node.output}
        ins, outs = (
            [facts.types.get(n) or ValueInfoProto(name=n) for n in names] for names in (facts.inputs, facts.outputs)
        )
        own = [t for n, t in facts.weights.items() if n not in inner.outer]
        return helper.make_graph(facts.nodes, "body", ins, outs, own)

    def attributes(self, node: int) -> Iterator[AttributeProto]:
        for attr in self.api.pointers("NumAttrs", "Attrs", node):
            if attr is None:
                continue
            kind = c.c_int()
            self.api.AttrType(attr, c.byref(kind))
            if self.nested and kind.value == _GRAPH:
                continue
            yield helper.make_attribute(
                self.api.text("AttrName", attr), self.attribute(attr, kind.value), attr_type=_KINDS[kind.value]
            )

    def attribute(self, attr: int, kind: int) -> Any:
        if kind == _TENSOR:
            value = self.api.pointer("AttrTensor", attr)
            assert value is not None
            try:
                return self.tensor(value, "")
            finally:
                self.api.release("ReleaseValue", value)
        data = self.bytes(attr, kind)
        match kind:
            case _t if kind in (_INT, _INTS):
                numbers = np.frombuffer(data, np.int64).tolist()
                return numbers[0] if kind == _INT else numbers
            case _t if kind in (_FLOAT, _FLOATS):
                numbers = np.frombuffer(data, np.float32).tolist()
                return numbers[0] if kind == _FLOAT else numbers
            case _t if kind == _STRING:
                return data.rstrip(b"\0")
            case _t if kind == _STRINGS:
                return data.removesuffix(b"\0").split(b"\0") if data else []
            case _:
                raise TypeError(f"an attribute of kind {kind}")

    def bytes(self, attr: int, kind: int) -> bytes:
        if kind in (_INT, _FLOAT):
            data = (c.c_char * (8 if kind == _INT else 4))()
        else:
            size = c.c_size_t()
            with suppress(RuntimeError):  # it reports the required size
                self.api.ReadAttr(attr, c.c_int(kind), None, c.c_size_t(0), c.byref(size))
            data = (c.c_char * max(size.value, 1))()
            if not size.value:
                return b""
        out = c.c_size_t()
        self.api.ReadAttr(attr, c.c_int(kind), data, c.c_size_t(len(data)), c.byref(out))
        return data.raw[: out.value if kind in (_STRING, _STRINGS) else len(data)]

    def value(self, value: int | None, *, weight: bool = False) -> str:
        """The name of a value; its type is recorded, and its data if it is constant."""
        if value is None:
            return ""
        name = self.api.text("ValueName", value)
        if not name:
            return ""
        if self.nested and self._is("IsOuter", value):
            self.outer.add(name)
        if name not in self.found.types and (made := self.type(name, value)) is not None:
            self.found.types[name] = made
        if weight and name not in self.found.weights:
            data = self.api.pointer("InitializerValue", value) if self._is("IsConstant", value) else None
            if data is not None:
                self.found.weights[name] = self.tensor(data, name)
        return name

    def _is(self, question: str, value: int) -> bool:
        answer = c.c_bool()
        getattr(self.api, question)(value, c.byref(answer))
        return answer.value

    def type(self, name: str, value: int) -> ValueInfoProto | None:
        type_ = self.api.pointer("ValueType", value)
        info = self.api.pointer("TensorInfo", type_) if type_ else None
        if not info:
            return None
        rank = self.api.number("Rank", info)
        kind, dims, symbols = c.c_int(), (c.c_int64 * rank)(), (c.c_char_p * rank)()
        self.api.ElementType(info, c.byref(kind))
        self.api.Dims(info, dims, c.c_size_t(rank))
        self.api.Symbols(info, symbols, c.c_size_t(rank))
        if self.nested and not rank and not self.api.has_shape(info):
            return helper.make_tensor_value_info(name, kind.value, None)
        shape = [d if d >= 0 else (s or b"").decode() or None for d, s in zip(dims, symbols, strict=True)]
        return helper.make_tensor_value_info(name, kind.value, shape)

    def tensor(self, value: int, name: str) -> TensorProto:
        info = self.api.pointer("TypeAndShape", value)
        assert info is not None
        try:
            rank, kind = self.api.number("Rank", info), c.c_int()
            dims = (c.c_int64 * rank)()
            self.api.ElementType(info, c.byref(kind))
            self.api.Dims(info, dims, c.c_size_t(rank))
        finally:
            self.api.release("ReleaseInfo", info)
        if kind.value == TensorProto.STRING:
            raise TypeError("a tensor of strings")
        data, size = self.api.pointer("TensorData", value), self.api.number("SizeInBytes", value)
        raw = c.string_at(data, size) if data and size else b""
        return TensorProto(name=name, data_type=kind.value, dims=list(dims), raw_data=raw)


_KINDS = {
    _INT: AttributeProto.INT, _INTS: AttributeProto.INTS, _FLOAT: AttributeProto.FLOAT, _FLOATS: AttributeProto.FLOATS,
    _STRING: AttributeProto.STRING, _STRINGS: AttributeProto.STRINGS, _TENSOR: AttributeProto.TENSOR,
}  # fmt: skip
