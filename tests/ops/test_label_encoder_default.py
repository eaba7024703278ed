"""LabelEncoder with `default_tensor`, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import occ

KEYS = {"strings": ["a", "b"], "int64s": [1, 2], "floats": [1.5, 2.5]}
GIVEN = {
    "strings": np.array([["a", "zz"], ["b", ""]], object), "int64s": np.array([[1, 9], [2, 0]]),
    "floats": np.array([[1.5, 9], [2.5, np.nan]], np.float32),
}  # fmt: skip
VALUES = {"strings": ["x", "y"], "int64s": [10, 20], "floats": [0.5, 0.25]}
DEFAULTS = {
    "strings": np.array(["D"], object), "int64s": np.array([-7]), "floats": np.array([-7.5], np.float32),
    "two": np.array([-7, -8]), "none": np.array([], np.int64), "int32": np.array([-7], np.int32),
}  # fmt: skip
TYPES = {"strings": 8, "int64s": 7, "floats": 1}


def model(keys: str, values: str, default: np.ndarray, *, moved: bool) -> onnx.ModelProto:
    """A LabelEncoder; of texts that a Transpose moves before, so that they are encoded, where `moved`."""
    attrs = {
        f"keys_{keys}": KEYS[keys],
        f"values_{values}": VALUES[values],
        "default_tensor": numpy_helper.from_array(default, "d"),
    }
    nodes = [helper.make_node("Transpose", ["x"], ["t"])] if moved else []
    nodes.append(helper.make_node("LabelEncoder", ["t" if moved else "x"], ["y"], domain="ai.onnx.ml", **attrs))
    infos = [helper.make_tensor_value_info("x", TYPES[keys], [2, 2])]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info("y")])
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keys", KEYS)
def test_default_of_the_type_of_the_values(keys: str, values: str, moved: bool, target: str) -> None:
    made, feeds = model(keys, values, DEFAULTS[values], moved=moved), {"x": GIVEN[keys]}
    known = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[
        0
    ]
    found = occ.compile(made, target=target).run(feeds)["y"]
    assert found.dtype == known.dtype
    assert found.tolist() == known.tolist()


@pytest.mark.parametrize("default", ["strings", "floats", "two", "none", "int32"])
def test_defaults_of_another_type_or_number(default: str) -> None:
    with pytest.raises(occ.CompileError, match=r"OCC0107.*`default_tensor` of `LabelEncoder`"):
        occ.compile(model("strings", "int64s", DEFAULTS[default], moved=False), target="interp")
