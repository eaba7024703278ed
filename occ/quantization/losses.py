"""The quantisation loss of each node by itself: its quantised result for original operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from occ.analysis.onnx_graph import exposed, reads, value_types
from occ.quantization.prepare import is_coded
from occ.runtime.dataclass import dataclass

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Loss:
    """The loss of a single node.

    Attributes:
        node: its name.
        type: its operator.
        error: root mean square of the difference, relative to that of the original result.
        weights: bytes of its float weights, the cost of leaving it unquantised.
    """

    node: str
    type: str
    error: float
    weights: int

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def losses(floats: ModelProto, codes: ModelProto, inputs: Arrays) -> list[Loss]:
    """The quantised nodes, largest loss first.

    Args:
        floats: the original model, with its weights inside.
        codes: its quantised form, with corresponding values under the same names.
        inputs: of a typical run, by name.

    Raises:
        ImportError: onnxruntime, which runs both, is not installed.
    """
    pairs = list(replaced(floats, codes))
    wanted = {n for _, part in pairs for n in (part.value, *part.needed)}
    own = {v.name for v in floats.graph.input}
    values = _run(exposed(floats, sorted(wanted - own)), sorted(wanted - own), inputs) | dict(inputs)
    types = value_types(floats)
    sizes = {t.name: _bytes(t.dims, t.data_type) for t in floats.graph.initializer}
    made: list[Loss] = []
    for node, part in pairs:
        expected = values[part.value]
        got = _run(part.model(codes, types), [part.result], {n: values[n] for n in part.needed})[part.result]
        scale = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) if expected.size else 0.0
        gap = float(np.sqrt(np.mean(np.square(np.subtract(got, expected, dtype=np.float64))))) if expected.size else 0.0
        made.append(Loss(node.name, node.op_type, gap / (scale or 1.0), sum(sizes.get(n, 0) for n in node.input)))
    return sorted(made, key=lambda one: -one.error)


def _bytes(dims: Any, data_type: int) -> int:
    return int(np.prod(tuple(dims), dtype=np.int64)) * helper.tensor_dtype_to_np_dtype(data_type).itemsize


@dataclass(frozen=True)
class _Part:
    """The nodes of a quantised model that compute the result of an original node.

    Attributes:
        nodes: in order.
        needed: values of the original model that they read.
        value: their result, by its name in the original model.
        result: the same in the quantised model, after quantisation if it is quantised.
    """

    nodes: tuple[NodeProto, ...]
    needed: tuple[str, ...]
    value: str
    result: str

    def model(self, codes: ModelProto, types: Mapping[str, ValueInfoProto]) -> ModelProto:
        """The part as a separate model."""
        read = {n for node in self.nodes for n in reads(node)}
        weights = [t for t in codes.graph.initializer if t.name in read]
        inputs = [types[n] for n in self.needed]
        graph = helper.make_graph(self.nodes, "part", inputs, [ValueInfoProto(name=self.result)], initializer=weights)
        return helper.make_model(graph, ir_version=codes.ir_version, opset_imports=codes.opset_import)


def replaced(floats: ModelProto, codes: ModelProto) -> Iterator[tuple[NodeProto, _Part]]:
    """The original nodes whose result is computed differently in a quantised model, with those nodes."""
    graph = _Codes.of(floats, codes)
    by_name = {node.name: node for node in floats.graph.node}
    for node in floats.graph.node:
        result = next((o for o in node.output if o), "")
        if result not in graph.makers:
            continue
        part = graph.part(result)
        same = [by_name[n.name] for n in part.nodes if n.name in by_name and n.op_type == by_name[n.name].op_type]
        if not any(is_coded(n) for n in part.nodes):
            continue
        # An activation implied by saturation is gone, and the preceding node computes its result.
        yield (node if node in same or not same else same[-1]), part


@dataclass(frozen=True)
class _Codes:
    """A quantised model as a graph.

    Attributes:
        nodes: in order.
        makers: by their results.
        pairs: the result of the DequantizeLinear that follows a QuantizeLinear of a value, by the name of the value.
        known: values that the original model has too.
    """

    nodes: tuple[NodeProto, ...]
    makers: dict[str, NodeProto]
    pairs: dict[str, str]
    known: frozenset[str]

    @classmethod
    def of(cls, floats: ModelProto, codes: ModelProto) -> _Codes:
        nodes = tuple(codes.graph.node)
        back = {n.input[0]: n.output[0] for n in nodes if n.op_type == "DequantizeLinear"}
        pairs = {n.input[0]: back[n.output[0]] for n in nodes if n.op_type == "QuantizeLinear" and n.output[0] in back}
        known = {v.name for v in floats.graph.input} | {o for node in floats.graph.node for o in node.output if o}
        return cls(nodes, {o: node for node in nodes for o in node.output if o}, pairs, frozenset(known))

    def part(self, value: str) -> _Part:
        """The nodes that compute a value from others of the original model, and its codes."""
        result = self.pairs.get(value, value)
        taken: set[int] = set()
        needed: list[str] = []
        waiting = [result]
        while waiting:
            name = waiting.pop()
            if name in self.known and name not in (value, result):
                needed.append(name)
            elif (maker := self.makers.get(name)) is not None and id(maker) not in taken:
                taken.add(id(maker))
                waiting += reads(maker)
        return _Part(tuple(n for n in self.nodes if id(n) in taken), tuple(dict.fromkeys(needed)), value, result)


def _run(model: ModelProto, names: list[str], inputs: Arrays) -> dict[str, np.ndarray]:
    """Run a model unchanged, in onnxruntime without its optimiser."""
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return dict(zip(names, session.run(names, {n: x for n, x in inputs.items() if n in wanted}), strict=True))
