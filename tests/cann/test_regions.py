"""Regions of interest, grids and random numbers on the simulator."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of
from simulating import built, simulated, worst

RNG = np.random.default_rng(13)


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [1, 3])
def test_roi_align_averages_like_onnxruntime(mode: str, ratio: int):
    """Some regions reach out of the image."""
    text = f"""g (float[2, 3, 9, 12] x, float[4, 4] r, int64[4] b) => (float[4, 3, 5, 4] y) {{
        y = RoiAlign <coordinate_transformation_mode = "{mode}", output_height = 5, output_width = 4,
            sampling_ratio = {ratio}, spatial_scale = 0.5> (x, r, b)
    }}"""
    model = model_of(text)
    rois = np.array([[0, 0, 24, 18], [-5, 3, 30, 9], [7.5, 6.25, 9, 17], [20, 10, 21, 10.5]], np.float32)
    given = {"x": RNG.standard_normal((2, 3, 9, 12), dtype=np.float32), "r": rois, "b": np.array([0, 1, 1, 0])}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    assert worst(simulated(built(model, cpu_fallback="off"), given), want) < 1e-5


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize(("dims", "rank"), [("2, 3, 4, 5", 2), ("2, 3, 4, 5, 2", 3)])
def test_affine_grids_like_onnxruntime(corners: int, dims: str, rank: int):
    size = [int(d) for d in dims.split(",")]
    grid = ", ".join(map(str, [2, *size[2:], rank]))
    text = f"""g (float[2, {rank}, {rank + 1}] t) => (float[{grid}] y) {{
        s = Constant <value = int64[{len(size)}] {{{dims}}}> ()
        y = AffineGrid <align_corners = {corners}> (t, s)
    }}"""
    model = model_of(text, opset=20)
    given = {"t": RNG.standard_normal((2, rank, rank + 1), dtype=np.float32)}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    assert worst(simulated(built(model, cpu_fallback="off"), given), want) < 1e-5


def test_random_numbers_have_their_distribution():
    text = """g (float[100, 100] x) => (float[100, 100] u, float[100, 100] n) {
        u = RandomUniformLike <low = -1.0, high = 3.0, seed = 2.5> (x)
        n = RandomNormal <mean = 5.0, scale = 2.0, shape = [100, 100], seed = 1.0> ()
    }"""
    made = built(model_of(text), cpu_fallback="off")
    given = {"x": np.zeros((100, 100), np.float32)}
    u, n = simulated(made, given)
    assert -1 <= u.min() < -0.99
    assert 2.99 < u.max() <= 3
    assert abs(u.mean() - 1) < 0.05
    assert abs(n.mean() - 5) < 0.1
    assert abs(n.std() - 2) < 0.1
    np.testing.assert_array_equal(simulated(made, given)[0], u)


def test_largest_pixels_of_regions_like_onnxruntime():
    text = """g (float[2, 3, 9, 12] x, float[4, 5] r) => (float[4, 3, 5, 4] y) {
        y = MaxRoiPool <pooled_shape = [5, 4], spatial_scale = 0.5> (x, r)
    }"""
    model = model_of(text)
    rois = np.array([[0, 0, 0, 23, 17], [1, 2, 3, 20, 9], [1, 7.5, 6.25, 9, 17], [0, 20, 10, 21, 10.5]], np.float32)
    given = {"x": RNG.standard_normal((2, 3, 9, 12), dtype=np.float32), "r": rois}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    np.testing.assert_array_equal(simulated(built(model, cpu_fallback="off"), given)[0], want[0])


def test_draws_follow_their_probabilities():
    text = """g (float[2, 3] x, float[2, 5000] p) => (int32[2, 5000] c, bool[2, 5000] b) {
        c = Multinomial <sample_size = 5000, seed = 3.0> (x)
        b = Bernoulli <dtype = 9, seed = 4.0> (p)
    }"""
    chances = np.array([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])
    given = {"x": np.log(chances).astype(np.float32), "p": np.repeat(np.float32([[0.25], [0.9]]), 5000, 1)}
    c, b = simulated(built(model_of(text), cpu_fallback="off"), given)
    counts = np.stack([np.bincount(row, minlength=3) for row in c]) / 5000
    np.testing.assert_allclose(counts, chances, atol=0.03)
    np.testing.assert_allclose(b.mean(1), [0.25, 0.9], atol=0.03)
