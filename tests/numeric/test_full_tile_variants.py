"""Small windows along rows of symbolic length: shorter rows than are computed together, as long, longer, and borders."""

import machines
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.ir.te.schedule import AtMost

CHANNELS = 20
CASES = {
    "depthwise": ("Conv", {"pads": [1, 1, 1, 1], "group": CHANNELS}, (3, 3)),
    "depthwise_5x5_of_two": ("Conv", {"pads": [2, 2, 2, 2], "strides": [2, 2], "group": CHANNELS}, (5, 5)),
    "depthwise_without_border": ("Conv", {"strides": [2, 1], "group": CHANNELS}, (3, 2)),
    "maxpool": ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, None),
    "maxpool_with_border": ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, None),
    "averagepool": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2]}, None),
}
WIDTHS = (3, 5, 7, 8, 9, 15, 16, 17, 18, 33)


def model(name: str) -> onnx.ModelProto:
    op, attributes, kernel = CASES[name]
    rng = np.random.default_rng(3)
    weights = []
    if kernel is not None:
        weights = [numpy_helper.from_array(rng.standard_normal((CHANNELS, 1, *kernel)).astype(np.float32), "w")]
    nodes = [
        helper.make_node(op, ["x", *(w.name for w in weights)], ["a"], **attributes),
        helper.make_node("HardSwish", ["a"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CHANNELS, "h", "w"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.toolchain
@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_length(name: str) -> None:
    m = model(name)
    reference, session = ReferenceEvaluator(m), occ.compile(m, "cpu", threads=2)
    rng = np.random.default_rng(4)
    for k, width in enumerate(WIDTHS):
        x = rng.standard_normal((1 + k % 2, CHANNELS, 3 + k, width)).astype(np.float32)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.toolchain
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_columns_of_any_length(op: str) -> None:
    """Rows of a known length are summed down the columns first: no second schedule takes sums that loops of the first make."""
    node = helper.make_node(op, ["x"], ["y"], kernel_shape=[4, 3], strides=[2, 1])
    ports = [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in (("x", [1, 3, "h", 18]), ("y", None))]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    reference, session = ReferenceEvaluator(m), occ.compile(m, "cpu", threads=2)
    for height in (4, 5, 9, 17, 40):
        x = np.random.default_rng(5).standard_normal((1, 3, height, 18)).astype(np.float32)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("machine", machines.TARGETS)
def test_the_size_of_a_run_decides(machine: str) -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    settings = Settings("cpu", options={"halide.target": machines.TARGETS[machine]})
    functions = Compilation(model("depthwise"), settings).advance("scheduled").te.values()
    (test,) = (d.args[0] for f in functions for d in f.schedule if d.call == "specialize")
    assert isinstance(test, AtMost)
    (least,) = (abs(n) for n in (test.left, test.right) if isinstance(n, int))  # of both sides of a tile
    assert 1 < least <= machines.named(machine).lanes(32)


@pytest.mark.toolchain
def test_two_schedules_for_rows_that_ask_the_same() -> None:
    """Four lanes are a tile of four neighbours: half a vector and a whole one are planes of the same size."""
    weights = np.random.default_rng(6).standard_normal((7, 1, 7, 7)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[3, 3, 3, 3], group=7)
    ports = [
        helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in (("x", ["n", 7, "h", "w"]), ("y", None))
    ]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = occ.compile(m, "cpu", options={"halide.target": machines.TARGETS["x86-64-v2"]}, threads=2)
    for height, width in ((1, 1), (3, 9), (4, 4), (9, 3), (8, 13)):
        x = np.random.default_rng(7).standard_normal((2, 7, height, width)).astype(np.float32)
        (want,) = ReferenceEvaluator(m).run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-4)


@pytest.mark.toolchain
def test_a_condition_on_a_sum_of_products() -> None:
    """Padded volumes as one axis: Halide has its own form of `16 <= (h + 1)*(w + 2)*(d + 3) - 9`."""
    m = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[n, 32, h, w, d] x) => (float[n, 32, q] y)
        <int64[10] p = {0, 0, 0, 0, 0, 0, 0, 1, 2, 3}, int64[3] s = {0, 0, -1}, int64[1] b = {9}, int64[1] e = {9000}, int64[1] k = {2}> {
            a = Pad(x, p)
            r = Reshape(a, s)
            t = Transpose <perm = [0, 2, 1]> (r)
            f = Softmax <axis = -1> (t)
            u = Transpose <perm = [0, 2, 1]> (f)
            y = Slice(u, b, e, k)
        }""")  # fmt: skip
    session = occ.compile(m, "cpu", threads=2)
    for sizes in ((1, 1, 1), (2, 3, 1), (4, 5, 6)):
        x = np.random.default_rng(8).standard_normal((2, 32, *sizes)).astype(np.float32)
        (want,) = ReferenceEvaluator(m).run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-5, atol=1e-6)
