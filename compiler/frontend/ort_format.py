"""Reads onnxruntime's own model format (`.ort`, a FlatBuffer).

Models are read into an ONNX message, whose large weights stay views of the mapped file. Every offset is checked, and
the expanded size is limited, since one table or text may be referenced many times. Sources:
onnxruntime/core/flatbuffers/schema/ort.fbs, https://flatbuffers.dev/internals.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from occ.compiler.frontend.external import MappedModel
from occ.runtime.dataclass import dataclass

_IDENTIFIER = b"ORTM"
_NEWEST = 6  # version of the format
_SMALLEST = 1024  # bytes of a weight; smaller ones are copied
_DEEPEST = 64  # graphs in graphs, types in types
_FIELDS = {
    kind: fields.split()
    for kind, fields in {
        "InferenceSession": "ort_version model",
        "Model": "ir_version opset_import producer_name producer_version domain model_version doc_string graph "
        "graph_doc_string metadata_props",
        "OperatorSetId": "domain version",
        "StringStringEntry": "key value",
        "Graph": "initializers node_args nodes max_node_index node_edges inputs outputs sparse_initializers",
        "Node": "name doc_string domain since_version index op_type type execution_provider_type inputs outputs "
        "attributes",
        "Attribute": "name doc_string type f i s t g floats ints strings tensors graphs",
        "Tensor": "name doc_string dims data_type raw_data string_data external_data_offset",
        "SparseTensor": "values indices dims",
        "ValueInfo": "name doc_string type",
        "TypeInfo": "denotation value_type value",
        "TensorTypeAndShape": "elem_type shape",
        "SequenceType": "elem_type",
        "MapType": "key_type value_type",
        "Shape": "dim",
        "Dimension": "value denotation",
        "DimensionValue": "dim_type dim_value dim_param",
    }.items()
}


class OrtFormatError(ValueError):
    """The bytes are not a file of the format, or not a complete model."""


def is_ort(data: bytes | np.ndarray) -> bool:
    """Whether a file is in onnxruntime's own format."""
    return bytes(data[4:8]) == _IDENTIFIER


