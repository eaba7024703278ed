"""Builds an Ascend artifact: support checks, partitioning, GE graphs, `.air` files, CPU subgraphs and the plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from occ.compiler.codegen_cann.device_graphs import (
    DEVICE_OPERATOR,
    At,
    DeviceGraph,
    check_extents,
    decides,
    device_graphs,
    graph_of,
    kernels_of,
    one_graph,
    refusals,
    sets_of_sizes,
    verdicts,
)
from occ.compiler.codegen_cann.graph import keep_dtype as keep
from occ.compiler.codegen_cann.graph.formats import stored
from occ.compiler.codegen_cann.graph.gears import arguments, gears
from occ.compiler.codegen_cann.graph.graph import Desc, Graph
from occ.compiler.codegen_cann.graph.memory import total
from occ.compiler.codegen_cann.graph.ranges import arguments as range_arguments
from occ.compiler.codegen_cann.graph.ranges import ranges
from occ.compiler.codegen_cann.mapping.table import takes
from occ.compiler.codegen_cann.options import AscendOptions, chip_remarks
from occ.compiler.codegen_cann.output import atc
from occ.compiler.codegen_cann.output.air import air
from occ.compiler.codegen_cann.output.cpp import cpp
from occ.compiler.codegen_cann.output.onnx_view import onnx_view
from occ.compiler.codegen_cann.output.single_op import program, single_ops
from occ.compiler.codegen_cann.output.text import graph_text
from occ.compiler.codegen_cann.parts.cost import Estimate, estimate
from occ.compiler.codegen_cann.parts.cpu_subgraphs import cpu_module
from occ.compiler.codegen_cann.parts.data_sizes import misplaced, used
from occ.compiler.codegen_cann.parts.partition import Part, is_free, make_parts, partition, split
from occ.compiler.codegen_cann.parts.pictures import configuration, take_pictures
from occ.compiler.codegen_cann.parts.plan import constant_results, plan_parts
from occ.compiler.codegen_cann.parts.units import Placed, counts, narrow_batches, placed, slow_nodes, slow_warnings
from occ.compiler.diagnostics import CompileError, Diagnostic
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.value import Value
from occ.compiler.plan.plan import dim_expr, signature
from occ.runtime.artifact import Artifact, weight_infos
from occ.runtime.device_part import DevicePart, PartTensor
from occ.runtime.manifest import Manifest
from occ.runtime.version import occ_version

Compile = Callable[[Callable[[], Module]], Artifact]
_PLUMBING = ("Data", "Const", "NetOutput")  # nodes that are no operators of the model


def check(m: Module, options: AscendOptions, source: str, at: At) -> list[Diagnostic]:
    """Warnings about ops of a module that the CPU would run; arguments as `build`.

    Raises:
        CompileError: what `build` would raise; with symbolic extents also every op that GE has no operator for.
    """
    if sizes := sets_of_sizes(m, options):
        made = one_graph(m, sizes, options, source, at)
        return _slow(_units([made], options), options, source)
    try:
        found = _verdicts_within(m, options, source)
        parts = _partition(m, found, options)
    except CompileError as e:
        if e.diagnostics[0].code != "OCC0305":
            raise
        ops = [op for op in m.main.body.body if not is_free(op)]
        known = {op: "" if takes(op.name) else f"GE has no operator for `{op.name}`" for op in ops}
        raise CompileError([*e.diagnostics, *refusals(m, known, options.target, source)]) from None
    warnings = [replace(d, severity="warning") for d in refusals(m, found, options.target, source)]
    return [*warnings, *_slow(_units(device_graphs(m, parts, options), options), options, source)]


def _units(graphs: Sequence[DeviceGraph], options: AscendOptions) -> dict[str, list[Placed]]:
    """The unit of each node of the device parts, by part."""
    table = kernels_of(options)
    return {d.graph.name: placed(d.graph, table, options.precision, fixed=bool(options.gears)) for d in graphs}


def _slow(units: Mapping[str, Sequence[Placed]], options: AscendOptions, source: str) -> list[Diagnostic]:
    """Warnings of what the AI CPU runs."""
    return slow_warnings([p for nodes in units.values() for p in nodes], options.target, source)


def _verdicts_within(m: Module, options: AscendOptions, source: str) -> dict[Op, str]:
    """The verdicts of a module under the limits that the options set.

    Raises:
        CompileError: OCC0301 an op that the device cannot take, with `cpu_fallback=off`; OCC0305 symbolic extents.
    """
    check_extents(m, options.target)
    found = verdicts(m, options)
    limit = options.npu_mem_limit
    if limit:
        for op, reason in found.items():
            if not reason and (need := _need(m, [op], options)) > limit:
                found[op] = f"it needs {need} bytes, `npu_mem_limit` is {limit}"
    _move_what_lacks_sizes(m, found, options)
    stuck = {op: reason for op, reason in found.items() if reason and op.name == DEVICE_OPERATOR}
    if stuck:
        remedy = ("no CPU has it: put ONNX operators in its place, or build what is around it",)
        raise CompileError(replace(d, helps=remedy) for d in refusals(m, stuck, options.target, source))
    if options.cpu_fallback == "off" and any(found.values()):
        remedy = ("build without `-C cpu_fallback=off` to run it on the CPU",)
        raise CompileError(replace(d, helps=remedy) for d in refusals(m, found, options.target, source))
    return found


def _move_what_lacks_sizes(m: Module, found: dict[Op, str], options: AscendOptions) -> None:
    """Move ops to the CPU whose sizes a cut leaves unknown, or that have no single graph.

    `found` gets the reasons.
    """
    while True:
        parts = partition(m, lambda op: not found[op])  # noqa: B023 - it is called at once
        moved = misplaced(m, parts)
        for part in parts if not moved else ():
            sized = [op for op in part.ops if used(op)]
            if part.on_device and sized and decides(options):
                try:
                    graph_of(m, part, options)
                except CompileError as e:
                    moved |= dict.fromkeys(sized, e.diagnostics[0].message)
        if not moved:
            return
        found |= moved


def cut(m: Module, options: AscendOptions, source: str) -> list[Part]:
    """The parts of a module.

    Raises:
        CompileError: OCC0301 an op that the device cannot take, with `cpu_fallback=off`; OCC0305 symbolic extents.
    """
    found = _verdicts_within(m, options, source)
    limit = options.npu_mem_limit
    parts = _partition(m, found, options)
    if not limit and options.enable_cann_graph:
        return parts
    groups: list[tuple[bool, list[Op]]] = []
    for part in parts:
        if not part.on_device:
            groups.append((False, part.ops))
        elif not options.enable_cann_graph:
            groups += [(True, [op]) for op in part.ops]
        else:
            groups += [(True, g) for g in split(part.ops, lambda ops: _need(m, ops, options) <= limit)]
    return make_parts(m, groups)


def _partition(m: Module, found: dict[Op, str], options: AscendOptions) -> list[Part]:
    """The parts of a module.

    With `offload=cost`, parts on the device that the CPU is faster with go to the CPU, and get a reason in `found`; what is
    left is cut anew until all pay.
    """
    while True:
        parts = partition(m, lambda op: not found[op])  # noqa: B023 - it is called at once
        if options.offload != "cost":
            return parts
        estimates = [(p, estimate_of(graph_of(m, p, options), options)) for p in parts if p.on_device]
        idle = [(p, e) for p, e in estimates if not e.pays]
        if not idle:
            return parts
        for part, e in idle:
            reason = (
                f"the part takes {e.device * 1e3:.2g} ms on the device and {e.cpu * 1e3:.2g} ms on the CPU, by estimate"
            )
            found |= dict.fromkeys(part.ops, reason)
        _move_what_lacks_sizes(m, found, options)


def _estimates(graphs: Sequence[DeviceGraph], options: AscendOptions) -> list[dict[str, Any]]:
    """The cost estimates of `offload=cost`, with their explanation as `text`."""
    found = [estimate_of(d.graph, options) for d in graphs] if options.offload == "cost" else []
    return [{**asdict(e), "text": str(e)} for e in found]


def estimate_of(graph: Graph, options: AscendOptions) -> Estimate:
    """The estimated cost of a part on the chip and on this CPU."""
    return estimate(graph, options.target, half=options.precision != "origin")


def _need(m: Module, ops: Sequence[Op], options: AscendOptions) -> int:
    (part,) = make_parts(m, [(True, list(ops))])
    return total(graph_of(m, part, options))


def build(m: Module, options: AscendOptions, compile_cpu_part: Compile, source: str, at: At) -> Artifact:
    """The artifact of a module for an Ascend target.

    Args:
        m: at the last stage of the target.
        options: of the target.
        compile_cpu_part: compiles what the CPU runs, of which it is given what makes the module.
        source: how messages name the model.
        at: the module at given values of its symbols, as `target.Build` has it.

    Raises:
        CompileError: as `cut`, or a CPU subgraph does not compile.
    """
    parts, graphs = parts_and_graphs(m, options, source, at)
    units = _units(graphs, options)
    pictures = take_pictures(m, parts, {d.part.name: d.graph for d in graphs}, options)
    files = {f"device/{configuration(name)}": text.encode() for name, text in pictures.items()}
    shared = {f"device/{name}": data for name, data in atc.configurations(options).items()}
    files |= shared if graphs else {}
    records: list[DevicePart] = []
    for d in graphs:
        data, outside = air(d.graph)
        members = {f"device/{name}": content for name, content in outside.items()}
        files |= {f"device/{d.graph.name}.air": data, **members, **_for_people(d.graph, options)}
        record = _record(d, options, sorted({**members, **shared}), m)
        records.append(_with_pictures(record) if d.graph.name in pictures else record)
        where = [p.as_data() for p in units[d.graph.name]]
        files[f"device/{d.graph.name}.units.json"] = (json.dumps(where, indent=0) + "\n").encode()
    if records:
        files["device/compile.sh"] = script([r.command for r in records]).encode()
    cpu_subgraphs = [p for p in parts if not p.on_device]
    for part in cpu_subgraphs:
        made = compile_cpu_part(partial(cpu_module, m, part))
        files |= {f"cpu_subgraphs/{part.name}/{name}": data for name, data in made.members().items()}
    weights = constant_results(m)
    inputs, outputs, dims, constraints = signature(m)
    made = Manifest(
        m.name, options.target, f"occ {occ_version()}", dims, inputs, outputs, constraints,
        weight_infos([w.name for w in weights], [w.data.nbytes for w in weights]), plan_parts(m, parts), engine="ascend",
        machine=options.soc_version, parts=records, cpu_subgraphs=[p.name for p in cpu_subgraphs],
        options={k: getattr(options, k) for k in ("device_id", "npu_mem_limit", "arena_extend_strategy")},
        summary={**_summary(parts, graphs, options), **_places(units, options), "device_weights": sum(r.weights for r in records)},
    )  # fmt: skip
    return Artifact(made, [w.data for w in weights], b"", files)


def parts_and_graphs(m: Module, options: AscendOptions, source: str, at: At) -> tuple[list[Part], list[DeviceGraph]]:
    """The parts of a module, and the graphs of those on the device; arguments as `build`.

    Raises:
        CompileError: as `cut` and `geared_graph`.
    """
    if sizes := sets_of_sizes(m, options):
        made = one_graph(m, sizes, options, source, at)
        return [made.part], [made]
    parts = cut(m, options, source)
    return parts, device_graphs(m, parts, options)


def _for_people(graph: Graph, options: AscendOptions) -> dict[str, bytes]:
    """The C++ that builds a graph.

    With `dump_graphs` also the constants that it reads, its text and its view; op by op, the operators by themselves.
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


