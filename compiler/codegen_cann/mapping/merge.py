"""Merges the graphs of all gears into one dynamic graph.

Extents that differ become unknown. Sizes that differ are computed from the shapes of the inputs.

The graphs come from the same model at each set of extents. If they differ only in extents, they are one graph: that it
is the same for all gears is then known and not guessed. Integers that differ, such as the target of a Reshape or the
end of a slice, become expressions in the symbolic extents that are right for every gear, and no other extents run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.mapping.sizes import Known, Sizes
from occ.compiler.diagnostics import CompileError, error, shorten


def merged(graphs: Sequence[Graph], *, bounded: bool = True, known: Known | None = None) -> Graph:
    """One graph for all gears: the first gear's, with the differences generalised.

    Args:
        graphs: one for each gear.
        bounded: whether no larger sizes occur; tables whose first rows are read then have the largest length.
        known: the extents of the model, if its inputs are those of the graphs.

    Raises:
        CompileError: OCC0305 the graphs differ in more than extents.
    """
    first, *others = graphs
    assert others, "one gear is not a choice"
    if len({len(list(g.all())) for g in graphs}) != 1:
        raise _differs(first.nodes[-1])
    names = {n.name for g in first.all() for n in g.nodes}
    for parts in zip(*(g.all() for g in graphs), strict=True):
        for nodes in zip(*(g.nodes for g in parts), strict=False):
            if len({(n.name, n.type, tuple(n.input_names), len(n.outputs)) for n in nodes}) != 1:
                raise _differs(nodes[0])
        if len({len(g.nodes) for g in parts}) != 1:
            raise _differs(parts[0].nodes[-1])
        sizes = Sizes(parts, names, bounded=bounded, known=known if parts[0] is first else None)
        for nodes in list(zip(*(g.nodes for g in parts), strict=True)):
            _merge(nodes, parts[0], sizes)
        sizes.insert()
    return first


def _merge(nodes: Sequence[Node], graph: Graph, sizes: Sizes) -> None:
    """Generalise the first of several nodes to represent all of them."""
    first = nodes[0]
    for key in first.attrs:
        if key != "value" and any(n.attrs.get(key) != first.attrs[key] for n in nodes):
            raise _differs(first)
    if first.type == "Const":
        values = [n.value for n in nodes]
        if any(v.shape != values[0].shape or not np.array_equal(v, values[0]) for v in values):
            _replace(first, values, graph, sizes)
        return
    first.outputs = [_desc(ds) for ds in zip(*(n.outputs for n in nodes), strict=True)]


def _desc(descs: Sequence[Desc]) -> Desc:
    first = descs[0]
    if len({(d.dtype, len(d.shape), d.format) for d in descs}) != 1:
        raise error("OCC0305", f"gears differ in more than extents: {first} and {descs[-1]}")
    shape = tuple(d if all(o.shape[k] == d for o in descs) else -1 for k, d in enumerate(first.shape))
    return Desc(first.dtype, shape, first.format)


def _replace(const: Node, values: Sequence[np.ndarray], graph: Graph, sizes: Sizes) -> None:
    """Replace a constant that differs by one computed from sizes."""
    readers = [n for n in graph.nodes if any(r is not None and r.node is const for r in n.inputs)]
    if _one_place_of_a_reshape(const, values, readers):
        return
    made = sizes.value(values)
    if made is None:
        raise _differs(readers[0] if readers else const)
    for n in readers:
        n.inputs = [made if r is not None and r.node is const else r for r in n.inputs]
    graph.nodes.remove(const)


def _one_place_of_a_reshape(const: Node, values: Sequence[np.ndarray], readers: Sequence[Node]) -> bool:
    """A target of Reshape that differs in one place has -1 there."""
    if any(n.type != "Reshape" or n.inputs[0] == Ref(const) for n in readers):
        return False
    if any(v.shape != values[0].shape for v in values):
        return False
    differing = np.any([v != values[0] for v in values], axis=0)
    if differing.sum() != 1:
        return False
    const.attrs["value"] = np.where(differing, -1, values[0]).astype(values[0].dtype)
    return True


def _differs(node: Node) -> CompileError:
    return error(
        "OCC0305",
        f"`{node.type}` depends on the symbolic extents in a way that one graph cannot express",
        where=shorten(", ".join(node.source) or node.name),
        help="build for fixed extents with --dim or --shape",
    )
