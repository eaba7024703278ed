"""The mapping table: the rule for each operator, and the loop that emits a GE graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Ref, data_node, drop_dead
from occ.compiler.codegen_cann.graph.validate import node_problems
from occ.compiler.codegen_cann.mapping import (
    activation,
    attention,
    blocks,
    control,
    conv_emulation,
    convolution,
    data_dependent,
    einsum,
    elementwise,
    experts,
    indexing,
    kv_cache,
    linear,
    normalization,
    passthrough,
    pooling,
    qlinear,
    quantize,
    recurrent,
    reduce,
    region,
    resize,
    sample,
    shape,
    signal,
)
from occ.compiler.codegen_cann.mapping.chip import Chip
from occ.compiler.codegen_cann.mapping.elementwise import Row
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported, describe
from occ.compiler.codegen_cann.mapping.fused import fuse
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.types import TensorType

_FAMILIES = (
    elementwise, activation, convolution, pooling, linear, normalization, blocks, einsum, reduce, shape, indexing,
    resize, quantize, qlinear, attention, control,
    sample, region, kv_cache, experts, signal, conv_emulation, data_dependent, passthrough, recurrent,
)  # fmt: skip


@cache
def rows() -> Mapping[str, Row]:
    """A row per operator: a function of the emitter, the op and its operands that returns its results.

    Raises:
        ValueError: two families have a row for the same operator.
    """
    table: dict[str, Row] = {}
    for family in _FAMILIES:
        if twice := set(table) & set(family.ROWS):
            raise ValueError(f"two rows for {sorted(twice)}")
        table |= family.ROWS
    return MappingProxyType(table)


def takes(name: str) -> bool:
    """Whether the device supports an operator by name, so that it need not be expanded."""
    return name in rows()


def emit_op(e: Emitter, op: Op) -> None:
    """Emit the nodes of one op.

    Raises:
        Unsupported: the device does not support it.
    """
    row = rows().get(op.name)
    if row is None:
        raise Unsupported(f"GE has no operator for `{op.name}`")
    described = [describe(r) for r in op.results if r.uses or r is op.results[0]]
    for desc in (*described, *(describe(v) for v in op.inputs if isinstance(v.type, TensorType) and v.type.is_static)):
        if desc.dtype in e.chip.missing:
            raise Unsupported(f"the chip has no {desc.dtype}")
    if any(0 in d.shape for d in described):
        raise Unsupported("its result is empty")
    e.begin(op)
    start = len(e.graph.nodes)
    refs = [_operand(e, op, k) for k in range(len(op.operands))]
    names = [op.spec.operand_name(k) for k in range(len(refs))]
    if any(r is not None and 0 in r.shape and n not in op.spec.static for n, r in zip(names, refs, strict=True)):
        raise Unsupported("an operand is empty")
    made = row(e, op, *refs)
    results: Sequence[Ref] = made if type(made) is tuple else (made,)
    for node in e.graph.nodes[start:]:
        for problem in node_problems(node):
            raise Unsupported(problem)
        if lack := e.lacks(node):
            raise Unsupported(lack)
    for value, ref in zip(op.results, results, strict=False):
        if value.uses or value is op.results[0]:
            want = describe(value)
            assert (ref.dtype, ref.shape) == (want.dtype, want.shape), f"{op} gave {ref.desc}, not {want}"
        e.refs[value] = ref
    e.finish(op, results)


def _operand(e: Emitter, op: Op, k: int) -> Ref | None:
    """The GE reference of an operand; a shape operand may be unknown, since its rule reads the value."""
    value = op.operands[k]
    if value is None:
        return None
    try:
        return e.ref(value)
    except Unsupported:
        if op.spec.operand_name(k) in op.spec.static:
            return None
        raise


def verdict(op: Op, precision: str = "origin", module: Module | None = None, chip: Chip | None = None) -> str:
    """Why the device does not support an op; empty if it does. The arguments are those of `trial`."""
    try:
        trial(op, precision, module, chip)
    except Unsupported as reason:
        return str(reason)
    return ""


def trial(
    op: Op, precision: str = "origin", module: Module | None = None, chip: Chip | None = None, sizes: Sequence[int] = ()
) -> Graph:
    """The graph of one op.

    Args:
        op: the op.
        precision: `precision_mode_v2`.
        module: contains the functions that the op runs.
        chip: the chip that it is for.
        sizes: extents that other ops of its part show.

    Raises:
        Unsupported: the device does not support it.
    """
    e = Emitter(Graph("trial"), emit_op, precision, module, chip=chip)
    if sizes:
        shown = data_node(e.unique("sizes"), Desc("FLOAT", tuple(sizes)), 0)
        e.graph.nodes.append(shown)
        e.graph.data.append(shown)
    for k, value in enumerate(dict.fromkeys(op.inputs)):
        if not isinstance(value, Weight) and not _is_size(value):
            node = data_node(e.unique(f"operand{k}"), describe(value), k)
            e.graph.nodes.append(node)
            e.graph.data.append(node)
            e.refs[value] = Ref(node)
    emit_op(e, op)
    return e.graph


def _is_size(value: Value) -> bool:
    return value.defining_op is not None and value.defining_op.is_dims


def build_graph(
    name: str, ops: Iterable[Op], inputs: Sequence[Value], outputs: Sequence[Value], output_names: Sequence[str],
    precision: str = "origin", module: Module | None = None, chip: Chip | None = None,
) -> Graph:  # fmt: skip
    """The GE graph of a part of a module.

    Args:
        name: of the graph.
        ops: in topological order.
        inputs: outside values that the part reads, except constants.
        outputs: its results.
        output_names: names of the outputs.
        precision: `precision_mode_v2`.
        module: contains the functions that ops run.
        chip: the chip that it is for.
    """
    graph = Graph(name, output_names=list(output_names))
    e = Emitter(graph, emit_op, precision, module, chip=chip)
    for k, value in enumerate(inputs):
        node = data_node(e.unique(value.name), describe(value), k)
        graph.nodes.append(node)
        graph.data.append(node)
        e.refs[value] = Ref(node)
    for op in ops:
        if not op.is_dims:
            emit_op(e, op)
    for value, label in zip(outputs, output_names, strict=True):
        ref = e.ref(value)
        if ref.node.type in ("Data", "Const") or ref in graph.outputs:
            ref = e.op("Identity", ref, out=ref.desc)
            ref.node.name = e.unique(f"{label}/Identity")
        graph.outputs.append(ref)
    fuse(e)
    drop_dead(graph)
    for node in graph.nodes:
        if not node.name:
            node.name = e.unique(node.type)
    return graph