def read_ort(data: bytes | np.ndarray, *, views: bool = False) -> tuple[ModelProto, MappedModel]:
    """The model of an `.ort` file.

    Args:
        data: the bytes of the file, u8[n].
        views: whether to leave the bytes of large weights in place, and record them.

    Returns:
        The message, and `raw`: the views, by the index of their initializer.

    Raises:
        OrtFormatError: the file is damaged, or its weights are in another file.
    """
    array = np.frombuffer(data, np.uint8)
    source = _Source(array.data, 16 * len(array) + (64 << 20), len(array) // 4)
    session = _Table(source, source.offset(0), "InferenceSession")
    version = session.text("ort_version")
    if not version.isdecimal() or int(version) > _NEWEST:
        raise OrtFormatError(
            f"it has version {version[:40]!r} of the format, and {_NEWEST} is the newest that is known"
        )
    model = session.table("model", "Model")
    if model is None or (graph := model.table("graph", "Graph")) is None:
        raise OrtFormatError("it has no graph")
    made, mapped = ModelProto(ir_version=model.number("ir_version", "q")), MappedModel(b"")
    for name in ("producer_name", "producer_version", "domain", "doc_string"):
        setattr(made, name, model.text(name))
    for entry in model.tables("opset_import", "OperatorSetId"):
        made.opset_import.add(domain=entry.text("domain"), version=entry.number("version", "q"))
    for entry in model.tables("metadata_props", "StringStringEntry"):
        made.metadata_props.add(key=entry.text("key"), value=entry.text("value"))
    _graph(graph, made.graph, 0, mapped.raw if views else None)
    made.graph.name = "main"
    return made, mapped


@dataclass
class _Source:
    """The bytes of a file, and the remaining read budget.

    Attributes:
        data: the bytes.
        copied: bytes that texts and small weights may still take.
        tables: how many tables may still be opened; in an intact file each has some bytes of its own.
    """

    data: memoryview
    copied: int
    tables: int

    def number(self, at: int, code: str) -> int | float:
        if not 0 <= at <= len(self.data) - struct.calcsize("<" + code):
            raise OrtFormatError("an offset is outside of the file")
        return struct.unpack_from("<" + code, self.data, at)[0]

    def offset(self, at: int) -> int:
        """The target of the offset at a position."""
        return at + int(self.number(at, "I"))

    def vector(self, at: int, size: int) -> tuple[int, int]:
        """The start of a vector of `size`-byte elements, and its length."""
        n, first = int(self.number(at, "I")), at + 4
        if n * size > len(self.data) - first:
            raise OrtFormatError("a vector reaches past the end of the file")
        return first, n

    def taken(self, at: int, n: int) -> bytes:
        """A copy of some bytes."""
        self.copied -= n
        if self.copied < 0:
            raise OrtFormatError("its parts are many times larger than the file")
        return bytes(self.data[at : at + n])

    def text(self, at: int) -> str:
        try:
            return self.taken(*self.vector(at, 1)).decode("utf-8")
        except UnicodeDecodeError:
            raise OrtFormatError("a text is not UTF-8") from None


class _Table:
    """A table: fields by name, with defaults for fields that the file omits."""

    def __init__(self, source: _Source, at: int, kind: str) -> None:
        source.tables -= 1
        if source.tables < 0:
            raise OrtFormatError("its parts are many times larger than the file")
        self._source, self._at, self._kind = source, at, kind
        self._slots = at - int(source.number(at, "i"))
        self._end = int(source.number(self._slots, "H"))

    def _place(self, field: str) -> int | None:
        slot = 4 + 2 * _FIELDS[self._kind].index(field)
        if slot + 2 > self._end:
            return None
        distance = int(self._source.number(self._slots + slot, "H"))
        return self._at + distance if distance else None

    def number(self, field: str, code: str, default: int = 0) -> int:
        at = self._place(field)
        return default if at is None else int(self._source.number(at, code))

    def single(self, field: str) -> float:
        at = self._place(field)
        return 0.0 if at is None else self._source.number(at, "f")

    def _target(self, field: str) -> int | None:
        at = self._place(field)
        return None if at is None else self._source.offset(at)

    def text(self, field: str) -> str:
        at = self._target(field)
        return "" if at is None else self._source.text(at)

    def table(self, field: str, kind: str) -> _Table | None:
        at = self._target(field)
        return None if at is None else _Table(self._source, at, kind)

    def _offsets(self, field: str) -> Iterator[int]:
        if (at := self._target(field)) is not None:
            first, n = self._source.vector(at, 4)
            yield from (self._source.offset(first + 4 * k) for k in range(n))

    def tables(self, field: str, kind: str) -> Iterator[_Table]:
        return (_Table(self._source, at, kind) for at in self._offsets(field))

    def texts(self, field: str) -> list[str]:
        return [self._source.text(at) for at in self._offsets(field)]

    def numbers(self, field: str, code: str) -> list[int]:
        if (at := self._target(field)) is None:
            return []
        first, n = self._source.vector(at, struct.calcsize("<" + code))
        return np.frombuffer(self._source.taken(first, n * struct.calcsize("<" + code)), "<" + code).tolist()

    def raw(self, field: str) -> tuple[int, int] | None:
        """The start of a vector's bytes, and their number."""
        at = self._target(field)
        return None if at is None else self._source.vector(at, 1)

    def view(self, at: int, n: int) -> np.ndarray:
        return np.frombuffer(self._source.data[at : at + n], np.uint8)

    def copy(self, at: int, n: int) -> bytes:
        return self._source.taken(at, n)


def _graph(g: _Table, made: GraphProto, depth: int, views: dict[int, np.ndarray] | None) -> None:
    """A graph, with its weights as `views` if those are requested."""
    if depth > _DEEPEST:
        raise OrtFormatError("its graphs are nested too deeply")
    for k, tensor in enumerate(g.tables("initializers", "Tensor")):
        _tensor(tensor, made.initializer.add(), views, k)
    for sparse in g.tables("sparse_initializers", "SparseTensor"):
        _sparse(sparse, made.sparse_initializer.add())
    infos = {info.text("name"): info for info in g.tables("node_args", "ValueInfo")}
    for field, into in (("inputs", made.input), ("outputs", made.output)):
        for name in g.texts(field):
            _value(name, infos.get(name), into.add())
    for node in g.tables("nodes", "Node"):
        _node(node, made.node.add(), depth)


def _node(n: _Table, made: NodeProto, depth: int) -> None:
    made.name, made.domain, made.op_type = (n.text(field) for field in ("name", "domain", "op_type"))
    if n.number("type", "i"):
        raise OrtFormatError(f"the node {made.name[:80]!r} is code of an execution provider")
    made.input.extend(n.texts("inputs"))
    made.output.extend(n.texts("outputs"))
    for attribute in n.tables("attributes", "Attribute"):
        _attribute(attribute, made.attribute.add(), depth)


def _attribute(a: _Table, made: AttributeProto, depth: int) -> None:
    made.name = a.text("name")
    kind = a.number("type", "i")
    if kind not in AttributeProto.AttributeType.values():
        raise OrtFormatError(f"the attribute {made.name[:80]!r} has a type of number {kind}")
    made.type = kind  # pyright: ignore[reportAttributeAccessIssue] - an enumeration at run time
    match AttributeProto.AttributeType.Name(kind):
        case "FLOAT":
            made.f = a.single("f")
        case "INT":
            made.i = a.number("i", "q")
        case "STRING":
            made.s = a.text("s").encode()
        case "TENSOR" if (t := a.table("t", "Tensor")) is not None:
            _tensor(t, made.t)
        case "GRAPH" if (g := a.table("g", "Graph")) is not None:
            _graph(g, made.g, depth + 1, None)
        case "FLOATS":
            made.floats.extend(a.numbers("floats", "f"))
        case "INTS":
            made.ints.extend(a.numbers("ints", "q"))
        case "STRINGS":
            made.strings.extend(s.encode() for s in a.texts("strings"))
        case "TENSORS":
            for t in a.tables("tensors", "Tensor"):
                _tensor(t, made.tensors.add())
        case "GRAPHS":
            for g in a.tables("graphs", "Graph"):
                _graph(g, made.graphs.add(), depth + 1, None)
        case _:
            raise OrtFormatError(f"the attribute {made.name[:80]!r} has no value")


def _tensor(t: _Table, made: TensorProto, views: dict[int, np.ndarray] | None = None, k: int = 0) -> None:
    made.name, made.data_type = t.text("name"), t.number("data_type", "i")
    made.dims.extend(t.numbers("dims", "q"))
    if t.number("external_data_offset", "q", -1) >= 0:
        raise OrtFormatError(f"the weight {made.name[:80]!r} is in another file")
    if made.data_type == TensorProto.STRING:
        made.string_data.extend(s.encode() for s in t.texts("string_data"))
    elif (found := t.raw("raw_data")) is not None and views is not None and found[1] >= _SMALLEST:
        views[k] = t.view(*found)
    else:
        made.raw_data = b"" if found is None else t.copy(*found)


def _sparse(s: _Table, made: SparseTensorProto) -> None:
    made.dims.extend(s.numbers("dims", "q"))
    for field, into in (("values", made.values), ("indices", made.indices)):
        if (t := s.table(field, "Tensor")) is not None:
            _tensor(t, into)


def _value(name: str, info: _Table | None, made: ValueInfoProto) -> None:
    made.name = name
    if info is not None and (t := info.table("type", "TypeInfo")) is not None:
        _type(t, made.type, 0)


def _type(t: _Table, made: TypeProto, depth: int) -> None:
    if depth > _DEEPEST:
        raise OrtFormatError("its types are nested too deeply")
    made.denotation = t.text("denotation")
    match t.number("value_type", "B"):
        case 1 if (of := t.table("value", "TensorTypeAndShape")) is not None:
            made.tensor_type.elem_type = of.number("elem_type", "i")
            if (shape := of.table("shape", "Shape")) is not None:
                _shape(shape, made)
        case 2 if (of := t.table("value", "SequenceType")) is not None:
            if (inner := of.table("elem_type", "TypeInfo")) is not None:
                _type(inner, made.sequence_type.elem_type, depth + 1)
        case 3 if (of := t.table("value", "MapType")) is not None:
            made.map_type.key_type = of.number("key_type", "i")
            if (inner := of.table("value_type", "TypeInfo")) is not None:
                _type(inner, made.map_type.value_type, depth + 1)
        case _:
            pass  # onnxruntime does not know the type


def _shape(s: _Table, made: TypeProto) -> None:
    made.tensor_type.shape.SetInParent()
    for d in s.tables("dim", "Dimension"):
        dim = made.tensor_type.shape.dim.add()
        value = d.table("value", "DimensionValue")
        match 0 if value is None else value.number("dim_type", "b"):
            case 1 if value is not None:
                dim.dim_value = value.number("dim_value", "q")
            case 2 if value is not None:
                dim.dim_param = value.text("dim_param")
            case _:
                pass
