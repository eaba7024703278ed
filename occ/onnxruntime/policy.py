"""Partitioning policy: convex groups of supported nodes, above a minimum cost.

It is independent of onnxruntime.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from occ.compiler.ir.operator.registry import Registry
from occ.runtime.manifest import Manifest

# A border between groups costs a node about half a microsecond, and onnxruntime fusions across it; a core processes a
# few thousand elements in that time.
LEAST = 1 << 15  # elements of weights read and results computed by a group
UNKNOWN = 16  # assumed value of a symbolic extent


def supported(node: NodeProto, registry: Mapping[str, object] | None = None) -> bool:
    """Whether occ has native code for an operator: not host operators, control flow or random numbers."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    name = f"{domain}.{node.op_type}" if domain else node.op_type
    table = registry if registry is not None else Registry()
    spec = table.get(name)
    return spec is not None and spec.pure and spec.meaning in ("body", "composite") and not spec.is_internal  # pyright: ignore[reportAttributeAccessIssue]


def decided_by_data(node: NodeProto, constants: Collection[str]) -> bool:
    """Whether a node's shape depends on non-constant values, such as a shape operand."""
    spec = Registry().get(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
    if spec is None:
        return False
    return any(v and v not in constants and spec.operand_name(k) in spec.static for k, v in enumerate(node.input))


def with_known_ranks(nodes: Sequence[NodeProto], ours: set[int], known: Callable[[str], bool]) -> set[int]:
    """The claimed nodes that read values of unknown rank only from each other."""
    makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    kept: set[int] = set()
    for k in sorted(ours):
        if all(not n or known(n) or makers.get(n) in kept for n in nodes[k].input):
            kept.add(k)
    return kept


def convex_groups(
    nodes: Sequence[NodeProto], taken: Callable[[int], bool], implicit: Mapping[int, Iterable[str]] | None = None
) -> list[list[int]]:
    """Positions of nodes in groups: no path leads from a group through another node back to it.

    Args:
        nodes: in topological order.
        taken: whether the node at a position may be in a group.
        implicit: values that nodes read in addition to their inputs, by position.

    Each node has a level, the maximum number of borders from other nodes to groups on a path to it. Connected nodes of
    one level are a group: a path that leaves it and returns would have crossed a border, and raised the level.
    """
    makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    level, root = [0] * len(nodes), list(range(len(nodes)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    for k, node in enumerate(nodes):
        mine = taken(k)
        before = [makers[n] for n in (*node.input, *(implicit or {}).get(k, ())) if n in makers]
        level[k] = max((level[b] + (mine and not taken(b)) for b in before), default=0)
        for b in before if mine else ():
            if taken(b) and level[b] == level[k]:
                root[find(k)] = find(b)
    found: dict[int, list[int]] = defaultdict(list)
    for k in range(len(nodes)):
        if taken(k):
            found[find(k)].append(k)
    return list(found.values())


def cost(
    group: Iterable[int],
    nodes: Sequence[NodeProto],
    types: Mapping[str, ValueInfoProto],
    weights: Mapping[str, TensorProto],
) -> int:
    """Elements of weights that a group reads, plus elements that it computes."""
    total = 0
    for k in group:
        read = sum(math.prod(weights[n].dims) for n in nodes[k].input if n in weights)
        total += max(read, *(_elements(types.get(n)) for n in nodes[k].output), 0)
    return total


def _elements(value: ValueInfoProto | None) -> int:
    if value is None:
        return UNKNOWN
    return math.prod(d.dim_value if d.HasField("dim_value") else UNKNOWN for d in value.type.tensor_type.shape.dim)


def part(
    group: Sequence[int],
    nodes: Sequence[NodeProto],
    types: Mapping[str, ValueInfoProto],
    weights: Mapping[str, TensorProto],
    read_outside: Collection[str],
    opsets: Mapping[str, int],
    implicit: Mapping[int, Iterable[str]] | None = None,
) -> ModelProto | None:
    """A group as a model; None if a value at its border has no tensor type.

    Args:
        group: positions, in order.
        nodes: of the graph.
        types: of values.
        weights: constants, which become the model's own.
        read_outside: values with other readers, including the outputs of the graph.
        opsets: versions by domain.
        implicit: values that nodes read in addition to their inputs, by position.
    """
    inside = [nodes[k] for k in group]
    made = {n for node in inside for n in node.output if n}
    reads = list(dict.fromkeys(n for k in group for n in (*nodes[k].input, *(implicit or {}).get(k, ())) if n))
    inputs = [n for n in reads if n not in made and n not in weights]
    gives = [n for node in inside for n in node.output if n in read_outside]
    if not gives or any(n not in types for n in (*inputs, *gives)):
        return None
    own = [weights[n] for n in reads if n in weights and n not in made]
    graph = helper.make_graph(inside, "group", [types[n] for n in inputs], [types[n] for n in gives], own)
    sets = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def takes_fewer_sizes(made: Manifest, declared: Iterable[ValueInfoProto]) -> bool:
    """Whether an artifact rejects sizes that its model may be run with.

    A build assumes that sizes which meet in an operator are equal; in ONNX, one of them may be 1 and broadcast, and
    onnxruntime does not compare sizes with the same name either.
    """
    free = [d for v in made.inputs for d in v.shape if not isinstance(d, int)]
    known = {d.name for d in made.dims if d.hi is None and d.divisible_by == 1 and d.lo <= 1}
    wanted = sum(not d.HasField("dim_value") for v in declared for d in v.type.tensor_type.shape.dim)
    return bool(made.constraints) or len(free) != wanted or len({str(d) for d in free} & known) != wanted
