"""Products of quantised tensors: codes of onnxruntime, for models in QDQ form, on every target.

onnxruntime turns the groups into operators on integers; so does `use-integers`. All codes must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import occ

TARGETS = ("interp", "cpu-jit", "cpu")
Array = np.ndarray


@dataclass
class Graph:
    """A model under construction: each method appends nodes and returns the name of a value."""

    seed: int = 0
    kind: Any = np.uint8  # of activations
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def node(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attrs))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def point(self, zero: int | None = None) -> int:
        info = np.iinfo(self.kind)
        return int(self.rng.integers(info.min, info.max)) if zero is None else zero

    def quantised(self, x: str, scale: float, zero: int) -> str:
        return self.node("QuantizeLinear", x, self.constant(scale), self.constant(zero, self.kind))

    def coded(self, x: str, scale: float, zero: int) -> str:
        """`x` through codes and back."""
        codes = self.quantised(x, scale, zero)
        return self.node("DequantizeLinear", codes, self.constant(scale), self.constant(zero, self.kind))

    def filter(self, shape: Sequence[int], axis: int | None, kind: Any = np.int8) -> tuple[str, Array]:
        """A weight in codes, per tensor or along an axis, and its scales."""
        info = np.iinfo(kind)
        codes = self.rng.integers(info.min + 1, info.max + 1, shape)
        scales = self.rng.uniform(0.001, 0.01, () if axis is None else shape[axis]).astype(np.float32)
        zero = np.zeros(scales.shape) if kind is np.int8 else np.full(scales.shape, 121)
        attrs = {} if axis is None else {"axis": axis}
        operands = self.constant(codes, kind), self.constant(scales), self.constant(zero, kind)
        return self.node("DequantizeLinear", *operands, **attrs), scales

    def bias(self, scales: Array, by: float, n: int) -> str:
        codes = self.rng.integers(-9000, 9000, n)
        step = np.broadcast_to(np.float32(by) * scales, (n,) if scales.ndim else ())
        operands = self.constant(codes, np.int32), self.constant(step), self.constant(np.zeros(step.shape), np.int32)
        return self.node("DequantizeLinear", *operands, **({"axis": 0} if step.ndim else {}))

    def model(self, result: str, x: Sequence[Any], kind: int | None = None) -> ModelProto:
        kind = kind or helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
        out = [helper.make_tensor_value_info(result, kind, None)]
        graph = helper.make_graph(self.nodes, "g", infos, out, self.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def same(model: ModelProto, x: Array, target: str, *, without: str = "") -> None:
    """The outputs of onnxruntime, to the bit; no op named `without` is left."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (want,) = theirs.run(None, {"x": x})
    (got,) = occ.compile(model, target).run({"x": x}).values()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    assert want.size == 0 or len(np.unique(want)) > 1, "the test tells nothing"


def data(*shape: int) -> Array:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


