"""Modules as DOT (Graphviz) and Mermaid graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight

_LONGEST = 40  # characters of a line of a label


def drawing(m: Module, form: str) -> str:
    """The main function of a module as a graph; `form` is `dot` or `mermaid`. Weights are omitted, edges show types."""
    return _dot(m) if form == "dot" else _mermaid(m)


def label(op: Op) -> str:
    """The label of an op: its operator, or the operators of its region."""
    if op.name == "fuse":
        return " + ".join(dict.fromkeys(o.name for r in op.regions for o in r if not o.is_terminator))
    te = op.attrs.get("te")
    return te.rpartition("_")[0] if isinstance(te, str) and "_" in te else op.name


def edges(m: Module) -> Iterator[tuple[str, str, Value]]:
    """Keys of the two ends, and the value: `i0` for inputs, `n0` for ops, `o0` for outputs."""
    keys = {v: f"i{k}" for k, v in enumerate(m.main.args)}
    ops = m.main.body.body
    keys |= {r: f"n{k}" for k, op in enumerate(ops) for r in op.results}
    for k, op in enumerate(ops):
        inner = [v for o in _inside(op) for v in o.inputs]
        for v in dict.fromkeys([*op.inputs, *inner]):
            if v in keys and keys[v] != f"n{k}" and not isinstance(v, Weight):
                yield keys[v], f"n{k}", v
    for k, v in enumerate(m.main.results):
        if v in keys:
            yield keys[v], f"o{k}", v


def nodes(m: Module) -> Iterator[tuple[str, str, str]]:
    """Key, kind (`input`, `op`, `output`) and label."""
    for k, v in enumerate(m.main.args):
        yield f"i{k}", "input", v.name
    for k, op in enumerate(m.main.body.body):
        yield f"n{k}", "op", label(op)
    for k, name in enumerate(m.main.result_names or [v.name for v in m.main.results]):
        yield f"o{k}", "output", name


def _inside(op: Op) -> Iterator[Op]:
    for region in op.regions:
        for inner in region:
            yield inner
            yield from _inside(inner)


def _dot(m: Module) -> str:
    shapes = {"input": "ellipse", "op": "box", "output": "ellipse"}
    lines = [f"digraph {_quoted(m.name)} {{", '  node [fontname="sans-serif", style=rounded]']
    lines += [f"  {key} [label={_quoted(text)}, shape={shapes[kind]}]" for key, kind, text in nodes(m)]
    lines += [f"  {a} -> {b} [label={_quoted(_type(v))}]" for a, b, v in edges(m)]
    return "\n".join([*lines, "}", ""])


def _mermaid(m: Module) -> str:
    marks = {"input": ("([", "])"), "op": ("[", "]"), "output": ("([", "])")}
    lines = ["flowchart TD"]
    lines += [f"  {key}{marks[kind][0]}{_entity(text)}{marks[kind][1]}" for key, kind, text in nodes(m)]
    lines += [f"  {a} -->|{_entity(_type(v))}| {b}" for a, b, v in edges(m)]
    return "\n".join([*lines, ""])


def _type(v: Value) -> str:
    return "" if v.type is None else str(v.type)


def _quoted(text: str) -> str:
    return json.dumps(shorten(text, 2 * _LONGEST), ensure_ascii=False)


def _entity(text: str) -> str:
    """A Mermaid string: characters that could end it, or act as markup, become character entities."""
    safe = "".join(c if c.isalnum() or c in " _.,:+*/-" else f"#{ord(c)};" for c in shorten(text, 2 * _LONGEST))
    return f'"{safe or " "}"'
