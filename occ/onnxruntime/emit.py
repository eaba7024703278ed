"""Writes ONNX models whose nodes are artifacts: `occ build --emit ort`. This needs no session of onnxruntime."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.external_data_helper import uses_external_data

from occ.analysis.onnx_graph import loaded, reads, value_types, with_data
from occ.compiler.diagnostics import error
from occ.compiler.targets.default import DEFAULT
from occ.compiler.targets.registry import on_device
from occ.onnxruntime.ascend import NAME as ASCEND
from occ.onnxruntime.ascend import check_left
from occ.onnxruntime.claims import Claims
from occ.onnxruntime.device_groups import DeviceGroups, reason_text
from occ.onnxruntime.library import get_library_path
from occ.onnxruntime.ortgraph import GraphFacts
from occ.runtime.dataclass import dataclass
from occ.runtime.mapped_arrays import copy_in_huge_pages
from occ.runtime.version import occ_version

SOURCE = "OccExecutionProvider"
_IR, _OPSET = 10, 21  # IR version for onnxruntime 1.23, for models consisting of EPContext nodes
_LARGEST = 1 << 30  # maximum bytes of artifacts inside of a model


@dataclass(frozen=True)
class Emitted:
    """The files that were written.

    Attributes:
        out: the model.
        groups: nodes of the model that each EPContext node replaces.
        left: number of unchanged nodes.
        files: artifacts next to the model, if they are not inside.
        reasons: why nodes were left out, one text each; for Ascend targets.
    """

    out: Path
    groups: tuple[int, ...]
    left: int
    files: tuple[Path, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Made:
    """A group of nodes as code: an artifact, or a compiled model of a device.

    Attributes:
        nodes: positions of its nodes.
        path: the file.
        reads, gives: names of its inputs and outputs.
        source: the provider that runs it.
        texts: further attributes of its node.
    """

    nodes: list[int]
    path: Path
    reads: list[str]
    gives: list[str]
    source: str
    texts: Mapping[str, str]


def emit(
    model: str | os.PathLike[str] | bytes | ModelProto,
    out: str | os.PathLike[str],
    target: str = DEFAULT,
    *,
    embed: bool = True,
    least: int = 0,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Emitted:
    """Write a model with an EPContext node for each group of nodes for which occ has native code.

    Args:
        model: an ONNX model.
        out: the ONNX file to write.
        target: `cpu`, `cpu-jit`, or an Ascend chip, whose parts the toolkit compiles.
        embed: whether to put the artifacts into the model; otherwise, and over a gigabyte, they are next to it as
            `NAME.K.occ`, or for a device `NAME.K.om`.
        least: the minimum cost of a group (`policy.cost`); all are used by default.
        dims: values of symbolic dims to fix.
        shapes: extents of inputs to fix.
        options: of the target.

    Raises:
        CompileError: OCC0101, OCC0102 the model cannot be read; OCC0301 occ has code for no group of it; OCC0404 there
            is no `atc`.
    """
    whole, folder = loaded(model)
    source = Path(model) if isinstance(model, (str, os.PathLike)) and not (dims or shapes) else None
    fixed = ModelProto()
    fixed.CopyFrom(whole)
    with_data(fixed, folder)
    _fix(fixed, dims or {}, shapes or {})
    facts = facts_of(fixed)
    if on_device(target):
        return _emit_for_device(fixed, facts, Path(out), target, dict(options or {}), embed=embed)
    library = c.CDLL(str(get_library_path()))
    library.occ_ep_refusal.restype = c.c_char_p
    claims = Claims(library, target, dict(options or {}), least)
    groups = list(claims.groups(facts))
    if not groups:
        reason = next(iter(claims.refused.values()), "occ compiles none of its operators")
        raise error("OCC0301", "nothing of the model becomes native code", notes=reason.splitlines()[:4])
    notes = _notes(whole, source, Path(out), groups)
    made = [_made(nodes, path, {"notes": notes} if notes else {}) for nodes, path in groups]
    return _write(fixed, facts, made, Path(out), embed=embed)


def _emit_for_device(
    model: ModelProto, facts: GraphFacts, out: Path, target: str, options: Mapping[str, Any], *, embed: bool
) -> Emitted:
    """Writes the model for an Ascend device: groups are `.om` models, the rest is left with reasons."""
    divided = DeviceGroups(facts, target, options)
    groups = list(divided.groups())
    whole = str(options.get("enable_cann_subgraph", "")).lower() in ("false", "0", "off")
    if divided.left:
        check_left(facts, groups, divided.left, target, whole=whole)
    made = [
        _Made(g.nodes, g.om, g.inputs, g.outputs, ASCEND, {"notes": g.record, "hardware_architecture": g.soc})
        for g in groups
    ]
    reasons = tuple(reason_text(facts.nodes[k], divided.left[k]) for k in sorted(divided.left))
    return replace(_write(model, facts, made, out, embed=embed), reasons=reasons)


def _made(nodes: list[int], path: Path, texts: Mapping[str, str]) -> _Made:
    from occ.runtime.artifact import Artifact

    m = Artifact.load(path).manifest
    return _Made(nodes, path, [t.name for t in m.inputs], [t.name for t in m.outputs], SOURCE, texts)


def _notes(model: ModelProto, source: Path | None, out: Path, groups: list[tuple[list[int], Path]]) -> str:
    """Where the plugin finds the model for runs that the artifact rejects: SHA-256 and relative path.

    Empty if the artifact accepts all sizes, is not the whole model, or the model is not one file in that folder.
    """
    if source is None or len(groups) != 1 or len(groups[0][0]) != len(model.graph.node):
        return ""
    if not groups[0][1].with_suffix(".onnx").is_file() or any(uses_external_data(t) for t in model.graph.initializer):
        return ""
    here, folder = source.resolve(), out.resolve().parent
    return (
        f"{sha256(source.read_bytes()).hexdigest()} {here.relative_to(folder)}" if here.is_relative_to(folder) else ""
    )


def facts_of(model: ModelProto) -> GraphFacts:
    """A graph in the policy's form, from an ONNX model."""
    graph = model.graph
    nested = {
        k: list(reads(n)) for k, n in enumerate(graph.node) if any(a.HasField("g") or a.graphs for a in n.attribute)
    }
    types = {n: v for n, v in value_types(model).items() if v.type.tensor_type.HasField("shape")}
    return GraphFacts(
        nodes=list(graph.node), opaque=set(nested), nested=set(nested), implicit=nested, types=types,
        weights={t.name: t for t in graph.initializer}, inputs=[v.name for v in graph.input],
        outputs=[v.name for v in graph.output],
        opsets={o.domain: o.version for o in model.opset_import}, scalars_known=True,
    )  # fmt: skip


