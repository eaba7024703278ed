"""Builds networks with random weights, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

OPSET = 17
Extent = int | str


class Net:
    """A network under construction; values are known by their names, image values with their channels."""

    def __init__(self, name: str) -> None:
        self.name, self.nodes, self.weights = name, list[onnx.NodeProto](), list[onnx.TensorProto]()
        self.rng = np.random.default_rng(0)
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def op(self, kind: str, *inputs: str, results: int = 1, **attributes: Any) -> Any:
        """A node; returns the name of its result, or of several."""
        made = [f"{kind.lower()}{len(self.nodes)}_{k}" for k in range(results)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, **attributes))
        return made[0] if results == 1 else made

    def weight(self, *shape: int) -> str:
        data = self.rng.standard_normal(shape, dtype=np.float32) / np.float32(max(np.prod(shape[1:]), 1)) ** 0.5
        return self.constant(data.astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def conv(
        self, x: str, channels: int, filters: int, size: int = 1, stride: int = 1, act: str = "", group: int = 1,
        bias: bool = True,
    ) -> str:  # fmt: skip
        """A convolution that keeps the extents except for its stride, and what follows it."""
        w = [self.weight(filters, channels // group, size, size), *([self.weight(filters)] if bias else [])]
        y = self.op("Conv", x, *w, pads=[size // 2] * 4, strides=[stride] * 2, kernel_shape=[size] * 2, group=group)
        return self.act(y, act)

    def act(self, x: str, kind: str) -> str:
        match kind:
            case "":
                return x
            case "silu":
                return self.op("Mul", x, self.op("Sigmoid", x))
            case "gelu of transformers":
                half, root, one = (self.constant(np.float32(c)) for c in (0.5, 2**0.5, 1))
                e = self.op("Add", self.op("Erf", self.op("Div", x, root)), one)
                return self.op("Mul", x, self.op("Mul", half, e))
            case "relu6":
                return self.op("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))
            case "hardsigmoid":  # with the slope of PyTorch and Paddle
                return self.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
            case "hardswish":  # in pieces, as Paddle and older PyTorch write it
                three, low, high = (self.constant(np.float32(c)) for c in (3, 0, 6))
                gate = self.op("Clip", self.op("Add", x, three), low, high)
                return self.op("Div", self.op("Mul", x, gate), high)
            case "gelu":
                root, one, half = (self.constant(np.float32(c)) for c in (2**0.5, 1, 0.5))
                e = self.op("Add", self.op("Erf", self.op("Div", x, root)), one)
                return self.op("Mul", self.op("Mul", x, e), half)
            case _:
                return self.op(kind, x)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def input(self, name: str, *shape: Extent, ints: bool = False) -> str:
        """An input of the network, of floats or 64-bit integers."""
        kind = TensorProto.INT64 if ints else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, kind: int = TensorProto.FLOAT) -> None:
        """Make a value an output."""
        self.outputs.append(helper.make_tensor_value_info(name, kind, None))

    def model(self) -> onnx.ModelProto:
        """The network as a model."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        return shape_inference.infer_shapes(made, strict_mode=True)
