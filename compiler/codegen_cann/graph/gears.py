"""Gears: one compiled graph for a few sets of extents of its symbolic dims.

The graph is made once for every gear. Where the graphs differ only in extents, they become one with unknown extents (-1);
that this is the same graph for all gears is then known and not guessed. A Reshape whose target differs in one place gets
-1 there, and anything else that differs is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node
from occ.compiler.diagnostics import CompileError, error, shorten
from occ.compiler.ir.dim import Sym
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import TensorType
from occ.compiler.target.ascend import AscendOptions

_MOST = 100


def _unknown(m: Module, axes: Sequence[int] | None = None) -> list[str]:
    """Symbols of the inputs in order, one entry for each unknown extent; of some axes only."""
    found: list[str] = []
    for arg in m.main.args:
        assert isinstance(arg.type, TensorType), "inputs are tensors"
        for k, d in enumerate(arg.type.dims):
            if isinstance(d, Sym):
                if axes is not None and k not in axes:
                    raise error(
                        "OCC0305", f"axis {k} of the input `{shorten(arg.name)}` is symbolic too",
                        help="fix it with --dim or --shape, or use `dynamic_dims`",
                    )  # fmt: skip
                found.append(str(d))
    return found


def gears(m: Module, options: AscendOptions) -> list[dict[str, int]]:
    """Values of the symbols of each gear.

    Raises:
        CompileError: OCC0603 the option does not fit the symbolic dims; OCC0305 other dims are symbolic as well.
    """
    key = options.gears
    given: str = getattr(options, key)
    rows = [[_number(key, v) for v in row.split(",")] for row in given.strip(";").split(";")]
    if key == "dynamic_batch_size":
        symbols, rows = _unknown(m, (0,))[:1], [[v] for v in rows[0]]
    else:
        symbols = _unknown(m, (2, 3) if key == "dynamic_image_size" else None)
    if not symbols or any(len(row) != len(symbols) for row in rows):
        raise error(
            "OCC0603", f"`{key}={given}` does not fit the symbolic extents of the inputs: {', '.join(symbols) or 'none'}",
            help="give one value for each, in this order, and `;` between gears",
        )  # fmt: skip
    if not 2 <= len(rows) <= _MOST:
        raise error("OCC0603", f"`{key}` takes 2 to {_MOST} gears, not {len(rows)}", help="with one gear, use --dim")
    made = [dict(zip(symbols, row, strict=True)) for row in rows]
    for gear, row in zip(made, rows, strict=True):
        if any(gear[s] != v for s, v in zip(symbols, row, strict=True)):
            raise error("OCC0603", f"`{key}` gives one symbol two values in one gear: {row}", help="repeat its value")
    return made


def _number(key: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise error("OCC0603", f"option `{key}` takes numbers from 1, not `{shorten(text)}`")
    return int(text)


def arguments(m: Module, options: AscendOptions) -> list[str]:
    """The arguments of atc for the gears of a model.

    Raises:
        CompileError: OCC0305 the name of an input cannot stand in an argument of atc.
    """
    key = options.gears
    if not key:
        return []
    shapes: list[str] = []
    for arg in m.main.args:
        if set(arg.name) & set(':;,"') or not arg.name.isprintable():
            raise error(
                "OCC0305", f"atc takes no gears for an input named `{shorten(arg.name)}`", help="rename the input"
            )
        shapes.append(f"{arg.name}:{','.join(str(d) if isinstance(d, int) else '-1' for d in arg.tensor.dims)}")
    made = [f"--input_shape={';'.join(shapes)}", f"--{key}={getattr(options, key)}"]
    return [*made, f"--input_format={'NCHW' if key == 'dynamic_image_size' else 'ND'}"]


def merged(graphs: Sequence[Graph]) -> Graph:
    """One graph for all gears: that of the first with unknown extents where they differ.

    Raises:
        CompileError: OCC0305 the graphs differ in more than extents.
    """
    first, *others = graphs
    for parts in zip(*(g.all() for g in graphs), strict=True):
        for nodes in zip(*(g.nodes for g in parts), strict=False):
            if len({(n.name, n.type, tuple(n.input_names), len(n.outputs)) for n in nodes}) != 1:
                raise _differs(nodes[0])
        if len({len(g.nodes) for g in parts}) != 1:
            raise _differs(parts[0].nodes[-1])
        for nodes in zip(*(g.nodes for g in parts), strict=True):
            _merge(nodes, parts[0])
    assert others, "one gear is no gear"
    return first


def _merge(nodes: Sequence[Node], graph: Graph) -> None:
    first = nodes[0]
    for key in first.attrs:
        if key != "value" and any(n.attrs.get(key) != first.attrs[key] for n in nodes):
            raise _differs(first)
    if first.type == "Const":
        _merge_constants(nodes, graph)
        return
    first.outputs = [_desc(ds) for ds in zip(*(n.outputs for n in nodes), strict=True)]


def _desc(descs: Sequence[Desc]) -> Desc:
    first = descs[0]
    if len({(d.dtype, len(d.shape), d.format) for d in descs}) != 1:
        raise error("OCC0305", f"gears differ in more than extents: {first} and {descs[-1]}")
    shape = tuple(d if all(o.shape[k] == d for o in descs) else -1 for k, d in enumerate(first.shape))
    return Desc(first.dtype, shape, first.format)


def _merge_constants(nodes: Sequence[Node], graph: Graph) -> None:
    """A constant that differs is allowed as the target of a Reshape, in one place."""
    first = nodes[0]
    values = [n.value for n in nodes]
    if all(v.shape == values[0].shape and np.array_equal(v, values[0]) for v in values):
        return
    readers = [
        (n, n.input_names[k]) for n in graph.nodes for k, r in enumerate(n.inputs) if r is not None and r.node is first
    ]
    reader = readers[0][0] if readers else first
    if any((n.type, port) != ("Reshape", "shape") for n, port in readers) or any(
        v.shape != values[0].shape for v in values
    ):
        raise _differs(reader)
    differing = np.any([v != values[0] for v in values], axis=0)
    if differing.sum() != 1:
        raise _differs(reader)
    first.attrs["value"] = np.where(differing, -1, values[0]).astype(values[0].dtype)


def _differs(node: Node) -> CompileError:
    return error(
        "OCC0305", f"`{node.type}` depends on the symbolic extents in a way that one graph cannot express",
        where=shorten(", ".join(node.source) or node.name), help="build for fixed extents with --dim or --shape",
    )  # fmt: skip
