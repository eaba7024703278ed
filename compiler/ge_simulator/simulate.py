"""Runs a graph with numpy, and checks every result against its description in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from occ.compiler.ge_simulator import (
    compute,
    data,
    data_dependent,
    fused,
    normalization,
    quantised,
    recurrent,
    reductions,
    sampling,
    window,
)
from occ.compiler.ge_simulator.limits import beyond
from occ.compiler.ge_simulator.precision import Computed, Precision
from occ.compiler.ge_simulator.reader import BadGraph, Graph, Node, NoKernel, NotSimulated, Tensor, read

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]
Step = tuple[Node, list[np.ndarray]]  # a node and its results
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_LONGEST_LOOP = 100_000
_MOST_TOLD = 4  # of the nodes that a chip cannot run


@cache
def kernels() -> Mapping[str, Kernel]:
    """Simulators by operator type: functions of a node and its operands (None where absent)."""
    table: dict[str, Kernel] = {}
    for family in (
        compute,
        normalization,
        window,
        reductions,
        data,
        sampling,
        quantised,
        fused,
        data_dependent,
        recurrent,
    ):
        table |= family.KERNELS
    return MappingProxyType(table)


class Simulator:
    """A graph ready to run.

    Args:
        air: contents of the `.air` file.
        files: contents of the files that it refers to.
        precision: the precision mode and the chip.

    Raises:
        BadGraph: GE would not load it; NotSimulated: an operator is not supported here; NoKernel: the chip lacks a
            kernel for a node, or a node exceeds its limits.
    """

    def __init__(
        self, air: bytes, files: Mapping[str, bytes] | None = None, precision: Precision | None = None
    ) -> None:
        self.graphs = read(air, files)
        self.root = next(iter(self.graphs.values()))
        self.precision = precision or Precision()
        unknown = {n.type for g in self.graphs.values() for n in g.nodes} - set(kernels()) - _STRUCTURE
        if unknown:
            raise NotSimulated(f"the simulator does not implement {', '.join(sorted(unknown))}")
        for g in self.graphs.values():
            quantised.take_offsets(g)
        self.computed = self.types()

    def types(self) -> dict[Node, Computed]:
        """The types in which each node is computed, with its current attributes.

        Raises:
            NoKernel: the chip lacks a kernel for a node, or a node exceeds its limits.
        """
        found: dict[Node, Computed] = {}
        refused: list[str] = []
        for node in (n for g in self.graphs.values() for n in g.nodes if n.type not in _STRUCTURE):
            refused += beyond(node, self.precision.chip)
            try:
                found[node] = self.precision.computed(node)
            except NoKernel as e:
                refused.append(str(e))
        if refused:
            more = f"; and {len(refused) - _MOST_TOLD} more" if len(refused) > _MOST_TOLD else ""
            mode = self.precision.mode
            raise NoKernel(f"with precision mode `{mode}`: {'; '.join(refused[:_MOST_TOLD])}{more}")
        return found

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of the root graph for an array per Data node.

        Raises:
            BadGraph: an input, or the result of a node, is not what the graph states.
        """
        with np.errstate(all="ignore"):
            return self._graph(self.root, inputs)

    def steps(self, inputs: Sequence[np.ndarray]) -> Iterator[Step]:
        """Run the root graph node by node: each with its results, in execution order; see `run`."""
        return self._steps(self.root, inputs, {})

    def _graph(self, g: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        env: dict[tuple[str, int], np.ndarray] = {}
        for _ in self._steps(g, inputs, env):
            pass
        return [env[e] for e in g.outputs]

    def _steps(self, g: Graph, inputs: Sequence[np.ndarray], env: dict[tuple[str, int], np.ndarray]) -> Iterator[Step]:
        """Run a graph; `env` holds values that are still needed, and at the end the outputs."""
        if len(inputs) != len(g.data):
            raise BadGraph(f"{g.name} takes {len(g.data)} inputs, not {len(inputs)}")
        last = {e: n for n in g.nodes for e in n.inputs if e is not None}
        kept = set(g.outputs)
        for node, x in zip(g.data, inputs, strict=True):
            env[node.name, 0] = self._checked(node, node.output_descs[0], np.asarray(x))
        for node in g.nodes:
            if node.type in ("Data", "NetOutput"):
                continue
            made = self._node(node, env)
            for k, value in enumerate(made):
                env[node.name, k] = value
            for e in node.inputs:
                if e is not None and last[e] is node and e not in kept:
                    env.pop(e, None)
            yield node, made

    def _node(self, node: Node, env: Mapping[tuple[str, int], np.ndarray]) -> list[np.ndarray]:
        if node.type in ("Const", "Constant", "FileConstant"):
            return [node.attrs["value"]]
        given = [None if e is None else env[e] for e in node.inputs]
        for x, desc in zip(given, node.input_descs, strict=True):
            if x is not None and desc.dtype is not None and (x.dtype != desc.dtype or not _fits(x.shape, desc.shape)):
                found = f"{x.dtype}{list(x.shape)}"
                raise BadGraph(f"{node.name}: `{desc.name}` of {node.type} is {found}, described as {desc}")
        if node.type in ("If", "StatelessIf", "While", "StatelessWhile"):
            made = self._control(node, [x for x in given if x is not None])
        else:
            to = self.computed[node].operands
            operands = [None if x is None else self.precision.rounded(_wide(x), to) for x in given]
            made = kernels()[node.type](node, operands)
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        if len(results) < len(node.output_descs):
            raise BadGraph(f"{node.name}: {node.type} returned {len(results)} results")
        return [self._stored(node, d, r) for d, r in zip(node.output_descs, results, strict=False)]

    def _stored(self, node: Node, desc: Tensor, value: Any) -> np.ndarray:
        array = np.asarray(value)
        if desc.dtype in _NARROW and array.dtype == np.float32:
            array = array.astype(desc.dtype)
        computed = self.computed.get(node, Computed())
        return self._checked(node, desc, self.precision.rounded(array, computed.results))

    def _checked(self, node: Node, desc: Tensor, x: np.ndarray) -> np.ndarray:
        if x.dtype != desc.dtype or not _fits(x.shape, desc.shape):
            raise BadGraph(f"{node.name}: {node.type} returned {x.dtype}{list(x.shape)}, described as {desc}")
        return x

    def _control(self, node: Node, given: list[np.ndarray]) -> list[np.ndarray]:
        first, second = (self.graphs[s] for s in node.subgraphs)
        if "If" in node.type:
            cond, *rest = given
            branch = first if bool(cond.reshape(-1)[0]) else second
            return self._graph(branch, rest)
        for _ in range(_LONGEST_LOOP):
            if not bool(self._graph(first, given)[0].reshape(-1)[0]):
                return given
            given = self._graph(second, given)
        raise BadGraph(f"{node.name}: the loop does not end")


_STRUCTURE = {"Data", "NetOutput", "Const", "Constant", "FileConstant", "If", "StatelessIf", "While", "StatelessWhile"}


def _wide(x: np.ndarray) -> np.ndarray:
    """Half precision is computed in single precision and rounded when it is stored."""
    return x.astype(np.float32) if x.dtype in _NARROW else x


def _fits(shape: tuple[int, ...], described: tuple[int, ...]) -> bool:
    if described == (-2,):
        return True
    return len(shape) == len(described) and all(d in (-1, n) for n, d in zip(shape, described, strict=True))
