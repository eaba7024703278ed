"""GE graphs as an `.air` file: one ge.proto.ModelDef, and files for weights that do not fit into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import (
    FORMATS,
    attribute_number,
    constant_type,
    descriptor_number,
    serial_name,
    stored,
    stored_size,
)
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.graph.prototypes import prototypes
from occ.compiler.codegen_cann.output.proto import Message, encode

# A protobuf message is limited to 2 GiB; the rest of the graph needs space too.
INLINE_LIMIT = 2**31 - 200 * 2**20
_LARGE = 2**20  # bytes from which a constant moves to a file of its own once the limit is exceeded
_LISTS = {
    "ListString": ("s", 1),
    "ListInt": ("i", 2),
    "ListFloat": ("f", 3),
    "ListBool": ("b", 4),
    "ListType": ("dt", 10),
}
# Attributes that GE itself puts on any node, in addition to the prototype's.
_EXTRA = {"_keep_dtype": "Int", "_parent_node_index": "Int", "index": "Int", "auto_pad": "String", "onnx": "String"}


def air(graph: Graph, inline_limit: int = INLINE_LIMIT) -> tuple[bytes, dict[str, bytes]]:
    """The bytes of a graph with its sub-graphs.

    Args:
        graph: the root graph.
        inline_limit: bytes of constants that the message may hold.

    Returns:
        The `.air` file, and further files by name, for the same folder: large constants, if the limit is exceeded.
    """
    outside = _outside(graph, inline_limit)
    message = {
        "name": graph.name,
        "version": 1,
        "custom_version": "",
        "graph": [_graph(g, outside) for g in graph.all()],
    }
    return encode("ModelDef", message), {f: stored(n.value) for n, f in outside.items()}


def _outside(graph: Graph, limit: int) -> dict[Node, str]:
    """Constants for separate files: large ones, then others until the rest fits."""
    constants = [n for g in graph.all() for n in g.nodes if n.type == "Const"]
    total = sum(stored_size(n.value) for n in constants)
    moved: dict[Node, str] = {}
    for node in sorted(constants, key=lambda n: -stored_size(n.value)) if total > limit else ():
        if total <= limit and stored_size(node.value) < _LARGE:
            break
        moved[node] = f"{graph.name}.weight{len(moved)}.bin"
        total -= stored_size(node.value)
    return moved


def _graph(graph: Graph, outside: dict[Node, str]) -> Message:
    ops = [_op(n, k, outside.get(n)) for k, n in enumerate(graph.nodes)]
    ops.append(_net_output(graph, len(ops)))
    return {
        "name": graph.name,
        "op": ops,
        "input": [f"{d.name}:0" for d in graph.data],
        "output": [f"{r.node.name}:{r.index}" for r in graph.outputs],
    }


def _net_output(graph: Graph, number: int) -> Message:
    """The node that collects the results; in a sub-graph each input names the parent's output that it becomes."""
    nested = any("_parent_node_index" in d.attrs for d in graph.data) or graph.name.find("/") >= 0
    descs: list[Message] = []
    for k, r in enumerate(graph.outputs):
        desc = dict(_desc(f"input{k}", r.desc))
        if nested:
            desc["attr"] = {**desc["attr"], "_parent_node_index": {"i": k}}
        descs.append(desc)
    names = [f"input{k}" for k in range(len(descs))]
    return {
        "name": f"{graph.name}_NetOutput", "type": "NetOutput", "has_out_attr": True, "id": number,
        "input": [_edge(r) for r in graph.outputs], "input_desc": descs, "attr": _io_names("input", names),
    }  # fmt: skip


def _edge(r: Ref | None) -> str:
    return "" if r is None else f"{r.node.name}:{r.index}"


def _op(node: Node, number: int, file: str | None) -> Message:
    attrs: dict[str, Message] = {"index": {"i": node.attrs["index"]}} if node.type == "Data" else {}
    types = {n: a.type for n, a in prototypes()[node.type].attrs.items()} if node.type in prototypes() else {}
    for name, value in node.attrs.items():
        if name != "value" or file is None:
            attrs[name] = attribute(types.get(name) or _EXTRA[name], value)
    attrs |= _io_names("input", node.input_names) | _io_names("output", node.output_names)
    kind = node.type
    if file is not None:
        kind, desc = "FileConstant", node.outputs[0]
        attrs |= {
            "file_path": attribute("String", file),
            "shape": attribute("ListInt", desc.shape),
            "dtype": attribute("Type", desc.dtype),
        }
    inputs = list(zip(node.input_names, node.inputs, strict=True))
    descs = [_input_desc(node, n, r) for n, r in inputs]
    made: dict[str, Any] = {
        "name": node.name, "type": kind, "input": [_edge(r) for _, r in inputs], "attr": attrs, "has_out_attr": True,
        "id": number, "input_desc": descs, "subgraph_name": node.graphs,
        "output_desc": [_desc(n, d) for n, d in zip(node.output_names, node.outputs, strict=True)],
    }  # fmt: skip
    if any(r is not None and r.node.type == "Const" for r in node.inputs):
        made["is_input_const"] = [r is not None and r.node.type == "Const" for r in node.inputs]
    return made


def _input_desc(node: Node, name: str, r: Ref | None) -> Message:
    if node.type == "Data":
        return _desc(name, node.outputs[0])
    if r is None:  # an optional input that nothing feeds
        return {"name": name, "dtype": 0, "attr": {"_is_unfed_optional": {"i": 1}}}
    return _desc(name, Desc(r.dtype, r.shape, node.formats.get(name, r.desc.format)))


def _desc(name: str, desc: Desc) -> Message:
    number = FORMATS[desc.format]
    attrs = {
        "origin_format": attribute("String", desc.format),
        "origin_format_for_int": {"i": number},
        "format_for_int": {"i": number},
        "origin_shape_initialized": {"b": True},
        "origin_shape": attribute("ListInt", desc.shape),
        "origin_data_type": attribute("String", serial_name(desc.dtype)),
    }
    return {
        "name": name, "dtype": descriptor_number(desc.dtype), "shape": {"dim": desc.shape}, "layout": desc.format,
        "attr": attrs, "has_out_attr": True, "device_type": "NPU",
    }  # fmt: skip


def _io_names(kind: str, names: Sequence[str]) -> dict[str, Message]:
    """The attributes that map names of inputs or outputs to indices; GE leaves their `val_type` at zero."""
    if not names:
        return {}
    return {
        f"_{kind}_name_key": {"list": {"s": list(names)}},
        f"_{kind}_name_value": {"list": {"i": list(range(len(names)))}},
    }


def attribute(kind: str, value: Any) -> Message:
    """An AttrDef of a REG_OP attribute type; element types are given by GE's name."""
    match kind:
        case "Int":
            return {"i": attribute_number(value) if isinstance(value, str) else int(value)}
        case "Float":
            return {"f": float(value)}
        case "Bool":
            return {"b": bool(value)}
        case "String":
            return {"s": str(value)}
        case "Type":
            return {"dt": attribute_number(value)}
        case "Tensor":
            return {"t": _tensor(value)}
        case "ListListInt":
            return {"list_list_int": {"list_list_i": [{"list_i": list(v)} for v in value]}}
        case _:
            field, number = _LISTS[kind]
            items = [attribute_number(v) for v in value] if kind == "ListType" else list(value)
            return {"list": {field: items, "val_type": number}}


def _tensor(value: np.ndarray) -> Message:
    return {"desc": _desc("", Desc(constant_type(value), value.shape)), "data": stored(value)}