def _fix(model: ModelProto, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Fix extents of the inputs, and drop what was inferred from others."""
    for value in model.graph.input:
        tensor = value.type.tensor_type
        for k, extent in enumerate(shapes.get(value.name, ())):
            if isinstance(extent, int) and extent != -1:  # which leaves it unchanged
                tensor.shape.dim[k].dim_value = extent
        for d in tensor.shape.dim:
            if d.dim_param in dims:
                d.dim_value = dims[d.dim_param]
    if dims or shapes:
        del model.graph.value_info[:]


def _write(model: ModelProto, facts: GraphFacts, groups: list[_Made], out: Path, *, embed: bool) -> Emitted:
    inside = {k for group in groups for k in group.nodes}
    total = sum(group.path.stat().st_size for group in groups)
    embed = embed and total < _LARGEST
    nodes = [n for k, n in enumerate(facts.nodes) if k not in inside]
    files: list[Path] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    for k, group in enumerate(groups):
        if not embed:
            files.append(out.with_name(f"{out.stem}.{k}{group.path.suffix}"))
            copy_in_huge_pages(group.path, files[-1])
        data = group.path.read_bytes() if embed else files[-1].name.encode()
        nodes.append(_context(data, f"occ_{k}", group, embed=embed))
    wanted = {n for node in nodes for n in reads(node)}
    given = {v.name for v in model.graph.output}
    graph = helper.make_graph(
        _sorted(nodes), model.graph.name, list(model.graph.input), list(model.graph.output),
        [t for t in model.graph.initializer if t.name in wanted],
        value_info=[facts.types[n] for n in dict.fromkeys(n for node in nodes for n in node.output) if n in facts.types and n not in given],
    )  # fmt: skip
    alone = len(nodes) == len(groups)
    sets = {"": _OPSET} if alone else dict(facts.opsets)
    imports = [helper.make_opsetid(d, v) for d, v in (sets | {"com.microsoft": 1}).items()]
    made = helper.make_model(
        graph, opset_imports=imports, ir_version=_IR if alone else model.ir_version, functions=list(model.functions)
    )
    made.producer_name, made.producer_version = "occ", occ_version()
    onnx.save(made, str(out))
    return Emitted(out, tuple(len(g.nodes) for g in groups), len(facts.nodes) - len(inside), tuple(files))


def _context(data: bytes, name: str, made: _Made, *, embed: bool) -> NodeProto:
    """The node that replaces a group (onnxruntime's EPContext design)."""
    return helper.make_node(
        "EPContext", made.reads, made.gives, name, domain="com.microsoft", main_context=1, embed_mode=int(embed),
        ep_cache_context=data, source=made.source, partition_name=name, ep_sdk_version=occ_version(), **made.texts,
    )  # fmt: skip


def _sorted(nodes: list[NodeProto]) -> list[NodeProto]:
    """Nodes sorted so that each follows its producers; otherwise in the given order."""
    made = {n for node in nodes for n in node.output}
    known: set[str] = set()
    waiting, done = list(nodes), list[NodeProto]()
    while waiting:
        ready = [n for n in waiting if all(r in known or r not in made for r in reads(n))]
        assert ready, "groups are convex"
        done += ready
        known |= {o for n in ready for o in n.output}
        waiting = [n for n in waiting if n not in ready] if len(ready) < len(waiting) else []
    return done
