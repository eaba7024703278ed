"""ExpandDims of com.microsoft by an axis that is an input, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

HEAD = '<ir_version: 10, opset_import: ["" : 19, "com.microsoft" : 1]>\n'
TEXT = HEAD + "g (float[a, b] x, int32 axis) => (float[p, q, r] y) { z = com.microsoft.ExpandDims(x, axis) y = Neg(z) }"


@pytest.mark.parametrize("target", TARGETS)
def test_an_axis_of_a_run(target: str) -> None:
    model = model_of(TEXT)
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = occ.compile(model, target)
    for axis in range(-3, 3):
        for shape in ((2, 3), (1, 1), (0, 3)):
            feeds = {"x": np.ones(shape, np.float32), "axis": np.array(axis, np.int32)}
            np.testing.assert_array_equal(session.run(feeds)["y"], runtime.run(None, feeds)[0], strict=True)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_compiled_in_a_run_keeps_no_memory_of_the_caller(target: str) -> None:
    """Code for the values of an operand is found again by them, when the operand that it was made of is no more."""
    session = occ.compile(model_of(TEXT.replace("z = com", "y = com").replace(" y = Neg(z)", "")), target, threads=1)
    wanted, axis = np.arange(6, dtype=np.float32).reshape(2, 3), np.array(-1, np.int32)
    first = wanted.copy()
    session.run({"x": first, "axis": axis})
    first[:] = 7
    found = session.run({"x": wanted.copy(), "axis": axis})["y"]
    np.testing.assert_array_equal(found, wanted[..., None], strict=True)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_outside_names_the_node(axis: int, target: str) -> None:
    session = occ.compile(model_of(TEXT.replace("z =", "[culprit] z =")), target)
    with pytest.raises((occ.RunError, occ.CompileError), match=rf"axis {axis}") as e:
        session.run({"x": np.ones((2, 3), np.float32), "axis": np.array(axis, np.int32)})
    assert "culprit" in str(e.value)
