"""The dumps of Ascend targets: GE graphs, the C++ that builds them, and the commands that compile them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from occ.compiler.codegen_cann.build import DeviceGraph
    from occ.compiler.codegen_cann.parts.partition import Part
    from occ.compiler.driver.compilation import Compilation


def dump(compilation: Compilation, stage: str, form: str, out: Path | None) -> str:
    """The text of stage `ge` or `atc`; with `onnx`, and with `cpp` and a path, files are written and their names are the text.

    Raises:
        CompileError: the model cannot be built.
    """
    from occ.compiler.codegen_cann import build
    from occ.compiler.driver.ascend import at_gear

    m = compilation.advance(compilation.last_stage)
    parts, graphs = build.parts_of(
        m, compilation.options, compilation.context.source, lambda dims: at_gear(compilation, dims)
    )
    if stage == "atc":
        return _commands(compilation, graphs, form)
    match form:
        case "text":
            return _text(compilation, parts, graphs)
        case "cpp":
            return _sources(graphs, out)
        case "json":
            from occ.compiler.codegen_cann.output.single_op import single_ops

            return json.dumps(single_ops(g for d in graphs for g in d.graph.all()), indent=1) + "\n"
        case _:
            return _views(graphs, out)


def _text(compilation: Compilation, parts: list[Part], graphs: list[DeviceGraph]) -> str:
    from occ.compiler.codegen_cann.output.text import graph_text
    from occ.compiler.codegen_cann.parts.islands import island_module
    from occ.compiler.ir.printer import op_text

    by_part = {d.part: d.graph for d in graphs}
    made: list[str] = []
    for part in parts:
        where = compilation.options.soc_version if part.on_device else "the CPU"
        made.append(f"# {part.name}: {len(part.ops)} nodes on {where}\n")
        if part in by_part:
            made.append(graph_text(by_part[part]) + "\n")
        else:
            island = island_module(compilation.module, part)
            made.append("".join(f"  {op_text(op)}\n" for op in island.main.body.body) + "\n")
    return "".join(made)


def _commands(compilation: Compilation, graphs: list[DeviceGraph], form: str) -> str:
    from occ.compiler.codegen_cann.graph.gears import arguments
    from occ.compiler.codegen_cann.output import atc

    extra = arguments(compilation.module, compilation.options)
    commands = [atc.command(d.graph.name, compilation.options, extra) for d in graphs]
    if form == "json":
        return json.dumps(commands, indent=1) + "\n"
    notes = [f"# {line}" for line in atc.remarks(compilation.options)]
    return "\n".join([*notes, *map(atc.text, commands)]) + "\n"


def _views(graphs: list[DeviceGraph], out: Path | None) -> str:
    from occ.compiler.codegen_cann.output.onnx_view import onnx_view

    if out is None:
        raise click.UsageError("--format onnx writes files: say where with -o")
    paths = _paths(graphs, out, ".onnx")
    for d, path in zip(graphs, paths, strict=True):
        path.write_bytes(onnx_view(d.graph))
    return "\n".join(map(str, paths)) + "\n"


def _sources(graphs: list[DeviceGraph], out: Path | None) -> str:
    """The C++ of all parts; with a path, files, the constants that they read beside them, and their names."""
    from occ.compiler.codegen_cann.output.cpp import cpp

    if out is None:
        return "\n".join(cpp(d.graph)[0] for d in graphs)
    paths = _paths(graphs, out, ".cpp")
    for d, path in zip(graphs, paths, strict=True):
        text, constants = cpp(d.graph)
        path.write_text(text)
        for name, value in constants.items():
            path.with_name(name).write_bytes(value.tobytes())
    return "\n".join(map(str, paths)) + "\n"


def _paths(graphs: list[DeviceGraph], out: Path, suffix: str) -> list[Path]:
    """A file for each part: the one that was asked for where there is one part."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if len(graphs) == 1:
        return [out]
    return [out.with_name(f"{out.stem}.{d.graph.name}{out.suffix or suffix}") for d in graphs]
