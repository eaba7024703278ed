"""Transposed convolutions, split into phases, agree with onnxruntime for every kind of stride, kernel and pad."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings

CASES = [
    # spatial, kernel, strides, attributes
    ((5, 7), (2, 2), (2, 2), {}),
    ((5, 7), (4, 4), (2, 2), {"pads": [1, 1, 1, 1]}),
    ((5, 7), (3, 3), (2, 2), {"pads": [1, 0, 1, 2], "output_padding": [1, 1]}),
    ((6, 4), (3, 2), (1, 1), {"pads": [1, 0, 0, 1]}),
    ((3, 4), (2, 5), (3, 2), {}),
    ((5, 6), (4, 3), (2, 3), {"output_shape": [9, 17]}),
    ((8,), (7,), (4,), {"auto_pad": "SAME_UPPER"}),
    ((2, 3, 2), (2, 2, 3), (2, 1, 2), {}),
]


def transposed(
    spatial: tuple[int | str, ...], kernel: tuple[int, ...], strides: tuple[int, ...], attrs: dict, rng
) -> onnx.ModelProto:
    w = rng.standard_normal((3, 5, *kernel)).astype(np.float32)
    b = rng.standard_normal(5).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=list(strides), **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, *spatial])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.thinned
@pytest.mark.parametrize("case", CASES, ids=str)
def test_transposed_convolution_agrees_with_onnxruntime(case: tuple) -> None:
    spatial, kernel, strides, attrs = case
    rng = np.random.default_rng(1)
    model = transposed(spatial, kernel, strides, attrs, rng)
    x = rng.standard_normal((2, 3, *spatial)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    got = occ.compile(model, "cpu-jit").run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_symbolic_size_is_split_and_agrees() -> None:
    rng = np.random.default_rng(2)
    model = transposed(("h", 7), (2, 2), (2, 2), {}, rng)
    module = Compilation(model, Settings("cpu-jit")).advance("fused")
    assert not any(op.name == "ConvTranspose" for op in module.walk())
    compiled = occ.compile(model, "cpu-jit")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    for h in (1, 4):
        x = rng.standard_normal((2, 3, h, 7)).astype(np.float32)
        np.testing.assert_allclose(compiled.run({"x": x})["y"], reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
