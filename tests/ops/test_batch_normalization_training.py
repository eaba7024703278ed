"""BatchNormalization in training mode, as weights that are standardised at run time are exported: the data's own statistics."""

from __future__ import annotations

import numpy as np
import onnx.reference
import pytest
from building import model_of

import occ


@pytest.mark.parametrize("before", ["x", "Conv (x, w)"])
@pytest.mark.parametrize("results", ["y", "y, mean, var"])
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_constant_running_statistics_are_not_those_of_the_data(target: str, results: str, before: str) -> None:
    rng = np.random.default_rng(0)
    weights = {k: rng.random(3, np.float32) + 0.5 for k in ("s", "b", "m", "v")} | {
        "w": rng.random((3, 3, 1, 1), np.float32)
    }
    c = f"c = {before if before != 'x' else 'Identity (x)'}"
    text = f"g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y) {{ {c} {results} = BatchNormalization <training_mode = 1> (c, s, b, m, v) }}"
    model = model_of(text, opset=17, weights=weights)
    x = rng.standard_normal((2, 3, 4, 4)).astype(np.float32) * 3
    (wanted,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(occ.compile(model, target).run({"x": x})["y"], wanted, atol=1e-5)
