"""1x1 convolutions between tensors with channels first: odd and symbolic extents, batches, bias, next to onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import occ

# Channels read and made, spatial extents of the model, and of each run: a batch first.
CASES = {
    "plane": (5, 7, (9, 11), [(1, 9, 11), (3, 9, 11)]),
    "symbolic": (16, 20, ("H", "W"), [(1, 8, 8), (2, 17, 1), (1, 0, 5), (0, 8, 9)]),
    "line": (33, 1, (130,), [(2, 130)]),
    "volume": (1, 35, (4, 5, "D"), [(1, 4, 5, 7)]),
}


def model(c: int, o: int, spatial: tuple[int | str, ...], *, with_bias: bool) -> bytes:
    """A convolution and a Sigmoid; the operand is the absolute value of the input."""
    rng = np.random.default_rng(3)
    names = ["w", "b"] if with_bias else ["w"]
    weights = {
        "w": rng.standard_normal((o, c, *[1] * len(spatial))).astype("f"),
        "b": rng.standard_normal(o).astype("f"),
    }
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Conv", ["a", *names], ["y"]),
        helper.make_node("Sigmoid", ["y"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", c, *spatial])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", o, *spatial])
    graph = helper.make_graph(nodes, "g", [x], [z], [from_array(weights[n], n) for n in names])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    return made.SerializeToString()


@pytest.mark.toolchain
@pytest.mark.parametrize("cpu", ["host", "x86-64-linux-sse41", "x86-64-linux-avx2-fma"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", CASES)
def test_pointwise_convolutions(name: str, with_bias: bool, cpu: str) -> None:
    c, o, spatial, runs = CASES[name]
    data = model(c, o, spatial, with_bias=with_bias)
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    ours = occ.compile(data, "cpu", options={"halide.target": cpu})
    for batch, *extents in runs:
        x = np.random.default_rng(batch).standard_normal((batch, c, *extents)).astype("f")
        # onnxruntime refuses planes without elements.
        expected = theirs.run(None, {"x": x})[0] if x.size else np.empty((batch, o, *extents), np.float32)
        got = ours.run({"x": x})["z"]
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
