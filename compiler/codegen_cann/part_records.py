"""Descriptions of parts in an Ascend artifact: records for the runtime, files and text for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from occ.compiler.codegen_cann.device_graphs import DeviceGraph
from occ.compiler.codegen_cann.graph import keep_dtype as keep
from occ.compiler.codegen_cann.graph.formats import stored
from occ.compiler.codegen_cann.graph.gears import arguments, gears
from occ.compiler.codegen_cann.graph.graph import Desc, Graph
from occ.compiler.codegen_cann.graph.ranges import arguments as range_arguments
from occ.compiler.codegen_cann.graph.ranges import ranges
from occ.compiler.codegen_cann.options import AscendOptions, chip_remarks
from occ.compiler.codegen_cann.output import atc
from occ.compiler.codegen_cann.output.cpp import cpp
from occ.compiler.codegen_cann.output.onnx_view import onnx_view
from occ.compiler.codegen_cann.output.single_op import program, single_ops
from occ.compiler.codegen_cann.output.text import graph_text
from occ.compiler.codegen_cann.parts.cost import Estimate, estimate
from occ.compiler.codegen_cann.parts.partition import Part
from occ.compiler.codegen_cann.parts.pictures import configuration
from occ.compiler.codegen_cann.parts.units import Placed, counts, narrow_batches, slow_nodes
from occ.compiler.codegen_cann.verdicts import kernels_of
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Value
from occ.compiler.plan.signature import dim_expr
from occ.runtime.device_part import DevicePart, PartTensor

_PLUMBING = ("Data", "Const", "NetOutput")  # nodes that are not operators of the model


def _estimates(graphs: Sequence[DeviceGraph], options: AscendOptions) -> list[dict[str, Any]]:
    """The cost estimates of `offload=cost`, with their explanation as `text`."""
    found = [estimate_of(d.graph, options) for d in graphs] if options.offload == "cost" else []
    return [{**asdict(e), "text": str(e)} for e in found]


def estimate_of(graph: Graph, options: AscendOptions) -> Estimate:
    """The estimated cost of a part on the chip and on this CPU."""
    return estimate(graph, options.target, half=options.precision != "origin")


def for_people(graph: Graph, options: AscendOptions) -> dict[str, bytes]:
    """The C++ that builds a graph.

    With `dump_graphs` also its constants, its text and its view; op by op, the single operators.
    """
    name = graph.name
    source, constants = cpp(graph)
    made = {f"src/{name}.cpp": source.encode()}
    if options.dump_graphs:
        made |= {f"src/{file}": stored(value) for file, value in constants.items()}
        made |= {f"graphs/{name}.txt": graph_text(graph).encode(), f"graphs/{name}.onnx": onnx_view(graph)}
    if not options.enable_cann_graph:
        made[f"device/{name}.singleop.json"] = (json.dumps(single_ops(graph.all()), indent=1) + "\n").encode()
        if (found := program(graph)) is not None:
            made[f"device/{name}.program.json"], made[f"device/{name}.constants"] = found
    return made


def summary_of(parts: Sequence[Part], graphs: Sequence[DeviceGraph], options: AscendOptions) -> dict[str, Any]:
    on_cpu = [op for p in parts if not p.on_device for op in p.ops]
    return {
        "device_parts": sum(p.on_device for p in parts), "cpu_parts": sum(not p.on_device for p in parts),
        "device_ops": sum(len(p.ops) for p in parts if p.on_device), "cpu_ops": len(on_cpu),
        "cpu_operators": sorted({op.name for op in on_cpu}), "precision": options.precision,
        "remarks": [*_nothing(parts, options.target), *chip_remarks(options), *atc.remarks(options), *keep.remarks((d.graph for d in graphs), options),
            *(narrow_batches((d.graph for d in graphs), kernels_of(options), options.precision) if not options.gears else ()),
        ],
        "ge_operators": dict(Counter(n.type for d in graphs for g in d.graph.all() for n in g.nodes if n.type not in _PLUMBING).most_common()),
        "estimates": _estimates(graphs, options),
    }  # fmt: skip


def places(units: Mapping[str, Sequence[Placed]], options: AscendOptions) -> dict[str, Any]:
    """Lines of the summary: nodes by unit, those on the AI CPU, and which kernel tables decided."""
    nodes, table = [p for each in units.values() for p in each], kernels_of(options)
    where = "installed here" if table.installed else "as occ knows them"
    return {"units": counts(nodes), "ai_cpu": slow_nodes(nodes), "kernel_tables": f"CANN {table.release}, {where}"}


def _nothing(parts: Sequence[Part], target: str) -> list[str]:
    """The warning that no operator runs on the device."""
    idle = not any(p.on_device for p in parts)
    return [f"nothing of the model runs on {target}: `occ check MODEL -t {target}` says why"] if idle else []


def record_of(d: DeviceGraph, options: AscendOptions, members: list[str], m: Module) -> DevicePart:
    graph = d.graph
    with_gears = gears(m, options) if options.gears else []
    within = ranges(m, options) if options.dynamic_ranges else {}
    one_by_one = not options.enable_cann_graph and not graph.children and not with_gears and not within
    return DevicePart(
        graph.name, f"device/{graph.name}.air", options.soc_version, options.precision,
        [_tensor(n.name, n.outputs[0], v) for n, v in zip(graph.data, d.part.inputs, strict=True)],
        [
            _tensor(name, r.desc, v)
            for name, r, v in zip(graph.output_names, graph.outputs, d.part.outputs, strict=True)
        ],
        files=members, command=atc.command(graph.name, options, [*arguments(m, options), *range_arguments(m, options)]),
        gears=with_gears,
        ranges={name: [r.least, -1 if r.most is None else r.most, r.step] for name, r in within.items()},
        sums={name: (r.of, r.plus) for name, r in within.items() if r.of},
        weights=graph.weights, workspace=d.workspace, program=f"device/{graph.name}.program.json" if one_by_one else "",
    )  # fmt: skip


def with_pictures(record: DevicePart) -> DevicePart:
    """The record of a part with the configuration of its inputs."""
    name = configuration(record.name)
    command = [*record.command, f"--insert_op_conf={name}"]
    return replace(record, files=sorted([*record.files, f"device/{name}"]), command=command)


def _tensor(name: str, desc: Desc, value: Value) -> PartTensor:
    return PartTensor(name, value.tensor.dtype.name, [dim_expr(d) for d in value.tensor.dims], desc.format)


def script(commands: Sequence[Sequence[str]]) -> str:
    """A shell script that compiles the parts."""
    lines = [
        "#!/bin/sh",
        "# Compiles the parts with the toolkit's atc; run it in the folder of the .air files.",
        "set -e",
    ]
    return "\n".join([*lines, *(atc.text(c) for c in commands)]) + "\n"
