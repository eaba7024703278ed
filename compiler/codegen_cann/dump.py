"""Dumps for Ascend targets: GE graphs, C++ that builds them, and the commands that compile them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from occ.compiler.codegen_cann.build import parts_and_graphs
from occ.compiler.codegen_cann.device_graphs import DeviceGraph
from occ.compiler.codegen_cann.graph.formats import stored
from occ.compiler.codegen_cann.graph.gears import arguments
from occ.compiler.codegen_cann.graph.ranges import arguments as range_arguments
from occ.compiler.codegen_cann.output import atc
from occ.compiler.codegen_cann.output.cpp import cpp
from occ.compiler.codegen_cann.output.onnx_view import onnx_view
from occ.compiler.codegen_cann.output.single_op import single_ops
from occ.compiler.codegen_cann.output.text import graph_text
from occ.compiler.codegen_cann.part_records import estimate_of
from occ.compiler.codegen_cann.parts.cpu_subgraphs import cpu_module
from occ.compiler.codegen_cann.parts.partition import Part
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import op_text
from occ.compiler.targets.target import Build, Piece


def graphs(c: Build, m: Module, form: str) -> str | Sequence[Piece]:
    """The stage `ge`: text or JSON of all parts, or ONNX or C++ of each device part.

    Raises:
        CompileError: the model cannot be built.
    """
    parts, made = parts_and_graphs(m, c.options, c.source, c.at)
    match form:
        case "json":
            return json.dumps(single_ops(g for d in made for g in d.graph.all()), indent=1) + "\n"
        case "cpp":
            return [_source(d) for d in made]
        case "onnx":
            return [Piece(d.graph.name, onnx_view(d.graph)) for d in made]
        case _:
            return _text(c, m, parts, made)


def commands(c: Build, m: Module, form: str) -> str:
    """The stage `atc`: the command that compiles each part on the device, as a shell takes it or as JSON.

    Raises:
        CompileError: the model cannot be built.
    """
    _, made = parts_and_graphs(m, c.options, c.source, c.at)
    extra = [*arguments(m, c.options), *range_arguments(m, c.options)]
    listed = [atc.command(d.graph.name, c.options, extra) for d in made]
    if form == "json":
        return json.dumps(listed, indent=1) + "\n"
    notes = [f"# {line}" for line in atc.remarks(c.options)]
    return "\n".join([*notes, *map(atc.text, listed)]) + "\n"


def _text(c: Build, m: Module, parts: Sequence[Part], graphs: Sequence[DeviceGraph]) -> str:
    by_part = {d.part: d.graph for d in graphs}
    made: list[str] = []
    for part in parts:
        where = c.options.soc_version if part.on_device else "the CPU"
        made.append(f"# {part.name}: {len(part.ops)} nodes on {where}\n")
        if part in by_part and c.options.offload == "cost":
            made.append(f"# by estimate: {estimate_of(by_part[part], c.options)}\n")
        if part in by_part:
            made.append(graph_text(by_part[part]) + "\n")
        else:
            made.append("".join(f"  {op_text(op)}\n" for op in cpu_module(m, part).main.body.body) + "\n")
    return "".join(made)


def _source(d: DeviceGraph) -> Piece:
    text, constants = cpp(d.graph)
    return Piece(d.graph.name, text, {name: stored(value) for name, value in constants.items()})
