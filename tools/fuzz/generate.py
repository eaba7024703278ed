"""Random valid ONNX graphs. Every node runs by an oracle as soon as it is made: a graph knows all of its values, and a node
that is not valid, or whose results are not finite, is not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator, default_rng
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from occ.compiler.ir.dtype import from_numpy
from tools.fuzz import inputs
from tools.fuzz.oracle import Reject, model_of, names_read, run_node

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
SMALL = (0, 1, 1, 1, 2, 3, 5, 7, 17)  # of single operators: remainders of vectors, and empty tensors
LARGEST = 40_000  # elements of a value
OPSETS = range(7, 26)
Fits = Callable[[np.ndarray], bool]


@dataclass
class Case:
    """A model, what it is run on, and what each of its values is by the oracle.

    Attributes:
        seed, profile: from which it is made again.
        model: the model; dims of inputs may be symbolic.
        feeds: its inputs.
        known: every value by its ONNX name.
        options: of all targets.
    """

    seed: int
    profile: str
    model: ModelProto
    feeds: dict[str, np.ndarray]
    known: dict[str, np.ndarray]
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def operators(self) -> Counter[str]:
        """The operators of the nodes."""
        return Counter(n.op_type for n in self.model.graph.node)


class Graph:
    """A graph that grows.

    Attributes:
        rng: decides.
        opset: of the default domain.
        values: all values so far, by name.
        outer: the graph around a sub-graph.
        alone: whether every operator has operands of its own, of few elements and of each type alike.
        options: of the case.
    """

    def __init__(self, rng: Generator, opset: int, outer: Graph | None = None, *, alone: bool = False) -> None:
        self.rng, self.opset, self.outer, self.alone = rng, opset, outer, alone
        self.values: dict[str, np.ndarray] = {} if outer is None else dict(outer.values)
        self.nodes: list[NodeProto] = []
        self.leaves: dict[str, str] = {}  # name -> input, initializer, or constant
        self.fixed: set[str] = set()  # inputs whose shape decides the rank of something
        self._names: Counter[str] = Counter() if outer is None else outer._names
        self.options: dict[str, str] = {}

    def fresh(self, hint: str) -> str:
        """A name that nothing has."""
        self._names[hint] += 1
        return f"{hint}{self._names[hint]}"

    def forget_names(self) -> None:
        """Take names that graphs which are made after this one may have, too."""
        self._names = Counter(self._names)

    def remember_names(self, inner: Graph) -> None:
        """Leave out names that a sub-graph has."""
        self._names.update(inner._names - self._names)

    def chance(self, p: float) -> bool:
        """True with a probability."""
        return bool(self.rng.random() < p)

    def choose(self, items: Sequence[Any]) -> Any:
        """One of some."""
        return items[int(self.rng.integers(len(items)))]

    def extent(self) -> int:
        """Of an axis; now and then nothing."""
        if self.alone:
            return self.choose(SMALL)
        return 0 if self.chance(0.004) else self.choose(EXTENTS)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A random shape that is not too large."""
        rank = (
            int(self.rng.choice([0, 1, 2, 3, 4, 5], p=[0.03, 0.15, 0.27, 0.25, 0.25, 0.05])) if rank is None else rank
        )
        made = tuple(self.extent() for _ in range(rank))
        return made if np.prod(made) <= LARGEST // 8 else self.shape(rank)

    def leaf(self, x: np.ndarray, constant: bool | None = None, hint: str = "x", *, fixed: bool = False) -> str:
        """An input, or a constant; in a sub-graph always a constant. No dim of it is symbolic if it is `fixed`."""
        if constant is None:
            constant = self.chance(0.02 if self.alone else 0.35)
        x = np.asarray(x)
        name = self.fresh("w" if constant else hint)
        inside = self.outer is not None
        kind = "input" if not constant and not inside else "constant" if self.chance(0.3) else "initializer"
        if kind == "constant":
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(x)))
        self.leaves[name], self.values[name] = kind, x
        if fixed:
            self.fixed.add(name)
        return name

    def new(
        self, dtype: Any, shape: tuple[int, ...], low: float = -9, high: float = 9, constant: bool | None = None, *,
        fixed: bool = False,
    ) -> str:  # fmt: skip
        """A leaf of random values within bounds."""
        return self.leaf(inputs.values(self.rng, np.dtype(dtype), shape, low, high), constant, fixed=fixed)

    def pick(self, fits: Fits, p: float = 0.85) -> str | None:
        """A value that is there already; later ones are more likely."""
        found = [] if self.alone else [n for n, x in self.values.items() if fits(x)]
        if not found or not self.chance(p):
            return None
        return found[-1 - min(int(self.rng.exponential(len(found) / 2.5)), len(found) - 1)]

    def into(self, name: str, low: float, high: float) -> str:
        """A value within bounds: the value itself, clipped if it is outside of them."""
        x = self.values[name]
        if inputs.within(x, low, high) or x.dtype.kind == "b":
            return name
        if self.chance(0.3) and inputs.is_float(x.dtype):
            name = self.add("Abs", [name])
        bounds = [self.leaf(np.array(b, x.dtype), True) for b in (max(low, 0) if x.dtype.kind == "u" else low, high)]
        if self.opset < 8 or (self.opset < 12 and not inputs.is_float(x.dtype)):
            raise Reject("Max and Min broadcast from 8 on, and take integers from 12 on")
        return self.add("Min", [self.add("Max", [name, bounds[0]]), bounds[1]])

    def schema(self, op: str, domain: str = "") -> onnx.defs.OpSchema:
        """Of an operator in the operator set of the graph."""
        try:
            found = onnx.defs.get_schema(op, self.opset, domain)
        except onnx.defs.SchemaError:
            raise Reject(f"no {op} in {self.opset}") from None
        if found.deprecated:
            raise Reject(f"{op} is deprecated in {self.opset}")
        return found

    def has(self, op: str) -> bool:
        """Whether the operator set has an operator."""
        try:
            self.schema(op)
        except Reject:
            return False
        return True

    def add(self, op: str, operands: Sequence[str], **given: Any) -> str:
        """A node of one result that is read."""
        return self.node(op, operands, **given)[0]

    def node(self, op: str, operands: Sequence[str], *, results: int = 1, **given: Any) -> list[str]:
        """A node. What is `given` becomes an attribute or an operand, as the operator set has it; None is left out.

        Raises:
            Reject: it is not valid, or a result is not finite or too large.
        """
        schema = self.schema(op)
        reads, attrs = list(operands), {}
        places = {i.name: k for k, i in enumerate(schema.inputs)}
        for name, value in given.items():
            if value is None:
                continue
            if name in schema.attributes:
                attrs[name] = value.tolist() if isinstance(value, np.ndarray) else value
            elif name in places:
                x = np.asarray(value, None if isinstance(value, np.ndarray) else np.int64)
                made = self.leaf(x, not self.chance(0.06), hint="s", fixed=True)
                reads += [""] * (places[name] + 1 - len(reads))
                reads[places[name]] = made
        made = helper.make_node(op, reads, [self.fresh("v") for _ in range(results)], **attrs)
        return self.keep(made)

    def keep(self, node: NodeProto, *, wild: bool = False) -> list[str]:
        """Run a node, and keep it if its results are tame; those that are `wild` may have any values."""
        read = names_read([node])
        found = run_node(node, {n: self.values[n] for n in read}, self.opset)
        for x in found:
            if not isinstance(x, np.ndarray) or x.size > LARGEST or not (wild or inputs.is_tame(x)):
                raise Reject("not tame")
        if node.op_type in ("Cast", "CastLike") and not inputs.fits_into(self.values[node.input[0]], found[0].dtype):
            raise Reject("out of range")
        self.nodes.append(node)
        made = [name for name in node.output if name]
        self.values |= dict(zip(made, found, strict=True))
        return made

    def outputs(self) -> list[str]:
        """What nothing reads, and now and then something that is read too."""
        read = set(names_read(self.nodes)) | {i for n in self.nodes for i in names_read([n])}
        made = [o for n in self.nodes if n.op_type != "Constant" for o in n.output if o]
        found = [n for n in made if n not in read or self.chance(0.1)]
        return found if self.alone else found[-8:]

    def subgraph(self, yields: Sequence[str], formal: Sequence[ValueInfoProto] = (), name: str = "g") -> GraphProto:
        """The graph as the attribute of a control operator."""
        data = [numpy_helper.from_array(self.values[n], n) for n, k in self.leaves.items() if k == "initializer"]
        outputs = [helper.make_tensor_value_info(n, from_numpy(self.values[n].dtype).onnx, None) for n in yields]
        return helper.make_graph(self.nodes, name, list(formal), outputs, data)


