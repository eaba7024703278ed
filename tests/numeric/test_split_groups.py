"""Grouped convolutions: a few large groups become convolutions of their own; many small ones stay."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings


def grouped(channels: int, out: int, groups: int) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    w = (rng.standard_normal((out, channels // groups, 3, 3)) * 0.1).astype(np.float32)
    b = rng.standard_normal(out).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=groups, pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, channels, 9, 11]), ("y", None))
    ]
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize(("channels", "out", "groups", "parts"), [(32, 48, 2, 2), (24, 48, 12, 1), (16, 32, 16, 1)])
def test_only_large_groups_are_split(channels: int, out: int, groups: int, parts: int) -> None:
    module = Compilation(grouped(channels, out, groups), Settings("cpu", verify=True)).advance("fused")
    assert sum(op.name == "Conv" for op in module.walk()) == parts


def test_groups_of_codes_are_split() -> None:
    """A ConvInteger too: each group takes its weights and the zero points of its filters."""
    rng = np.random.default_rng(9)
    weights = [
        numpy_helper.from_array(rng.integers(-99, 99, s).astype(np.int8), n)
        for n, s in (("w", (32, 8, 1, 1)), ("z", (32,)))
    ]
    kinds = (("x", TensorProto.UINT8, [1, 16, 4, 4]), ("p", TensorProto.UINT8, []), ("y", TensorProto.INT32, None))
    *inputs, result = [helper.make_tensor_value_info(n, kind, s) for n, kind, s in kinds]
    node = helper.make_node("ConvInteger", ["x", "w", "p", "z"], ["y"], group=2)
    graph = helper.make_graph([node], "g", inputs, [result], weights)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    names = [op.name for op in Compilation(model, Settings("cpu", verify=True)).advance("fused").walk()]
    assert names.count("conv_dot") == 2
    assert "ConvInteger" not in names


@pytest.mark.toolchain
@pytest.mark.parametrize(("channels", "out", "groups"), [(32, 48, 2), (24, 48, 12), (16, 32, 16), (16, 16, 16)])
def test_groups_of_every_size_agree_with_onnxruntime(channels: int, out: int, groups: int) -> None:
    model = grouped(channels, out, groups)
    x = np.random.default_rng(8).standard_normal((1, channels, 9, 11)).astype(np.float32)
    got = occ.compile(model, "cpu").run({"x": x})["y"]
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