CONVS = {  # channels in, out, kernel, attributes
    "1x1": (16, 32, (1, 1), {}),
    "3x3_padded": (8, 16, (3, 3), {"pads": [1, 1, 1, 1]}),
    "odd_channels": (5, 7, (3, 3), {"pads": [1, 0, 2, 1]}),
    "three_channels_strided": (3, 32, (7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "1x1_strided": (20, 24, (1, 1), {"strides": [2, 2]}),
    "groups": (12, 18, (3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "large_groups": (32, 32, (3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": (24, 24, (3, 3), {"group": 24, "pads": [1, 1, 1, 1]}),
    "depthwise_odd": (13, 13, (5, 5), {"group": 13, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "depthwise_multiplied": (6, 12, (3, 3), {"group": 6}),
    "dilated": (8, 20, (3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    "same": (8, 20, (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "1d": (9, 17, (3,), {"pads": [1, 1]}),
    "wide": (68, 49, (1, 1), {}),
}


def convolution(name: str, kind: Any, *, per_channel: bool, biased: bool, batch: Any = 2) -> tuple[ModelProto, Array]:
    c, o, kernel, attrs = CONVS[name]
    g = Graph(len(name), kind)
    spatial = [13, 9][: len(kernel)]
    scale, zero = 0.021, g.point()
    x = g.coded("x", scale, zero)
    w, scales = g.filter((o, c // attrs.get("group", 1), *kernel), 0 if per_channel else None)
    bias = [g.bias(scales, scale, o)] if biased else []
    y = g.node("Conv", x, w, *bias, **attrs)
    return g.model(g.quantised(y, 0.09, g.point()), [batch, c, *spatial]), data(2, c, *spatial)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("name", CONVS)
def test_convolution(name: str, kind: Any, target: str) -> None:
    same(*convolution(name, kind, per_channel=len(name) % 2 == 0, biased=name != "1x1"), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_convolution_of_an_empty_batch_and_of_another_one(target: str) -> None:
    model, x = convolution("odd_channels", np.uint8, per_channel=True, biased=True, batch="n")
    session = occ.compile(model, target)
    for n in (0, 1, 5):
        (got,) = session.run({"x": np.repeat(x[:1], n, 0)}).values()
        (one,) = session.run({"x": x[:1]}).values()
        np.testing.assert_array_equal(got, np.repeat(one, n, 0))
    same(model, x, target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cut", ["Relu", "Clip"])
def test_cut_that_saturation_implies(cut: str, target: str) -> None:
    g = Graph()
    x = g.coded("x", 0.02, 131)
    w, scales = g.filter((12, 4, 3, 3), 0)
    y = g.node("Conv", x, w, g.bias(scales, 0.02, 12))
    bounds = [g.constant(0.0), g.constant(6.0)] if cut == "Clip" else []
    y = g.quantised(g.node(cut, y, *bounds), 6 / 255 if cut == "Clip" else 0.04, 0)
    same(g.model(y, [1, 4, 8, 8]), data(1, 4, 8, 8), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(("k", "n", "trans"), [(16, 32, 0), (19, 10, 1), (64, 1, 0), (3, 5, 1)])
def test_gemm(k: int, n: int, trans: int, kind: Any, target: str) -> None:
    g = Graph(k, kind)
    x = g.coded("x", 0.02, g.point())
    w, scales = g.filter((n, k) if trans else (k, n), 0 if trans else 1)
    y = g.node("Gemm", x, w, g.bias(scales, 0.02, n), transB=trans)
    same(g.model(g.quantised(y, 0.05, g.point()), [7, k]), data(7, k), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("weight", [np.uint8, np.int8])
def test_matmul(weight: Any, kind: Any, target: str) -> None:
    if kind is np.int8 and weight is np.uint8:
        pytest.skip("onnxruntime does not multiply signed activations by unsigned weights")
    g = Graph(3, kind)
    x = g.coded("x", 0.02, g.point())
    w, _ = g.filter((18, 21), None, weight)
    same(g.model(g.quantised(g.node("MatMul", x, w), 0.05, g.point()), [2, 5, 18]), data(2, 5, 18), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("relu", [False, True])
def test_sum_of_two_scales(kind: Any, relu: bool, target: str) -> None:
    g = Graph(5, kind)
    x, y = g.coded("x", 0.021, g.point()), g.coded(g.node("Neg", "x"), 0.017, g.point())
    z = g.node("Add", x, y)
    lowest = int(np.iinfo(kind).min)
    z = g.quantised(g.node("Relu", z) if relu else z, 0.0031, lowest if relu else g.point())
    same(g.model(z, [3, 40, 41]), data(3, 40, 41), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_moves_on_codes(target: str) -> None:
    g = Graph(6)
    x = g.coded("x", 0.02, 99)
    y = g.coded(g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 0.02, 99)
    y = g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 3, 1]), g.constant([2, -1], np.int64))
    same(g.model(g.quantised(y, 0.02, 99), [2, 6, 9, 11]), data(2, 6, 9, 11), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_functions_of_one_code(kind: Any, target: str) -> None:
    """`x * (1 + erf(x / 1.4))`, quantised after each node, of all codes and of symbolic size."""
    g = Graph(7, kind)
    x = g.coded("x", 0.03, g.point())
    y = g.coded(g.node("Erf", g.coded(g.node("Div", x, g.constant(1.4)), 0.02, g.point(0))), 0.008, g.point(0))
    y = g.node("Mul", x, g.coded(g.node("Add", y, g.constant(1.0)), 0.009, g.point(3)))
    same(g.model(g.quantised(y, 0.031, g.point()), ["n", 1024]), 3 * data(7, 1024), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_what_other_nodes_read_stays(target: str) -> None:
    """A convolution whose f32 result is an output too is computed in f32."""
    g = Graph(8)
    x = g.coded("x", 0.02, 128)
    w, _ = g.filter((8, 4, 1, 1), None)
    y = g.node("Conv", x, w)
    g.quantised(y, 0.05, 7)
    model = g.model(y, [1, 4, 5, 5], TensorProto.FLOAT)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = theirs.run(None, {"x": data(1, 4, 5, 5)})
    (got,) = occ.compile(model, target).run({"x": data(1, 4, 5, 5)}).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_float_option_keeps_the_operators(target: str) -> None:
    model, x = convolution("1x1", np.uint8, per_channel=False, biased=False)
    (integer,) = occ.compile(model, target).run({"x": x}).values()
    (real,) = occ.compile(model, target, options={"qdq": "float"}).run({"x": x}).values()
    assert np.abs(integer.astype(int) - real).max() <= 1