@dataclass(frozen=True)
class Profile:
    """What graphs are made of.

    Attributes:
        weights: of operators; those that are not listed have the weight `rest`.
        rest: weight of all other operators.
        nodes: most nodes of a graph.
        alone: no operator reads what another one makes.
    """

    weights: dict[str, float] = field(default_factory=dict)
    rest: float = 1.0
    nodes: int = 12
    alone: bool = False


def generate(
    seed: int, name: str, profile: Profile, makers: dict[str, Any], steer: dict[str, float] | None = None
) -> Case:
    """The graph of a seed.

    Args:
        seed: of all choices.
        name: of the profile.
        profile: weights of operators.
        makers: what adds a node of an operator to a graph.
        steer: factors for the weights.
    """
    rng = default_rng([seed, 13])
    graph = Graph(rng, int(rng.choice(list(OPSETS[:-5]) + list(OPSETS[-5:]) * 3)), alone=profile.alone)
    known = [n for n in makers if "." not in n or n in profile.weights]  # those of a suite are its profile's alone
    names = [n for n in known if not n[0].isupper() or graph.has(n)]
    weights = np.array([profile.weights.get(n, profile.rest) * (steer or {}).get(n, 1.0) for n in names])
    wanted = min(1 + int(rng.exponential(profile.nodes / 2)), 40)
    for _ in range(4 * wanted + 20):
        if sum(n.op_type != "Constant" for n in graph.nodes) >= wanted:
            break
        op = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        attempt(graph, makers[op], op)
    return assemble(seed, name, graph)


