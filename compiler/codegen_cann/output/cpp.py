"""GE graphs as C++ source for the operator classes of the toolkit (`all_ops.h`).

Only literals and generated identifiers reach the code: names from a model are inside string literals, every character
of which is plain ASCII or an octal escape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import serial_name
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.graph.prototypes import FormalAttr, Prototype, prototypes
from occ.runtime.element_types import ELEMENT_TYPES

_INLINE = 64  # elements of a constant that is written into the code; larger ones come from a file
_HEAD = """\
// Builds the GE graph of one part and writes it as an .air file. Compile and link against the CANN toolkit:
//   g++ -std=c++17 {file} -I$ASCEND_HOME_PATH/include -L$ASCEND_HOME_PATH/lib64 -lgraph -lgraph_base -lge_compiler
// Constants of more than {inline} elements are read from the folder given as the first argument.
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "all_ops.h"
#include "graph/graph.h"
#include "graph/tensor.h"
#include "graph/types.h"

namespace {{

std::string folder = ".";

ge::TensorDesc Describe(std::vector<int64_t> shape, ge::Format format, ge::DataType type) {{
  ge::TensorDesc desc(ge::Shape(shape), format, type);
  desc.SetOriginShape(ge::Shape(shape));
  desc.SetOriginFormat(format);
  return desc;
}}

template <typename T>
ge::Tensor Values(const ge::TensorDesc &desc, std::initializer_list<T> values) {{
  std::vector<T> data(values);
  return ge::Tensor(desc, reinterpret_cast<const uint8_t *>(data.data()), data.size() * sizeof(T));
}}

ge::Tensor FromFile(const ge::TensorDesc &desc, const char *name) {{
  std::ifstream file(folder + "/" + name, std::ios::binary);
  std::vector<uint8_t> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return ge::Tensor(desc, data.data(), data.size());
}}

}}  // namespace
"""
_CTYPES = {t.ge: "uint8_t" if t.kind == "b" else t.c for t in ELEMENT_TYPES.values() if t.ge and t.kind not in "cs"}


def literal(text: str) -> str:
    """A C++ string literal of any text."""
    data = text.encode("utf-8", "surrogateescape")
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in data)
    return '"' + "".join(plain) + '"'


class _Writer:
    """Writes one file; identifiers are numbered, so that they depend on no name."""

    def __init__(self, graph: Graph) -> None:
        self.root = graph
        self.ids: dict[Node, str] = {}
        self.files: dict[str, np.ndarray] = {}
        self.functions = {g.name: f"Graph{k}" for k, g in enumerate(graph.all())}

    def text(self) -> str:
        parts = [_HEAD.format(file=f"{self.root.name}.cpp", inline=_INLINE)]
        for g in reversed(list(self.root.all())):  # sub-graphs before the nodes that name them
            parts.append(self._graph(g))
        main = [
            "int main(int argc, char **argv) {",
            "  if (argc > 1) folder = argv[1];",
            f"  ge::Graph graph = {self.functions[self.root.name]}();",
            f"  return graph.SaveToFile((folder + {literal('/' + self.root.name + '.air')}).c_str()) == "
            "ge::GRAPH_SUCCESS ? 0 : 1;",
            "}",
            "",
        ]
        return "\n".join([*parts, "\n".join(main)])

    def _graph(self, g: Graph) -> str:
        lines = [f"static ge::Graph {self.functions[g.name]}() {{", f"  ge::Graph graph({literal(g.name)});"]
        for node in g.nodes:
            lines += ["  " + line for line in self._node(node)]
        inputs = ", ".join(self.ids[d] for d in g.data)
        outputs = ", ".join(f"{{{self.ids[r.node]}, {{{r.index}}}}}" for r in g.outputs)
        lines.append(f"  std::vector<ge::Operator> inputs{{{inputs}}};")
        lines.append(f"  std::vector<std::pair<ge::Operator, std::vector<size_t>>> outputs{{{outputs}}};")
        return "\n".join([*lines, "  graph.SetInputs(inputs).SetOutputs(outputs);", "  return graph;", "}", ""])

    def _node(self, node: Node) -> list[str]:
        name = self.ids[node] = f"n{len(self.ids)}"
        proto = prototypes()[node.type]
        lines = [f"ge::op::{node.type} {name}({literal(node.name)});"]
        if node.source:
            comment = literal(node.source[0])[1:-1]
            lines.insert(0, f"// {comment.rstrip(chr(92))} .")
        lines += self._sizes(node, name, proto)
        lines += [
            f"{name}.{self._input(node, n, r, proto)};"
            for n, r in zip(node.input_names, node.inputs, strict=True)
            if r is not None
        ]
        for key, value in node.attrs.items():
            if key == "value" and node.type == "Const":
                lines.append(f"{name}.set_attr_value({self._constant(node)});")
            elif key in proto.attrs:
                lines.append(f"{name}.set_attr_{key}({_value(proto.attrs[key], value)});")
            else:
                lines.append(f"{name}.SetAttr({literal(key)}, static_cast<int64_t>({int(value)}));")
        for slot, graph in zip(proto.graphs, node.graphs, strict=True):
            lines.append(f"{name}.set_subgraph_builder_{slot}({self.functions[graph]});")
        lines += self._descs(node, name, proto)
        return lines

    def _sizes(self, node: Node, name: str, proto: Prototype) -> list[str]:
        """Dynamic inputs and outputs are made before they are used."""
        lines: list[str] = []
        for kind, formals, names in (
            ("input", proto.inputs, node.input_names),
            ("output", proto.outputs, node.output_names),
        ):
            for f in formals:
                if f.kind == "dynamic":
                    count = sum(n.startswith(f.name) and n[len(f.name) :].isdigit() for n in names)
                    lines.append(f"{name}.create_dynamic_{kind}_{f.name}({count});")
        return lines

    def _input(self, node: Node, port: str, r: Ref, proto: Prototype) -> str:
        source = f"{self.ids[r.node]}, {literal(r.node.output_names[r.index])}"
        for f in proto.inputs:
            if f.kind == "dynamic" and port.startswith(f.name) and port[len(f.name) :].isdigit():
                return f"set_dynamic_input_{f.name}({port[len(f.name) :]}, {source})"
        return f"set_input_{port}({source})"

    def _descs(self, node: Node, name: str, proto: Prototype) -> list[str]:
        lines: list[str] = []
        if node.type == "Data":
            lines.append(f"{name}.update_input_desc_x({_desc(node.outputs[0])});")
        dynamic = {f.name for f in proto.outputs if f.kind == "dynamic"}
        for port, desc in zip(node.output_names, node.outputs, strict=True):
            base = port.rstrip("0123456789")
            if base in dynamic:
                lines.append(f"{name}.update_dynamic_output_desc_{base}({port[len(base) :]}, {_desc(desc)});")
            else:
                lines.append(f"{name}.update_output_desc_{port}({_desc(desc)});")
        return lines

    def _constant(self, node: Node) -> str:
        value, desc = node.value, node.outputs[0]
        if value.size <= _INLINE and desc.dtype in _CTYPES:
            kind = _CTYPES[desc.dtype]
            flat = np.ascontiguousarray(value).reshape(-1)
            bits = flat.view(np.uint16) if desc.dtype in ("FLOAT16", "BF16") else flat
            return f"Values<{kind}>({_desc(desc)}, {{{', '.join(_number(v, kind) for v in bits.tolist())}}})"
        file = f"{self.root.name}.constant{len(self.files)}.bin"
        self.files[file] = value
        return f"FromFile({_desc(desc)}, {literal(file)})"


def _number(v: Any, kind: str) -> str:
    if kind in ("float", "double"):
        if v != v or v in (float("inf"), float("-inf")):
            return "NAN" if v != v else ("-" if v < 0 else "") + "INFINITY"
        return float(v).hex() + ("f" if kind == "float" else "")
    if kind == "int64_t" and v == -(2**63):
        return "INT64_MIN"
    return str(int(v)) + ("LL" if kind == "int64_t" else "ULL" if kind == "uint64_t" else "")


def _desc(desc: Desc) -> str:
    shape = ", ".join(map(str, desc.shape))
    return f"Describe({{{shape}}}, ge::FORMAT_{desc.format}, ge::{serial_name(desc.dtype).replace('BFLOAT16', 'BF16')})"


def _value(attr: FormalAttr, value: Any) -> str:
    match attr.type:
        case "Int" | "Type" if isinstance(value, str):
            made = f"ge::DT_{value}"
            return made if attr.type == "Type" else f"static_cast<int64_t>({made})"
        case "String":
            return literal(value)
        case "Bool":
            return "true" if value else "false"
        case "Float":
            return _number(float(value), "float")
        case kind if kind.startswith("List"):
            inner = FormalAttr(attr.name, kind.removeprefix("List"), True)
            return "{" + ", ".join(_value(inner, v) for v in value) + "}"
        case _:
            return str(int(value))


def cpp(graph: Graph) -> tuple[str, dict[str, np.ndarray]]:
    """C++ that builds a graph, and its larger constants by the name of the file from which it reads them."""
    writer = _Writer(graph)
    text = writer.text()
    if "INFINITY" in text or "NAN" in text:
        text = text.replace("#include <cstdint>", "#include <cmath>\n#include <cstdint>")
    return text, writer.files
