"""Products of codes whose zero points only a run knows, or whose weights have zero points, as dynamic quantisation writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ

TARGETS = ("interp", "cpu-jit", "cpu")
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}

CONVS = {  # channels in, out, kernel, zero points of the weight (None: one for each filter), attributes
    "padded": (16, 24, 3, 121, {"pads": [1, 1, 1, 1]}),
    "strided_1x1": (16, 24, 1, None, {"strides": [2, 2]}),
    "padded_1x1": (16, 16, 1, 3, {"pads": [1, 1, 1, 1]}),
    "same": (6, 24, 3, 121, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "depthwise": (24, 24, 3, 121, {"group": 24, "pads": [1, 1, 1, 1]}),
    "depthwise_of_filters": (24, 24, 5, None, {"group": 24, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "of_two_groups": (16, 32, 3, None, {"group": 2, "pads": [1, 1, 1, 1]}),
    "odd": (5, 7, 3, None, {"pads": [1, 0, 2, 1]}),
    "that_fits": (8, 16, 3, 128, {}),
}


def codes(rng: np.random.Generator, kind: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max + 1, shape).astype(kind)


def convolutions(kind: Any, weights: Any, *, known: bool) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """All of `CONVS` as one model; the zero point of what they read is an input, or known."""
    rng = np.random.default_rng(3)
    nodes, inits, inputs, data = [], [], [], {}
    point = np.array(77, kind)
    if known:
        inits.append(numpy_helper.from_array(point, "point"))
    else:
        inputs.append(helper.make_tensor_value_info("point", KINDS[kind], []))
        data["point"] = point
    for name, (c, o, k, zero, attrs) in CONVS.items():
        w = codes(rng, weights, o, c // attrs.get("group", 1), k, k)
        zeros = codes(rng, weights, o) if zero is None else np.array(zero - (128 if weights == np.int8 else 0), weights)
        inits += [numpy_helper.from_array(w, f"{name}_w"), numpy_helper.from_array(zeros, f"{name}_z")]
        operands = [f"{name}_x", f"{name}_w", "point", f"{name}_z"]
        nodes.append(helper.make_node("ConvInteger", operands, [name], **attrs))
        inputs.append(helper.make_tensor_value_info(operands[0], KINDS[kind], [1, c, 9, 7]))
        data[operands[0]] = codes(rng, kind, 1, c, 9, 7)
    return model_of(nodes, inputs, list(CONVS), inits), data


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[str], inits: list[Any]) -> ModelProto:
    results = [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def exact(model: ModelProto, data: dict[str, np.ndarray], target: str) -> None:
    got = occ.compile(model, target).run(data)
    for info, want in zip(model.graph.output, ReferenceEvaluator(model).run(None, data), strict=True):
        np.testing.assert_array_equal(got[info.name], want, err_msg=info.name)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kind", "weights", "known"), [
    (np.uint8, np.uint8, False), (np.int8, np.uint8, False), (np.uint8, np.int8, True),
])  # fmt: skip
def test_convolutions(kind: Any, weights: Any, known: bool, target: str) -> None:
    exact(*convolutions(kind, weights, known=known), target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_with_zero_points(kind: Any, target: str) -> None:
    """One zero point of a matrix, or one for each column, with that of the other operand and without."""
    rng = np.random.default_rng(4)
    x = helper.make_tensor_value_info("x", KINDS[kind], ["rows", 19])
    point = helper.make_tensor_value_info("point", KINDS[kind], [])
    inits = [numpy_helper.from_array(codes(rng, np.uint8, 19, 24), "w")]
    inits += [numpy_helper.from_array(codes(rng, np.uint8, *shape), n) for n, shape in (("one", ()), ("each", (24,)))]
    operands = {
        "one_known": ("", "one"),
        "each_known": ("", "each"),
        "one_run": ("point", "one"),
        "each_run": ("point", "each"),
    }
    nodes = [helper.make_node("MatMulInteger", ["x", "w", *more], [name]) for name, more in operands.items()]
    data = {"x": codes(rng, kind, 37, 19), "point": np.array(99, kind)}
    exact(model_of(nodes, [x, point], list(operands), inits), data, target)


ACTIVATIONS = {  # types, shapes of the operands, their zero points (None: an input), whether the right one is transposed
    "scores": ("BB", (3, 21, 16), (3, 16, 37), (121, 130), True),
    "values": ("BB", (3, 21, 37), (3, 37, 40), (0, 130), False),
    "signed": ("bb", (2, 9, 8), (2, 8, 40), (3, None), False),
    "run": ("Bb", (7, 13), (13, 33), (None, None), True),
    "mixed": ("bB", (2, 2, 6, 20), (2, 2, 20, 5), (None, 128), False),
    "shallow": ("BB", (9, 3), (3, 64), (0, 128), False),
}


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("symbolic", [False, True])
def test_products_of_activations(symbolic: bool, target: str) -> None:
    rng = np.random.default_rng(6)
    nodes, inits, inputs, data = [], [], [], {}
    for name, (types, left, right, zeros, transposed) in ACTIVATIONS.items():
        shapes = [left, (*right[:-2], right[-1], right[-2]) if transposed else right]
        operands = [f"{name}_x", f"{name}_t" if transposed else f"{name}_y", f"{name}_xz", f"{name}_yz"]
        for end, shape, letter, zero in zip("xy", shapes, types, zeros, strict=True):
            kind, value = np.dtype(letter), f"{name}_{end}"
            data[value] = codes(rng, kind, *shape)
            free = [*shape[:-2], f"{value}_rows", shape[-1]] if symbolic else shape
            inputs.append(helper.make_tensor_value_info(value, KINDS[kind.type], free))
            point = np.array(55 if zero is None else zero, kind)
            if zero is None:
                inputs.append(helper.make_tensor_value_info(f"{value}z", KINDS[kind.type], []))
                data[f"{value}z"] = point
            else:
                inits.append(numpy_helper.from_array(point, f"{value}z"))
        if transposed:
            axes = [*range(len(right) - 2), len(right) - 1, len(right) - 2]
            nodes.append(helper.make_node("Transpose", [f"{name}_y"], [f"{name}_t"], perm=axes))
        nodes.append(helper.make_node("MatMulInteger", operands, [name]))
    exact(model_of(nodes, inputs, list(ACTIVATIONS), inits), data, target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_quantised_by_its_range(target: str) -> None:
    """Tensors of whole vectors and of a rest, of one sign and of both, symbolic too."""
    shapes: dict[str, list[Any]] = {"a": [3, 5, 7, 11], "b": [2, 64], "c": ["n", 40], "d": [1]}
    rng = np.random.default_rng(5)
    data = {k: rng.normal(size=[4 if n == "n" else n for n in s]).astype(np.float32) for k, s in shapes.items()}
    data["b"] = np.abs(data["b"]) + 1
    nodes = [helper.make_node("DynamicQuantizeLinear", [k], [f"{k}_{r}" for r in "ysz"]) for k in shapes]
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items()]
    kinds = {"y": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    outputs = [helper.make_tensor_value_info(f"{k}_{r}", kinds[r], None) for k in shapes for r in "ysz"]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    exact(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), data, target)
