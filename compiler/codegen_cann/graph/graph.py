"""GE graphs: nodes of registered operator types, edges by output index, sub-graphs by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from occ.compiler.codegen_cann.graph.formats import TYPES, occ_type, stored_size
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Desc:
    """A tensor: GE's name of the element type, extents (-1 unknown), format."""

    dtype: str
    shape: tuple[int, ...]
    format: str = "ND"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; unknown extents count as 1."""
        return TYPES[self.dtype][2] * prod(max(d, 1) if d < 0 else d for d in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" + ("" if self.format == "ND" else f":{self.format}")


class Ref(NamedTuple):
    """One output of a node."""

    node: Node
    index: int = 0

    @property
    def desc(self) -> Desc:
        return self.node.outputs[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.desc.shape

    @property
    def dtype(self) -> str:
        return self.desc.dtype


@dataclass(eq=False)
class Node:
    """A node of a GE graph.

    Attributes:
        name: unique in the model.
        type: operator type.
        inputs: the value of each anchor, in prototype order; None if an optional input is absent.
        input_names: `x`, or `x0`, `x1`, ... of a dynamic input.
        attrs: plain Python values; `Const` holds its array as `value`.
        formats: format of each input that differs from that of the output it reads.
        graphs: names of sub-graphs, in prototype order.
        source: ONNX nodes that it implements.
    """

    name: str
    type: str
    inputs: list[Ref | None] = field(default_factory=list)
    outputs: list[Desc] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    input_names: list[str] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    formats: dict[str, str] = field(default_factory=dict)
    graphs: list[str] = field(default_factory=list)
    source: tuple[str, ...] = ()

    @property
    def value(self) -> np.ndarray:
        """The data of a Const."""
        return self.attrs["value"]

    def __repr__(self) -> str:
        return f"<{self.type} {self.name}>"


@dataclass(eq=False)
class Graph:
    """A GE graph, with its sub-graphs.

    Attributes:
        nodes: in topological order.
        data: its Data nodes, by index.
        outputs: its results.
        output_names: names of the outputs in the model.
        children: sub-graphs of its nodes, nested ones included.
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    data: list[Node] = field(default_factory=list)
    outputs: list[Ref] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    children: list[Graph] = field(default_factory=list)

    def all(self) -> Iterator[Graph]:
        """This graph and its sub-graphs, the root first."""
        yield self
        for child in self.children:
            yield from child.all()

    @property
    def weights(self) -> int:
        """Bytes of constants, sub-graphs included."""
        return sum(stored_size(n.value) for g in self.all() for n in g.nodes if n.type == "Const")


def const_node(name: str, value: np.ndarray, dtype: str, source: Sequence[str] = ()) -> Node:
    """A Const."""
    return Node(name, "Const", [], [Desc(dtype, value.shape)], {"value": value}, [], ["y"], source=tuple(source))


def data_node(name: str, desc: Desc, index: int, extra: Mapping[str, Any] | None = None) -> Node:
    """A graph input."""
    return Node(name, "Data", [None], [desc], {"index": index, **(extra or {})}, ["x"], ["y"])


def zeros(desc: Desc) -> np.ndarray:
    """An array with the described type and shape."""
    return np.zeros(desc.shape, occ_type(desc.dtype).numpy)


def drop_dead(graph: Graph) -> None:
    """Remove nodes that no output depends on; Data nodes stay."""
    needed: set[Node] = set()
    work = [r.node for r in graph.outputs] + graph.data
    while work:
        node = work.pop()
        if node not in needed:
            needed.add(node)
            work += [r.node for r in node.inputs if r is not None]
    graph.nodes = [n for n in graph.nodes if n in needed]
