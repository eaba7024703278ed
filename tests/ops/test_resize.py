"""Resize of whole planes: rows that are computed once and sampled agree with onnx.reference."""

import numpy as np
import pytest
from building import model_of, reference

import occ

MODES = {
    "linear": 'mode = "linear"',
    "corners": 'mode = "linear", coordinate_transformation_mode = "align_corners"',
    "cubic": 'mode = "cubic"',
    "nearest": 'mode = "nearest"',
    "floor": 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
    "antialias": 'mode = "linear", antialias = 1',
}


@pytest.mark.thinned
@pytest.mark.parametrize("factors", [(2.0, 2.0), (0.6, 1.7), (3.0, 0.5)])
@pytest.mark.parametrize("mode", MODES)
def test_planes(mode: str, factors: tuple[float, float]) -> None:
    text = f"""g (float[2, 3, 21, 18] x, float[1] bias) => (float[a, b, c, d] y) {{
        r = Resize <{MODES[mode]}> (x, , scales)
        y = Add(r, bias)
    }}"""
    model = model_of(text, {"scales": np.array([1, 1, *factors], np.float32)})
    inputs = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 21, 18), dtype=np.float32),
        "bias": np.array([0.25], np.float32),
    }
    (exact,) = reference(model, inputs)
    (y,) = occ.compile(model, "cpu", options={"resize": "exact"})(*inputs.values())  # positions of the specification
    assert y.shape == exact.shape
    assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()


def test_symbolic_planes() -> None:
    text = """g (float[n, 3, h, w] x) => (float[n, 3, a, b] y) {
        y = Resize <mode = "linear"> (x, , scales)
    }"""
    model = model_of(text, {"scales": np.array([1, 1, 2, 2], np.float32)})
    session = occ.compile(model, "cpu")
    for shape in [(1, 3, 5, 4), (2, 3, 17, 33), (1, 3, 1, 1)]:
        x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        (exact,) = reference(model, {"x": x})
        (y,) = session(x)
        assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()
