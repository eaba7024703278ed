"""Reductions along rows of any length: vectors, fours and single elements are all taken, once each, and NaN from any of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import occ

KINDS = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod}
TYPES = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.FLOAT16: np.float16}


@pytest.fixture(scope="module", params=TYPES, ids=lambda t: TYPES[t].__name__)
def reductions(request):
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [-1])
    nodes = [helper.make_node(k, ["x", "axes"], [k], keepdims=0) for k in KINDS]
    x = helper.make_tensor_value_info("x", request.param, ["rows", "length"])
    results = [helper.make_tensor_value_info(k, request.param, ["rows"]) for k in KINDS]
    graph = helper.make_graph(nodes, "g", [x], results, [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return occ.compile(model, target="cpu"), TYPES[request.param]


@pytest.mark.parametrize("length", [1, 3, 4, 7, 15, 16, 31, 32, 33, 36, 39, 47, 56, 64, 79, 85, 127, 197, 523])
def test_lengths(reductions, length):
    engine, dtype = reductions
    # Powers of two around one, so that sums and products of them are exact in any order.
    x = np.random.default_rng(length).choice([0.5, 1, 2, -1], (3, length), p=[0.05, 0.6, 0.05, 0.3]).astype(dtype)
    got = engine.run({"x": x})
    for kind, fn in KINDS.items():
        np.testing.assert_array_equal(got[kind], fn(x, axis=-1), err_msg=kind)


@pytest.mark.parametrize("length", [7, 56, 61, 119])
def test_nan_at_any_place(reductions, length):
    engine, dtype = reductions
    x = np.ones((length, length), dtype)
    np.fill_diagonal(x, np.nan)
    for kind, result in engine.run({"x": x}).items():
        assert np.isnan(result).all(), kind


@pytest.mark.parametrize("length", [256, 512, 1000, 2047])
@pytest.mark.parametrize("extent", ["given", "symbolic"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_long_rows(op, extent, length):
    """Several vectors at a time, and the remainder; rows of NaN and of infinities alone stay what they are."""
    shape = [6, length if extent == "given" else "n"]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    values = np.random.default_rng(length).normal(0, 4, (6, length)).astype(np.float32)
    values[1, length - 1], values[2, 70], values[3, ::3], values[5] = np.inf, np.nan, -np.inf, -np.inf
    got = occ.compile(model, target="cpu").run({"x": values})["y"]
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": values})[0]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
