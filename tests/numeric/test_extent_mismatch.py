"""Extents of inputs that do not fit each other are found at run time, and nothing is read past the end of a tensor."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.runtime.errors import RunError

TARGETS = ("interp", "cpu-jit", "cpu")


def session(target, node, inputs, weights=(), **settings):
    given = [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", given, [y], list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    return open_session(Compilation(model, Settings(target, **settings)).artifact(), 1)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["LayerNormalization", "RMSNormalization"])
def test_a_scale_of_another_extent_than_the_data(name, target):
    w = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    node = helper.make_node(name, ["x", "w"], ["y"], axis=-1)
    made = session(target, node, {"x": (TensorProto.FLOAT, ["N", "C"])}, [w])
    assert made.run({"x": np.ones((3, 4), np.float32)})["y"].shape == (3, 4)
    with pytest.raises(RunError, match="OCC0501"):
        made.run({"x": np.ones((3, 9), np.float32)})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_gathered_elements_of_more_rows_than_there_are(target):
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)
    inputs = {"x": (TensorProto.FLOAT, ["N", "C"]), "i": (TensorProto.INT64, ["M", "K"])}
    made = session(target, node, inputs)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    i = np.array([[2, 0]])
    np.testing.assert_array_equal(made.run({"x": x, "i": i})["y"], np.take_along_axis(x[:1], i, 1))
    with pytest.raises(RunError, match=r"OCC0504.*more indices than data on axis 0"):
        made.run({"x": x, "i": np.zeros((3, 2), np.int64)})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["ScatterElements", "ScatterND"])
def test_fewer_updates_than_indices(name, target):
    node = helper.make_node(name, ["x", "i", "u"], ["y"])
    columns = 3 if name == "ScatterElements" else 1
    inputs = {
        "x": (TensorProto.FLOAT, [4, 3]), "i": (TensorProto.INT64, ["M", columns]), "u": (TensorProto.FLOAT, ["K", 3]),
    }  # fmt: skip
    made = session(target, node, inputs)
    x, i = np.zeros((4, 3), np.float32), np.zeros((2, columns), np.int64)
    assert made.run({"x": x, "i": i, "u": np.ones((2, 3), np.float32)})["y"].sum() == 3
    with pytest.raises(RunError, match="OCC0501"):
        made.run({"x": x, "i": i, "u": np.ones((1, 3), np.float32)})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_constant_lengths_that_are_longer_than_the_axis(target):
    """The kernel ran before the check, and read past the end of the row."""
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], batch_axis=0, time_axis=1)
    n = numpy_helper.from_array(np.array([7]), "n")
    made = session(target, node, {"x": (TensorProto.FLOAT, [1, "N"])}, [n], verify=True)
    x = np.arange(8, dtype=np.float32)[None]
    np.testing.assert_array_equal(made.run({"x": x})["y"], [[6, 5, 4, 3, 2, 1, 0, 7]])
    with pytest.raises(RunError, match="OCC0504"):
        made.run({"x": x[:, :1]})
