"""Operators that ONNX called experimental until operator set 9: agreement with onnxruntime on the same node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from extents import NONE, of_any_extent
from onnx import ModelProto, helper, numpy_helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.ir.dtype import from_numpy

IMAGE = np.random.default_rng(3).normal(size=(2, 3, 8, 9)).astype(np.float32)
SLICE = {"x": IMAGE, "s": np.array([1, -4]), "e": np.array([7, 99]), "a": np.array([2, 3])}
CASES: dict[str, tuple[str, Mapping[str, np.ndarray], dict[str, Any]]] = {
    "affine": ("Affine", {"x": IMAGE}, {"alpha": 1.5, "beta": -0.25}),
    "scale": ("Scale", {"x": IMAGE}, {"scale": 0.3}),
    "parametric-softplus": ("ParametricSoftplus", {"x": IMAGE}, {"alpha": 2.0, "beta": 3.0}),
    "scaled-tanh": ("ScaledTanh", {"x": IMAGE}, {"alpha": 2.0, "beta": 0.5}),
    "image-scaler": ("ImageScaler", {"x": IMAGE}, {"scale": 2.0, "bias": [1.0, 2.0, -3.0]}),
    "crop": ("Crop", {"x": IMAGE}, {"border": [1, 2, 3, 0]}),
    "crop-to-a-size": ("Crop", {"x": IMAGE}, {"border": [1, 2, 1, 1], "scale": [4, 5]}),
    "dynamic-slice": ("DynamicSlice", SLICE, {}),
}


def model(case: str) -> ModelProto:
    name, operands, attrs = CASES[case]
    infos = [helper.make_tensor_value_info("x", from_numpy(operands["x"].dtype).onnx, operands["x"].shape)]
    weights = [numpy_helper.from_array(v, k) for k, v in operands.items() if k != "x"]
    node = helper.make_node(name, list(operands), ["y"], **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("case", CASES)
def test_experimental_operator_gives_what_onnxruntime_gives(case: str, target: str) -> None:
    made = model(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, {"x": IMAGE})
    for given in (made, of_any_extent(made, NONE if case != "image-scaler" else lambda j, k, n: k == 1)):
        (got,) = occ.compile(given, target).run({"x": IMAGE}).values()
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_crop_that_is_larger_than_the_image_is_an_error() -> None:
    made = model("crop-to-a-size")
    made.graph.node[0].attribute[1].ints[0] = 7
    with pytest.raises(CompileError, match="`Crop` to 9 of an axis of 8"):
        occ.compile(made, "interp")
