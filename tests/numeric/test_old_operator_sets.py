"""Operators whose defaults came later: models of old operator sets mean what they meant."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("opset", "given"), [(10, ""), (15, ""), (16, ""), (16, 'coordinate_transformation_mode = "output_half_pixel", ')]
)
def test_roi_align(opset: int, given: str) -> None:
    """Regions are shifted by half a pixel from opset 16 on, where a model does not say otherwise."""
    text = f"""g (float[1,2,8,8] x, float[2,4] rois) => (float[2,2,a,b] y) {{
        y = RoiAlign<{given}output_height = 2, output_width = 3, sampling_ratio = 2, spatial_scale = 0.5>(x, rois, batches)
    }}"""
    model = model_of(text, {"batches": np.int64([0, 0])}, opset=opset)
    rng = np.random.default_rng(2)
    feed = {"x": rng.standard_normal((1, 2, 8, 8), np.float32), "rois": np.float32([[1, 1, 12, 9], [2, 0, 15, 15]])}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for target in ("interp", "cpu-jit"):
        np.testing.assert_allclose(occ.compile(model, target).run(feed)["y"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_arg_max_along_a_symbolic_axis(keepdims: int, last: int) -> None:
    text = f"""g (float[3,k,4] x) => (int64[{"3,1,4" if keepdims else "3,4"}] y) {{
        y = ArgMax<axis = 1, keepdims = {keepdims}, select_last_index = {last}>(x)
    }}"""
    model = model_of(text)
    x = np.random.default_rng(0).integers(0, 3, (3, 6, 4)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for target in ("interp", "cpu-jit"):
        assert np.array_equal(occ.compile(model, target).run({"x": x})["y"], wanted)
