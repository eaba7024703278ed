"""Builds an Ascend artifact: support checks, partitioning, GE graphs, `.air` files, CPU subgraphs and the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from occ.compiler.codegen_cann.device_graphs import DeviceGraph, device_graphs, graph_of, one_graph, sets_of_sizes
from occ.compiler.codegen_cann.graph.memory import total
from occ.compiler.codegen_cann.mapping.table import takes
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.output import atc
from occ.compiler.codegen_cann.output.air import air
from occ.compiler.codegen_cann.part_records import (
    estimate_of,
    for_people,
    places,
    record_of,
    script,
    summary_of,
    with_pictures,
)
from occ.compiler.codegen_cann.parts.cpu_subgraphs import cpu_module
from occ.compiler.codegen_cann.parts.data_sizes import misplaced, used
from occ.compiler.codegen_cann.parts.partition import Part, is_free, make_parts, partition, split
from occ.compiler.codegen_cann.parts.pictures import configuration, take_pictures
from occ.compiler.codegen_cann.parts.plan import constant_results, plan_parts
from occ.compiler.codegen_cann.parts.units import Placed, placed, slow_warnings
from occ.compiler.codegen_cann.verdicts import (
    DEVICE_OPERATOR,
    At,
    check_extents,
    decides,
    kernels_of,
    refusals,
    verdicts,
)
from occ.compiler.diagnostics import CompileError, Diagnostic
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.plan.signature import signature
from occ.runtime.artifact import Artifact, weight_infos
from occ.runtime.device_part import DevicePart
from occ.runtime.manifest import Manifest
from occ.runtime.version import occ_version

Compile = Callable[[Callable[[], Module]], Artifact]


def check(m: Module, options: AscendOptions, source: str, at: At) -> list[Diagnostic]:
    """Warnings about ops of a module that the CPU would run; arguments as for `build`.

    Raises:
        CompileError: as `build`; with symbolic extents also for every op without a GE operator.
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
    """Warnings about what the AI CPU runs."""
    return slow_warnings([p for nodes in units.values() for p in nodes], options.target, source)


def _verdicts_within(m: Module, options: AscendOptions, source: str) -> dict[Op, str]:
    """The verdicts on a module under the limits that the options set.

    Raises:
        CompileError: OCC0301 an unsupported op, with `cpu_fallback=off`; OCC0305 symbolic extents.
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
        remedy = ("no CPU has it: replace it by ONNX operators, or build the parts around it",)
        raise CompileError(replace(d, helps=remedy) for d in refusals(m, stuck, options.target, source))
    if options.cpu_fallback == "off" and any(found.values()):
        remedy = ("build without `-C cpu_fallback=off` to run it on the CPU",)
        raise CompileError(replace(d, helps=remedy) for d in refusals(m, found, options.target, source))
    return found


def _move_what_lacks_sizes(m: Module, found: dict[Op, str], options: AscendOptions) -> None:
    """Move ops to the CPU if a cut leaves their sizes unknown, or they have no single graph.

    `found` receives the reasons.
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
        CompileError: OCC0301 an unsupported op, with `cpu_fallback=off`; OCC0305 symbolic extents.
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

    With `offload=cost`, device parts that are faster on the CPU move there, and get a reason in `found`; the rest is
    cut again until every part pays off.
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


def _need(m: Module, ops: Sequence[Op], options: AscendOptions) -> int:
    (part,) = make_parts(m, [(True, list(ops))])
    return total(graph_of(m, part, options))


def build(m: Module, options: AscendOptions, compile_cpu_part: Compile, source: str, at: At) -> Artifact:
    """The artifact of a module for an Ascend target.

    Args:
        m: at the last stage of the target.
        options: of the target.
        compile_cpu_part: compiles what the CPU runs, given a function that makes the module.
        source: how messages name the model.
        at: the module at given values of its symbols, see `target.Build`.

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
        files |= {f"device/{d.graph.name}.air": data, **members, **for_people(d.graph, options)}
        record = record_of(d, options, sorted({**members, **shared}), m)
        records.append(with_pictures(record) if d.graph.name in pictures else record)
        where = [p.as_data() for p in units[d.graph.name]]
        files[f"device/{d.graph.name}.units.json"] = (json.dumps(where, indent=0) + "\n").encode()
    if records:
        files["device/compile.sh"] = script([r.command for r in records]).encode()
    cpu_subgraphs = [p for p in parts if not p.on_device]
    for part in cpu_subgraphs:
        made = compile_cpu_part(partial(cpu_module, m, part))
        files |= {f"cpu_subgraphs/{part.name}/{name}": data for name, data in made.members().items()}
    weights = constant_results(m)
    summary = {**summary_of(parts, graphs, options), **places(units, options)}
    manifest = replace(
        _manifest(m, options, parts),
        weights=weight_infos([w.name for w in weights], [w.data.nbytes for w in weights]),
        parts=records,
        cpu_subgraphs=[p.name for p in cpu_subgraphs],
        summary={**summary, "device_weights": sum(r.weights for r in records)},
    )
    return Artifact(manifest, [w.data for w in weights], b"", files)


def _manifest(m: Module, options: AscendOptions, parts: Sequence[Part]) -> Manifest:
    """The manifest, without the fields that are known once the parts are written."""
    inputs, outputs, dims, constraints = signature(m)
    return Manifest(
        m.name,
        options.target,
        f"occ {occ_version()}",
        dims,
        inputs,
        outputs,
        constraints,
        [],
        plan_parts(m, parts),
        engine="ascend",
        machine=options.soc_version,
        options={k: getattr(options, k) for k in ("device_id", "npu_mem_limit", "arena_extend_strategy")},
    )


def parts_and_graphs(m: Module, options: AscendOptions, source: str, at: At) -> tuple[list[Part], list[DeviceGraph]]:
    """The parts of a module, and the graphs of the device parts; arguments as for `build`.

    Raises:
        CompileError: as `cut` and `geared_graph`.
    """
    if sizes := sets_of_sizes(m, options):
        made = one_graph(m, sizes, options, source, at)
        return [made.part], [made]
    parts = cut(m, options, source)
    return parts, device_graphs(m, parts, options)
