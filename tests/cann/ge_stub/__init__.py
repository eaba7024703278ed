"""Headers that stand in for those of CANN's graph API: what REG_OP makes of the prototypes, and the classes below it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from occ.compiler.codegen_cann.graph.prototypes import Formal, Prototype, prototypes

FOLDER = Path(__file__).parent
_TYPES = {
    "Int": "int64_t", "Float": "float", "String": "const std::string &", "Bool": "bool", "Type": "ge::DataType",
    "Tensor": "const ge::Tensor &", "ListInt": "const std::vector<int64_t> &", "ListFloat": "const std::vector<float> &",
    "ListBool": "const std::vector<bool> &", "ListString": "const std::vector<std::string> &",
    "ListListInt": "const std::vector<std::vector<int64_t>> &",
}  # fmt: skip


def all_ops(names: Iterable[str]) -> str:
    """The header of operator classes, with the members that REG_OP declares for each."""
    classes = "\n".join(_class(prototypes()[n]) for n in sorted(names))
    return f'#pragma once\n#include "graph/graph.h"\n\nnamespace ge::op {{\n{classes}\n}}\n'


def _class(p: Prototype) -> str:
    lines = [
        f"class {p.name} : public Operator {{",
        " public:",
        f'  explicit {p.name}(const char *name) : Operator(name, "{p.name}") {{}}',
    ]
    for f in p.inputs:
        lines += _input(p.name, f)
    for f in p.outputs:
        lines += _output(p.name, f)
    for a in p.attrs.values():
        lines.append(f'  {p.name} &set_attr_{a.name}({_TYPES[a.type]} v) {{ Set("{a.name}", v); return *this; }}')
    lines += [
        f"  {p.name} &set_subgraph_builder_{g}(const SubgraphBuilder &v) {{ record->graphs.push_back(v); return *this; }}"
        for g in p.graphs
    ]
    return "\n".join([*lines, "};"])  # fmt: skip


def _input(kind: str, f: Formal) -> list[str]:
    if f.kind != "dynamic":
        return [
            f'  {kind} &set_input_{f.name}(Operator &v, const char *from) {{ Read("{f.name}", v, from); return *this; }}',
            f"  {kind} &update_input_desc_{f.name}(const TensorDesc &) {{ return *this; }}",
        ]
    return [
        f"  {kind} &create_dynamic_input_{f.name}(uint32_t) {{ return *this; }}",
        f"  {kind} &set_dynamic_input_{f.name}(uint32_t k, Operator &v, const char *from) {{"
        f' Read("{f.name}" + std::to_string(k), v, from); return *this; }}',
    ]


def _output(kind: str, f: Formal) -> list[str]:
    if f.kind != "dynamic":
        return [f"  {kind} &update_output_desc_{f.name}(const TensorDesc &) {{ return *this; }}"]
    return [
        f"  {kind} &create_dynamic_output_{f.name}(uint32_t) {{ return *this; }}",
        f"  {kind} &update_dynamic_output_desc_{f.name}(uint32_t, const TensorDesc &) {{ return *this; }}",
    ]


def run(source: Path, operators: Iterable[str]) -> list[str]:
    """Compile emitted C++ against the headers, run it, and give the lines that it wrote of what it built."""
    folder, program = source.parent, source.with_suffix("")
    (folder / "all_ops.h").write_text(all_ops(operators))
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", f"-I{folder}", f"-I{FOLDER}"]
    made = subprocess.run(["g++", *flags, str(source), "-o", str(program)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:2000]
    subprocess.run([str(program), str(folder)], check=True)
    return source.with_suffix(".air").read_text().splitlines()
