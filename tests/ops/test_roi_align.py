"""RoiAlign over few and many channels, in vectors along them where they fill some; compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize(("channels", "ratio"), [(3, 2), (16, 2), (24, 0), (64, 1)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_of_several_images(channels: int, ratio: int, mode: str, target: str):
    m = model_of(f"""g (float[n, {channels}, h, w] x, float[r, 4] rois, int64[r] images) => (float[r, {channels}, 3, 4] y) {{
        y = RoiAlign <output_height = 3, output_width = 4, sampling_ratio = {ratio}, spatial_scale = 0.5, mode = "{mode}"> (x, rois, images)
    }}""")
    rng, session = np.random.default_rng(channels), occ.compile(m, target)
    ort = onnxruntime.InferenceSession(m.SerializeToString())
    for n, h, w, r in ((1, 5, 7, 1), (2, 16, 9, 7), (1, 6, 6, 0)):
        corners = np.sort(rng.random((r, 2, 2)), axis=1).reshape(r, 4) * 2 * min(h, w)
        feed = {
            "x": rng.standard_normal((n, channels, h, w)).astype(np.float32),
            "rois": corners.astype(np.float32), "images": rng.integers(0, n, r),
        }  # fmt: skip
        np.testing.assert_allclose(session.run(feed)["y"], ort.run(None, feed)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_nothing_is_read_of_images_without_pixels(target: str):
    m = model_of("""g (float[n, 16, h, w] x, float[r, 4] rois, int64[r] images) => (float[r, 16, 2, 2] y) {
        y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, rois, images) }""")
    session = occ.compile(m, target)
    rest = {"rois": np.array([[0, 0, 2, 2]], np.float32), "images": np.zeros(1, np.int64)}
    for h, w in ((0, 5), (5, 0), (0, 0)):
        assert not session.run(rest | {"x": np.zeros((1, 16, h, w), np.float32)})["y"].any()


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_half_floats_and_many_channels(target: str):
    m = model_of("""g (float16[1, 48, 9, 9] x, float16[r, 4] rois, int64[r] images) => (float16[r, 48, 2, 2] y) {
        y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, rois, images) }""")
    rng = np.random.default_rng(0)
    feed = {
        "x": rng.standard_normal((1, 48, 9, 9)).astype(np.float16),
        "rois": np.array([[0, 0, 4, 6], [1, 2, 8, 8]], np.float16), "images": np.zeros(2, np.int64),
    }  # fmt: skip
    expected = occ.compile(m, "interp").run(feed)["y"]
    np.testing.assert_allclose(occ.compile(m, target).run(feed)["y"], expected, rtol=2e-3, atol=2e-3)
