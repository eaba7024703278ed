"""GE's `_keep_dtype`: nodes that stay in FLOAT under a half-precision mode.

`atc --keep_dtype=FILE` sets the attribute on the nodes listed in the file, and its passes read it; here it is in the
`.air` itself. By default these nodes are kept:

- nodes leading to a logarithm: half precision ends at 6e-8, where the logarithm is still informative, and a relative
error of its operand is an absolute error of its result. After an activation, values have ordinary magnitudes again;
- nodes that scale integers to FLOAT or back, and compute the scales: integer sums of products exceed 65504, and scales
are small;
- nodes that read a constant that half precision rounds to zero, such as an epsilon of 1e-12 in a divisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Graph, Node
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.diagnostics import error, shorten

_SEEDS = frozenset({"Log", "Log1p"})
_BOUNDED = frozenset({"HardSigmoid", "LayerNorm", "Relu", "Sigmoid", "SoftmaxV2", "Tanh"})
_INTEGERS = frozenset({"INT8", "UINT8", "INT16", "UINT16", "INT32"})
_STRUCTURE = frozenset({"Const", "Data", "If", "While"})
_PRODUCTS = ("BatchMatMul", "Conv", "Einsum", "MatMul")
_LEAST = 2.0**-25  # half of the smallest half-precision number: anything less rounds to zero


def mark(graph: Graph, options: AscendOptions) -> None:
    """Mark the nodes of a graph that keep their precision, according to the options.

    Raises:
        CompileError: OCC0603 `keep_dtype` is neither `auto` nor `off` nor a readable file.
    """
    if options.precision == "origin":
        return
    for g in graph.all():
        for node in (*_asked(g, options.keep_dtype), *(n for n in g.nodes if n.name in options.calibrated)):
            node.attrs["_keep_dtype"] = 1


def _asked(g: Graph, keep_dtype: str) -> Iterable[Node]:
    match keep_dtype:
        case "off":
            return ()
        case "auto":
            return _sensitive(g)
        case path:
            return _named(g, listed(path))


def remarks(graphs: Iterable[Graph], options: AscendOptions) -> list[str]:
    """Warnings about nodes that keep their precision."""
    kept = [n for graph in graphs for g in graph.all() for n in g.nodes if "_keep_dtype" in n.attrs]
    why = "as calibration showed" if options.calibrated else "most of them because they feed a logarithm"
    made = [f"{len(kept)} nodes keep FLOAT (`_keep_dtype`), {why}"] if kept else []
    products = sum(n.type.startswith(_PRODUCTS) for n in kept)
    if products and options.fp16_only:
        made.append(
            f"{products} of them are matrix products, whose operands the matrix unit of this chip rounds to half"
            " precision: small values next to large ones are lost; `ascend910b` computes them in fp32"
        )
    return made


def _sensitive(g: Graph) -> Iterable[Node]:
    small = [n for n in g.nodes if any(r is not None and _vanishes(r.node) for r in n.inputs)]
    return dict.fromkeys((*_behind([n for n in g.nodes if n.type in _SEEDS]), *small, *_scaling(g)))


def _behind(seeds: Sequence[Node], least: int = 0) -> dict[Node, None]:
    """Some nodes and the FLOAT nodes leading to them, back to where values are bounded, or have `least` elements."""
    kept = dict.fromkeys(seeds)
    work = list(kept)
    while work:
        node = work.pop()
        for r in node.inputs if node.type not in _BOUNDED else ():
            if r is None or r.dtype != "FLOAT" or r.node in kept or r.node.type in _STRUCTURE:
                continue
            if not least or prod(r.shape) < least:
                kept[r.node] = None
                work.append(r.node)
    return kept


def _scaling(g: Graph) -> Iterator[Node]:
    """Nodes that scale integers to FLOAT or FLOAT to integers, and those that compute the scales."""
    readers: dict[Node, list[Node]] = {}
    for n in g.nodes:
        for r in n.inputs:
            if r is not None:
                readers.setdefault(r.node, []).append(n)
    for n in g.nodes:
        if n.type != "Cast" or n.inputs[0] is None:
            continue
        found: list[Node] = []
        if n.inputs[0].dtype in _INTEGERS and n.outputs[0].dtype == "FLOAT":
            found = [n, *(u for u in readers.get(n, ()) if u.type in ("Mul", "Sub"))]
            found += [u for sub in found[1:] if sub.type == "Sub" for u in readers.get(sub, ()) if u.type == "Mul"]
        elif n.inputs[0].dtype == "FLOAT" and n.outputs[0].dtype in _INTEGERS:
            found = list(_rounded(n.inputs[0].node))
        if found:
            yield from _behind(found, max(prod(d.outputs[0].shape) for d in found))


def _rounded(node: Node) -> Iterator[Node]:
    """The quantising nodes, from the last back to the division by the scale."""
    while node.type in ("Add", "ClipByValue", "DivNoNan", "RealDiv", "Round"):
        yield node
        if node.type in ("DivNoNan", "RealDiv") or node.inputs[0] is None:
            return
        node = node.inputs[0].node


def _vanishes(node: Node) -> bool:
    if node.type != "Const" or node.outputs[0].dtype != "FLOAT" or node.value.size > 1:
        return False
    return bool(np.any((np.abs(node.value) <= _LEAST) & (node.value != 0)))


def listed(path: str) -> frozenset[str]:
    """The lines of a file in the format of `atc --keep_dtype`: node names, or `OpType::` and an operator.

    Raises:
        CompileError: OCC0603 it cannot be read.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise error(
            "OCC0603",
            f"option `keep_dtype`: the file `{shorten(path, 200)}` cannot be read: {e}",
            help="it takes `auto`, `off`, or a file with a node's name or `OpType::Log` on each line",
        ) from None
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _named(g: Graph, names: frozenset[str]) -> Iterable[Node]:
    return (n for n in g.nodes if n.name in names or f"OpType::{n.type}" in names or names & set(n.source))
