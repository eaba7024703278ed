"""Floats divided by a constant zero, which Halide refuses to compile, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

NODES = {
    "zero": "c = Constant <value_float = 0.0> () y = Div (x, c)",
    "minus zero": "c = Constant <value_float = -0.0> () y = Div (x, c)",
    "zero of half": "c = Constant <value_float = 0.0> () h = Cast <to = 10> (c) k = Cast <to = 10> (x) y = Div (k, h)",
    "zero of double": "c = Constant <value = double {0}> () k = Cast <to = 11> (x) y = Div (k, c)",
    "zero with a sum": "c = Constant <value_float = 0.0> () q = Div (x, c) y = Add (q, x)",
    "alpha of Celu": "y = Celu <alpha = 0.0> (x)",
    "a scale": "s = Constant <value_float = 0.0> () y = QuantizeLinear (x, s)",
}
X = np.array([-2, -0.0, 0, 1, 3, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NODES)
def test_division_by_a_constant_zero(name: str, target: str) -> None:
    model = model_of(f"g (float[8] x) => (float[8] y) {{ {NODES[name]} }}")
    kind = {"zero of half": 10, "zero of double": 11, "a scale": 2}.get(name, 1)
    model.graph.output[0].type.tensor_type.elem_type = kind
    session = occ.compile(model, target=target)
    found = session.run({"x": X})["y"]
    if name == "a scale":  # casts of NaN are nothing certain
        assert found.shape == (8,)
        return
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(found, runtime.run(None, {"x": X})[0], strict=True)