def _summary(parts: Sequence[Part], graphs: Sequence[DeviceGraph], options: AscendOptions) -> dict[str, Any]:
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


def _places(units: Mapping[str, Sequence[Placed]], options: AscendOptions) -> dict[str, Any]:
    """Lines of the summary: nodes by unit, those on the AI CPU, and which kernel tables say so."""
    nodes, table = [p for each in units.values() for p in each], kernels_of(options)
    where = "installed here" if table.installed else "as occ knows them"
    return {"units": counts(nodes), "ai_cpu": slow_nodes(nodes), "kernel_tables": f"CANN {table.release}, {where}"}


def _nothing(parts: Sequence[Part], target: str) -> list[str]:
    """The warning that no operator runs on the device."""
    idle = not any(p.on_device for p in parts)
    return [f"nothing of the model runs on {target}: `occ check MODEL -t {target}` says why"] if idle else []


def _record(d: DeviceGraph, options: AscendOptions, members: list[str], m: Module) -> DevicePart:
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
        files=members, command=atc.command(graph.name, options, [*arguments(m, options), *range_arguments(m, options)]), gears=with_gears,
        ranges={name: [r.least, -1 if r.most is None else r.most, r.step] for name, r in within.items()},
        sums={name: (r.of, r.plus) for name, r in within.items() if r.of},
        weights=graph.weights, workspace=d.workspace, program=f"device/{graph.name}.program.json" if one_by_one else "",
    )  # fmt: skip


def _with_pictures(record: DevicePart) -> DevicePart:
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
