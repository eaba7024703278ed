"""The GE graphs of parts: for one set of sizes, or one graph for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from occ.compiler.codegen_cann.graph import keep_dtype as keep
from occ.compiler.codegen_cann.graph.fold_constants import fold_constants
from occ.compiler.codegen_cann.graph.gears import gears
from occ.compiler.codegen_cann.graph.graph import Graph
from occ.compiler.codegen_cann.graph.memory import workspace
from occ.compiler.codegen_cann.graph.ranges import around, ranges, samples
from occ.compiler.codegen_cann.graph.validate import graph_problems
from occ.compiler.codegen_cann.mapping.merge import merged
from occ.compiler.codegen_cann.mapping.sizes import Known
from occ.compiler.codegen_cann.mapping.table import build_graph
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.parts.data_sizes import at_sizes, sets_of, used
from occ.compiler.codegen_cann.parts.partition import Part, is_free
from occ.compiler.codegen_cann.verdicts import At, check_extents, chip_for, refusals, run_by_a_unit, verdicts
from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.ir.dim import Sym, evaluate, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import TensorType
from occ.runtime.dataclass import dataclass


@dataclass(eq=False)
class DeviceGraph:
    """A device part as a GE graph, and the bytes of its intermediate values."""

    part: Part
    graph: Graph
    workspace: int


def output_names(m: Module, part: Part) -> list[str]:
    """Names of a part's results: the model's name for an output of the model."""
    names = dict(zip(m.main.results, m.main.result_names, strict=True))
    return [names.get(v, v.name) for v in part.outputs]


def graph_of(m: Module, part: Part, options: AscendOptions, names: Sequence[str] | None = None) -> Graph:
    """The GE graph of a device part; `names` are its output names, where values alone are ambiguous."""
    return _graph_and_need(m, part, options, names)[0]


def _graph_and_need(
    m: Module, part: Part, options: AscendOptions, names: Sequence[str] | None = None
) -> tuple[Graph, int]:
    """The graph of a part, and the bytes of its intermediate values."""
    given, decided = output_names(m, part) if names is None else names, {s for op in part.ops for s in used(op)}
    chip = chip_for(options)
    chip = replace(chip, dynamic=chip.dynamic or bool(decided))

    def made() -> Graph:
        return build_graph(part.name, part.ops, part.inputs, part.outputs, given, options.precision, m, chip)

    if not decided:
        graph = made()
        return graph, workspace(graph)
    graphs: list[Graph] = []
    for each in sets_of(m, part.ops, decided):
        with at_sizes(m, each):
            graphs.append(made())
    need = max(map(workspace, graphs))
    graph = merged(graphs, bounded=False)
    run_by_a_unit(graph, chip, options.precision)
    return graph, need


def sets_of_sizes(m: Module, options: AscendOptions) -> list[dict[str, int]]:
    """The sizes of the symbolic dims for which the single graph of a model is made.

    None if all extents are constant.
    """
    if options.dynamic_ranges:
        return samples(ranges(m, options))
    return gears(m, options) if options.gears else []


def one_graph(
    m: Module, sizes: Sequence[Mapping[str, int]], options: AscendOptions, source: str, at: At
) -> DeviceGraph:
    """The graph of a model for several sets of sizes.

    Used where the graphs optimised for each set differ: it is made from the same ops for all.

    Gears of 1 and 2, which drop axes and unroll recurrences, get the general graph if they cannot be merged with the
    others.

    Raises:
        CompileError: as `geared_graph`, of the first.
    """
    first: CompileError | None = None
    for wanted in (sizes, around(sizes) if options.gears else ()):
        for alike in (False, True) if wanted else ():
            try:
                return geared_graph(m, wanted, [at(each, alike=alike) for each in wanted], options, source)
            except CompileError as e:
                first = first or e
                if first.diagnostics[0].code != "OCC0305":
                    raise
    assert first is not None
    raise first


def geared_graph(
    m: Module, sizes: Sequence[Mapping[str, int]], modules: Sequence[Module], options: AscendOptions, source: str
) -> DeviceGraph:
    """The graph of a model with gears, which is a single part.

    Args:
        m: with symbolic extents.
        sizes: the values of its symbols in each gear.
        modules: the model at each.
        options: of the target.
        source: how messages name the model.

    Raises:
        CompileError: OCC0301 the device does not support all of it; OCC0305 the gears differ in more than extents.
    """
    graphs: list[Graph] = []
    for value, name in zip(m.main.results, m.main.result_names, strict=True):
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            message = f"the rank of the output `{shorten(name)}` depends on the symbolic extents"
            raise error("OCC0305", message, where=source, help="build for fixed extents with --dim or --shape")
    where = [k for k, v in enumerate(m.main.results) if v.defining_op is not None and v not in m.main.results[:k]]
    for each in modules:
        check_extents(each, options.target)
        if found := refusals(each, verdicts(each, options), options.target, source):
            raise CompileError(
                replace(d, helps=("a model with gears is one device part; fix the extents",)) for d in found
            )
        graphs.append(graph_of(each, _whole(each, where), options, [m.main.result_names[k] for k in where]))
    need = max(map(workspace, graphs))
    graph = merged(graphs, bounded="?" not in options.dynamic_ranges, known=_known(m, sizes))
    remedy = "it only accepts gears, whose extents are fixed for `atc`: `-C dynamic_dims=...`, or `dynamic_batch_size`"
    run_by_a_unit(graph, chip_for(options), options.precision, fixed=bool(options.gears), remedy=remedy)
    fold_constants(graph)
    keep.mark(graph, options)
    problems = list(graph_problems(graph))
    assert not problems, problems[:3]
    return DeviceGraph(_whole(m, where), graph, need)


def _known(m: Module, sizes: Sequence[Mapping[str, int]]) -> Known:
    """The extents in a model that follow from its inputs."""
    shapes = [(k, arg.type.dims) for k, arg in enumerate(m.main.args) if isinstance(arg.type, TensorType)]
    places = {
        str(d): (k, axis) for k, dims in shapes for axis, d in enumerate(dims) if isinstance(d, Sym) and d.is_symbol
    }
    types = (r.type for op in m.main.body.body for r in op.results if isinstance(r.type, TensorType))
    dims = {d for t in types if t.shape is not None for d in t.dims if isinstance(d, Sym)}
    found = {d: tuple(evaluate(d, each) for each in sizes) for d in dims if symbols(d).keys() <= places.keys()}
    listed = sorted((d for d, at in found.items() if len(set(at)) > 1), key=lambda d: (d.weight, str(d)))
    return Known({d: found[d] for d in listed}, places)


def _whole(m: Module, where: Sequence[int]) -> Part:
    """A module as one part: all of its inputs, and some of its outputs by position.

    Each gear has its own values; only this order is common to them, so the order links them.
    """
    ops = [op for op in m.main.body.body if not is_free(op)]
    return Part("part0", True, ops, list(m.main.args), [m.main.results[k] for k in where])


def device_graphs(m: Module, parts: Sequence[Part], options: AscendOptions) -> list[DeviceGraph]:
    """The GE graphs of the device parts, checked.

    Raises:
        AssertionError: a graph does not match the prototypes; the verdicts should have prevented that.
    """
    made: list[DeviceGraph] = []
    for part in parts:
        if part.on_device:
            graph, need = _graph_and_need(m, part, options)
            fold_constants(graph)
            keep.mark(graph, options)
            problems = list(graph_problems(graph))
            assert not problems, problems[:3]
            made.append(DeviceGraph(part, graph, need))
    return made