def attempt(graph: Graph, maker: Callable[[Graph, str], Any], op: str) -> bool:
    """Add a node by a maker; what it made before it was rejected stays, as far as it is whole."""
    try:
        maker(graph, op)
    except Reject:
        return False
    return True


def assemble(seed: int, name: str, g: Graph) -> Case:
    """The model of a graph; dims of its inputs are fixed, or symbolic with one name an axis or one an extent."""
    outputs = g.outputs()
    if not outputs:
        outputs = [g.add("Identity", [g.new(np.float32, (2, 3), constant=False)])]
    nodes = _needed(g.nodes, outputs)
    read = set(names_read(nodes)) | {i for n in nodes for i in n.input} | set(outputs)
    # Two names for one extent need not be distinguished; one name for several says nothing, and one element may be an extent like others.
    symbolic = g.choose(["", "", "", "apart", "apart", "alike", "some", "ones", "shared"])
    name_nodes(nodes, g.choose([None, None, None, "node", "a/b c"]))
    infos = []
    feeds = {n: g.values[n] for n, k in g.leaves.items() if k == "input" and n in read}
    for n, x in feeds.items():
        dims = [*x.shape] if n in g.fixed else [_dim(g, symbolic, n, k, e) for k, e in enumerate(x.shape)]
        infos.append(helper.make_tensor_value_info(n, from_numpy(x.dtype).onnx, dims))
    data = [numpy_helper.from_array(g.values[n], n) for n, k in g.leaves.items() if k == "initializer" and n in read]
    ends = [helper.make_tensor_value_info(n, from_numpy(g.values[n].dtype).onnx, None) for n in outputs]
    graph = helper.make_graph(nodes, f"{name}{seed}", infos, ends, data)
    return Case(seed, name, model_of(graph, g.opset), feeds, g.values, g.options)


def name_nodes(nodes: Sequence[NodeProto], name: str | None) -> None:
    """Give all nodes one name, those of sub-graphs too, as files may have."""
    for n in nodes if name is not None else ():
        n.name = name or ""
        for a in n.attribute:
            name_nodes(a.g.node, name)


def _dim(g: Graph, symbolic: str, name: str, axis: int, extent: int) -> int | str:
    """How an axis of an input is declared. One element may be there to be broadcast, which a name says nothing of."""
    if symbolic == "shared":
        return "unk"
    if not symbolic or (extent == 1 and symbolic != "ones") or (symbolic == "some" and g.chance(0.6)):
        return extent
    return f"n{extent}" if symbolic == "alike" else f"{name}_{axis}"


def _needed(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    needed, kept = set(outputs), list[NodeProto]()
    for n in reversed(nodes):
        if needed & set(n.output):
            kept.append(n)
            needed |= set(names_read([n]))
    return kept[::-1]
