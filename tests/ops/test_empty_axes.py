"""Operators along an axis without elements: what has no result is refused, at the build and at the run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, onnxruntime_of, reference

import occ

X = {"rows": np.zeros((0, 4), np.float32), "columns": np.zeros((3, 0), np.float32)}
# Nothing is there to repeat, and no position is the largest one's.
REFUSED = {
    "edge": ("rows", 'y = Pad <mode = "edge"> (x, pads)', "float", "nothing is left to repeat"),
    "reflect": ("rows", 'y = Pad <mode = "reflect"> (x, pads)', "float", "nothing is left to repeat"),
    "wrap": ("rows", 'y = Pad <mode = "wrap"> (x, pads)', "float", "nothing is left to repeat"),
    "largest": ("columns", "y = ArgMax <axis = 1> (x)", "int64", "an axis without elements"),
    "least": ("columns", "y = ArgMin <axis = -1, keepdims = 0> (x)", "int64", "an axis without elements"),
}
TAKEN = {
    "edge of others": ("rows", 'y = Pad <mode = "edge"> (x, others)', "float"),
    "reflect of others": ("rows", 'y = Pad <mode = "reflect"> (x, others)', "float"),
    "largest of no row": ("rows", "y = ArgMax <axis = 1> (x)", "int64"),
    "largest of no column": ("columns", "y = ArgMax <axis = 0> (x)", "int64"),
}


def model_for(body: str, kind: str, extents: str) -> onnx.ModelProto:
    pads = {"pads": np.array([1, 0, 1, 0]), "others": np.array([0, 1, 0, 2])}
    made = model_of(
        f"g (float[{extents}] x) => ({kind} y) {{ {body} }}", {k: v for k, v in pads.items() if f"{k})" in body}
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, target: str) -> None:
    axes, body, kind, said = REFUSED[name]
    with pytest.raises(ValueError, match="empty"):
        reference(model_for(body, kind, "n, m"), {"x": X[axes]})
    with pytest.raises(occ.CompileError, match=f"OCC0202.*{said}"):
        occ.build(model_for(body, kind, ", ".join(map(str, X[axes].shape))), target)
    session = occ.compile(model_for(body, kind, "n, m"), target)
    with pytest.raises(occ.RunError, match=r"OCC0503.* to be at least 1"):
        session.run({"x": X[axes]})


@pytest.mark.parametrize("extents", ["fixed", "n, m"])
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, extents: str) -> None:
    axes, body, kind = TAKEN[name]
    model = model_for(body, kind, ", ".join(map(str, X[axes].shape)) if extents == "fixed" else extents)
    (wanted,) = onnxruntime_of(model).run(None, {"x": X[axes]})
    for target in ("interp", "cpu-jit"):
        found = occ.compile(model, target).run({"x": X[axes]})["y"]
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == np.asarray(wanted).dtype


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_texts_are_padded_with_the_empty_text(target: str) -> None:
    """As the operator says; ONNX's reference pads with the number 0, and onnxruntime has no kernel."""
    model = model_of("g (string[n] x) => (string[m] y) { y = Pad(x, p) }", {"p": np.array([1, 2])})
    found = occ.compile(model, target).run({"x": np.array(["a", "b"], object)})["y"]
    assert [*found] == ["", "a", "b", "", ""]
