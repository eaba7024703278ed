"""Random graphs of large sizes, which grow by what onnx.shape_inference says of each node; nothing holds their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator, default_rng
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

LARGEST = 2**31  # elements of most values
OPSET = 21
EXTENTS = (1, 1, 2, 3, 7, 16, 33, 255, 1000, 4096, 46_341, 65_536, 99_991, 2**20, 2**24 - 3, 2**30, 2**31 - 1, 2**31)
_FLOAT = TensorProto.FLOAT


class Reject(Exception):
    """A node does not fit, or inference does not say what shape it has."""


@dataclass
class Large:
    """A graph that grows by what onnx.shape_inference says of each node.

    Attributes:
        rng: decides.
        shapes: of all values in f32, by name.
    """

    rng: Generator
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def choose(self, items: Sequence[Any]) -> Any:
        """One of some."""
        return items[int(self.rng.integers(len(items)))]

    def number(self, low: int, high: int) -> int:
        """A number from low to high."""
        return int(self.rng.integers(low, high + 1))

    def new(self, shape: Sequence[int]) -> str:
        """An input."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.shapes[name] = tuple(shape)
        return name

    def operand(self, rank: int | None = None) -> str:
        """A value that is there, or an input of large extents."""
        fit = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        if fit and self.rng.random() < 0.7:
            return self.choose(fit[-4:])
        count = self.number(1, 4) if rank is None else rank
        for _ in range(30):
            shape = [self.choose(EXTENTS) for _ in range(count)]
            if prod(shape) <= LARGEST:
                return self.new(shape)
        return self.new([2] * count)

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """An initialiser of few elements."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(values, dtype)
        return name

    def add(self, op: str, reads: Sequence[str], results: int = 1, **attrs: Any) -> None:
        """A node, whose results have the shapes that onnx.shape_inference gives them.

        Raises:
            Reject: it gives none, or one of too many elements.
        """
        names = [f"v{len(self.nodes)}_{k}" for k in range(results)]
        self.nodes.append(helper.make_node(op, reads, names, **attrs))
        try:
            found = inferred(self.model(names))
            for o in found.graph.output:
                shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in o.type.tensor_type.shape.dim)
                if not o.type.tensor_type.HasField("shape") or min(shape, default=1) < 1 or prod(shape) > 4 * LARGEST:
                    raise Reject(f"{op} gives {shape}")
                if o.type.tensor_type.elem_type == _FLOAT:
                    self.shapes[o.name] = shape
        except Exception as e:
            self.nodes.pop()
            raise Reject(str(e)) from None

    def model(self, outputs: Sequence[str], *, symbolic: bool = False) -> ModelProto:
        """The graph so far; all that one node makes and no other reads is an output unless outputs are named."""

        def shown(name: str) -> list[int | str]:
            return [f"{name}_{k}" if symbolic and n > 1 else n for k, n in enumerate(self.shapes[name])]

        ends = [helper.make_tensor_value_info(n, _FLOAT, shown(n)) for n in self.inputs]
        data = [numpy_helper.from_array(x, n) for n, x in self.constants.items()]
        made = [helper.make_empty_tensor_value_info(n) for n in outputs]
        graph = helper.make_graph(self.nodes, "large", ends, made, data)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def ends(self) -> list[str]:
        """Values that no node reads."""
        read = {n for node in self.nodes for n in node.input}
        return [o for node in self.nodes for o in node.output if o not in read]


def _elementwise(g: Large) -> None:
    g.add(g.choose(["Relu", "Neg", "Sigmoid", "Identity", "Softmax", "LogSoftmax", "Hardmax"]), [g.operand()])


def _broadcast(g: Large) -> None:
    x = g.operand()
    other = [n if g.rng.random() < 0.5 else 1 for n in g.shapes[x]][g.number(0, 1) :]
    g.add(g.choose(["Add", "Mul", "Max", "PRelu"]), [x, g.new(other)])


def _transpose(g: Large) -> None:
    x = g.operand()
    g.add("Transpose", [x], perm=g.rng.permutation(len(g.shapes[x])).tolist())


def _reshape(g: Large) -> None:
    x = g.operand()
    shape = list(g.shapes[x])
    k = g.number(0, len(shape) - 1)
    by = g.choose([n for n in (2, 3, 7, 16, 255, 1000, 4096) if shape[k] % n == 0] or [1])
    wanted = (
        [*shape[:k], shape[k] // by, by, *shape[k + 1 :]]
        if g.rng.random() < 0.5
        else [prod(shape[: k + 1]), *shape[k + 1 :]]
    )
    if g.rng.random() < 0.5:
        wanted[g.number(0, len(wanted) - 1)] = -1
    g.add("Reshape", [x, g.constant(wanted)])


def _views(g: Large) -> None:
    x = g.operand()
    op = g.choose(["Flatten", "Unsqueeze", "Squeeze"])
    if op == "Flatten":
        g.add(op, [x], axis=g.number(0, len(g.shapes[x])))
    else:
        ones = [k for k, n in enumerate(g.shapes[x]) if n == 1]
        g.add(op, [x, g.constant([g.choose(ones or [0]) if op == "Squeeze" else g.number(0, len(g.shapes[x]))])])


def _concat(g: Large) -> None:
    x = g.operand()
    k = g.number(0, len(g.shapes[x]) - 1)
    others = [
        [g.choose(EXTENTS[:14]) if a == k else n for a, n in enumerate(g.shapes[x])] for _ in range(g.number(1, 2))
    ]
    g.add("Concat", [x, *map(g.new, others)], axis=k - len(g.shapes[x]) if g.rng.random() < 0.3 else k)


def _split(g: Large) -> None:
    x = g.operand()
    k = g.number(0, len(g.shapes[x]) - 1)
    n = g.shapes[x][k]
    if n > 2 and g.rng.random() < 0.5:
        first = g.number(1, n - 1)
        g.add("Split", [x, g.constant([first, n - first])], 2, axis=k)
    else:
        g.add("Split", [x], parts := min(n, g.number(1, 3)), axis=k, num_outputs=parts)


def _slice(g: Large) -> None:
    x = g.operand()
    k = g.number(0, len(g.shapes[x]) - 1)
    n = g.shapes[x][k]
    start, end = sorted((g.number(0, n), g.number(0, n)))
    step = g.choose([1, 2, 3, 1000, 2**31 - 1, 2**31])
    bounds = (
        (start, g.choose([end, 2**63 - 1]), step)
        if g.rng.random() < 0.7
        else (end - 1, g.choose([start, -(2**63)]), -step)
    )
    g.add("Slice", [x, *(g.constant([v]) for v in (bounds[0], bounds[1], k, bounds[2]))])


def _pad(g: Large) -> None:
    x = g.operand()
    room = LARGEST // max(prod(g.shapes[x]), 1)
    pads = [g.choose([0, 0, 1, 1000, 2**20]) if room > 1 else g.number(0, 1) for _ in range(2 * len(g.shapes[x]))]
    g.add("Pad", [x, g.constant(pads)], mode=g.choose(["constant", "edge", "wrap"]))


def _expand(g: Large) -> None:
    x = g.operand()
    wanted = [g.choose(EXTENTS) if n == 1 else n for n in g.shapes[x]]
    g.add(
        g.choose(["Expand", "Expand", "Tile"]),
        [x, g.constant(wanted if g.rng.random() < 0.8 else [g.choose([1, 2, 5]) for _ in wanted])],
    )


def _gather(g: Large) -> None:
    x = g.operand()
    shape = [g.number(1, 5)] if g.rng.random() < 0.6 else []
    g.add("Gather", [x, g.constant(np.zeros(shape, np.int64))], axis=g.number(0, len(g.shapes[x]) - 1))


def _window(g: Large) -> None:
    """Convolutions and pools of pictures of a large height."""
    x = g.operand(4)
    channels, taps = g.shapes[x][1], [g.choose([1, 2, 3, 7, 255]) for _ in range(2)]
    how = {"strides": [g.choose([1, 2, 16, 1000]) for _ in range(2)], "dilations": [g.choose([1, 2, 255]) for _ in range(2)],
           "pads": [g.choose([0, 1]) for _ in range(4)]}  # fmt: skip
    spans = [d * (n - 1) + 1 for n, d in zip(taps, how["dilations"], strict=True)]
    if any(n < span for n, span in zip(g.shapes[x][2:], spans, strict=True)):
        raise Reject(
            "of a window that is larger by less than a stride, onnxruntime has one element; symbolic ones are refused"
        )
    op = g.choose(["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"])
    if op in ("Conv", "ConvTranspose"):
        group = g.choose([1, channels])
        rows = [g.choose([1, 2, 16]) * group, channels // group]
        g.add(op, [x, g.new([*(rows if op == "Conv" else [channels, rows[0] // group]), *taps])], group=group, **how)
    else:
        how["pads"] = [min(p, taps[k % 2] - 1) for k, p in enumerate(how["pads"])]
        g.add(op, [x], kernel_shape=taps, **how, **({"ceil_mode": g.number(0, 1)} if op != "LpPool" else {}))


def _blocks(g: Large) -> None:
    g.add(g.choose(["DepthToSpace", "SpaceToDepth"]), [g.operand(4)], blocksize=g.choose([1, 2, 3, 16]))


def _resize(g: Large) -> None:
    """By factors that are no binary fractions only where 24 bits count the elements: the oracles multiply in f32."""
    x = g.operand()
    if g.rng.random() < 0.5:
        short = max(g.shapes[x]) < 2**20
        factors = [g.choose([1, 2, 0.5, 1000, *([0.4, 1 / 3] if short else [])]) for _ in g.shapes[x]]
        g.add("Resize", [x, "", g.constant(factors, np.float32)], mode="nearest")
    else:
        sizes = [g.choose(EXTENTS[:12]) for _ in g.shapes[x]]
        g.add("Resize", [x, "", "", g.constant(sizes)], mode=g.choose(["nearest", "linear"]))


def _product(g: Large) -> None:
    x = g.operand()
    g.add("MatMul", [x, g.new([g.shapes[x][-1], g.choose(EXTENTS[:12])])])


def _reduced(g: Large) -> None:
    x = g.operand()
    op = g.choose(["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ArgMax", "GlobalAveragePool", "CumSum", "TopK"])
    k = g.number(0, len(g.shapes[x]) - 1)
    if op == "GlobalAveragePool":
        g.add(op, [g.operand(4)])
    elif op == "ArgMax":
        g.add(op, [x], axis=k, keepdims=g.number(0, 1))
    elif op == "CumSum":
        g.add(op, [x, g.constant(k)])
    elif op == "TopK":
        g.add(op, [x, g.constant([g.number(1, g.shapes[x][k])])], 2, axis=k)
    else:
        g.add(op, [x, g.constant([k])], keepdims=g.number(0, 1))


def _normalised(g: Large) -> None:
    x = g.operand(3)
    width = g.shapes[x][-1]
    if g.rng.random() < 0.5:
        g.add("LayerNormalization", [x, g.new([width]), g.new([width])])
    else:
        g.add("InstanceNormalization", [x, g.new([g.shapes[x][1]]), g.new([g.shapes[x][1]])])


def _recurrent(g: Large) -> None:
    x, hidden = g.operand(3), g.choose([1, 3, 16])
    width = g.shapes[x][2]
    g.add("GRU", [x, g.new([1, 3 * hidden, width]), g.new([1, 3 * hidden, hidden])], 2, hidden_size=hidden)


def _filled(g: Large) -> None:
    """Tensors of a constant size that no operand has."""
    op = g.choose(["ConstantOfShape", "Range", "OneHot", "computed"])
    n = g.choose(EXTENTS)
    if op == "ConstantOfShape":
        g.add(op, [g.constant([n, g.choose([1, 2])])])
    elif op == "Range":
        g.add(op, [g.constant(v, np.float32) for v in (0, float(min(n, 2**24)), 1)])
    elif op == "OneHot":
        g.add(op, [g.constant([0, 5]), g.constant([n]), g.constant([0, 1], np.float32)], axis=-1)
    else:
        x = g.operand(2)
        g.add("Shape", [x])
        g.add("ReduceProd", [g.nodes[-1].output[0], g.constant([0])])
        g.add("Reshape", [x, g.nodes[-1].output[0]])


MAKERS: tuple[Callable[[Large], None], ...] = (
    _elementwise, _broadcast, _transpose, _reshape, _views, _concat, _split, _slice, _pad, _expand, _gather, _window, _blocks,
    _resize, _product, _reduced, _normalised, _recurrent, _filled,
)  # fmt: skip


def inferred(model: ModelProto) -> ModelProto:
    """The model with shapes. What onnx propagates of data walks over the elements that a Slice takes, with steps that overflow."""
    operators = {n.op_type for n in model.graph.node}
    return onnx.shape_inference.infer_shapes(
        model, check_type=True, strict_mode=True, data_prop="Shape" in operators and "Slice" not in operators
    )


def large(seed: int) -> Large:
    """The graph of a seed: 1 to 8 nodes."""
    g = Large(default_rng([seed, 31]))
    wanted = g.number(1, 8)
    for _ in range(60):
        if len(g.nodes) >= wanted:
            break
        before = len(g.inputs), len(g.constants), len(g.nodes), dict(g.shapes)
        try:
            g.choose(MAKERS)(g)
        except (Reject, ValueError, IndexError):  # a value without axes, for one
            del g.inputs[before[0] :], g.nodes[before[2] :]
            g.shapes = before[3]
            for name in list(g.constants)[before[1] :]:
                del g.constants[name]
    return g
