"""The graph of a report: nodes, edges, and nested nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from occ.analysis.drawing import edges, label
from occ.compiler.driver.compilation import Compilation
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.te.function import TeFunc, loads
from occ.compiler.ir.te.printer import te_text


def graph_data(m: Module, compilation: Compilation) -> dict[str, Any]:
    """Nodes and edges of the main function.

    An edge has the key of the value that it carries, `n3:0` for the first result of `n3`. A node with several
    computations has `parts`: their labels, what each `reads` (keys of values, or indices of parts), and which part
    `gives` each result.
    """
    ops = m.main.body.body
    keys = {v: f"i{k}:0" for k, v in enumerate(m.main.args)}
    keys |= {r: f"n{k}:{j}" for k, op in enumerate(ops) for j, r in enumerate(op.results)}
    nodes = [_port(f"i{k}", v.name, v.type) for k, v in enumerate(m.main.args)]
    nodes += [_node(f"n{k}", op, m, compilation) | _parts(op, m, keys) for k, op in enumerate(ops)]
    names = m.main.result_names or [v.name for v in m.main.results]
    nodes += [_port(f"o{k}", n, v.type) for k, (n, v) in enumerate(zip(names, m.main.results, strict=True))]
    known = {n["id"] for n in nodes}
    triples = dict.fromkeys((a, b, keys[v]) for a, b, v in edges(m) if a in known and b in known)
    return {"nodes": nodes, "edges": [{"from": a, "to": b, "value": v} for a, b, v in triples]}


def _empty(key: str, kind: str, text: str, type_: object) -> dict[str, Any]:
    return {
        "id": key, "kind": kind, "label": text, "type": "" if type_ is None else str(type_), "kernel": "", "nodes": [],
        "te": "", "source": "", "inside": "", "ms": None, "gflops": None, "gbytes": None, "share": None, "parts": [],
        "gives": [],
    }  # fmt: skip


def _port(key: str, name: str, type_: object) -> dict[str, Any]:
    return _empty(key, "port", name, type_)


def _node(key: str, op: Op, m: Module, compilation: Compilation) -> dict[str, Any]:
    made = _empty(key, "op", label(op), op.results[0].type if op.results else None) | {"nodes": list(op.loc.nodes)}
    made["inside"] = "\n".join(op_text(inner) for region in op.regions for inner in region)
    te = op.attrs.get("te")
    if isinstance(te, str) and te in m.te:
        made |= {"kernel": te, "te": te_text(m.te[te])}
        if "halide" in compilation.target.texts:
            from occ.compiler.codegen_halide.emit import generator

            made["source"] = generator(m.te[te], op.loc.nodes)
    return made


def _parts(op: Op, m: Module, keys: dict[Value, str]) -> dict[str, Any]:
    """Ops of the region of a fused op, or stages of the te function of a call.

    Empty if there is only one.
    """
    te = m.te.get(str(op.attrs.get("te", "")))
    if te is not None:
        made = _stages(te, [keys.get(v, "") if v is not None else "" for v in op.operands])
    elif op.name == "fuse":
        made = _members(op, keys)
    else:
        return {}
    return made if len(made["parts"]) > 1 else {}


def _stages(te: TeFunc, operands: list[str]) -> dict[str, Any]:
    place: dict[str, str | int] = {p.name: key for p, key in zip(te.params, operands, strict=False)}
    parts: list[dict[str, Any]] = []
    for k, stage in enumerate(te.stages):
        read = {load.source for load in loads(*stage.exprs)}
        extents = ",".join(map(str, stage.shape))
        parts.append(
            _part(
                stage.name.rpartition("_")[0] or stage.name,
                f"{stage.dtype}[{extents}]",
                (place.get(n, "") for n in read),
            )
        )
        place[stage.name] = k
    return {"parts": parts, "gives": [place.get(r.name, 0) for r in te.results]}


def _members(op: Op, keys: dict[Value, str]) -> dict[str, Any]:
    region = op.regions[0]
    place: dict[Value, str | int] = {
        a: keys.get(v, "") for a, v in zip(region.args, op.operands, strict=False) if v is not None
    }
    parts: list[dict[str, Any]] = []
    gives: list[str | int] = []
    for inner in region:
        read = (place.get(v, keys.get(v, "")) for v in inner.inputs if not isinstance(v, Weight))
        if inner.is_terminator:
            gives = list(read)
            continue
        parts.append(_part(label(inner), str(inner.results[0].type) if inner.results else "", read))
        place |= dict.fromkeys(inner.results, len(parts) - 1)
    return {"parts": parts, "gives": gives}


def _part(text: str, type_: str, reads: Iterable[str | int]) -> dict[str, Any]:
    return {"label": text, "type": type_, "reads": sorted((r for r in reads if r != ""), key=str)}
