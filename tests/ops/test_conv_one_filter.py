"""Convolutions with one filter along rows, a few rows at a time, next to onnxruntime's."""

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings

RNG = np.random.default_rng(11)


def conv(
    channels: int, taps: tuple[int, int], height: int | str, width: int, pads: list[int], strides: tuple[int, int]
):
    text = f"""g (float[n, {channels}, {height}, {width}] x) => (float[n, 1, h, w] y) {{
        c = Conv <pads = {pads}, strides = [{strides[0]}, {strides[1]}]> (x, k, b)
        y = Sigmoid(c)
    }}"""
    weights = {
        "k": RNG.standard_normal((1, channels, *taps), np.float32) / 10,
        "b": RNG.standard_normal(1, np.float32),
    }
    return model_of(text, weights)


CASES = [
    (8, (5, 5), 21, 88, [2, 2, 2, 2], (1, 1)),
    (32, (7, 3), 9, 264, [3, 1, 3, 1], (1, 1)),
    (3, (3, 3), 3, 40, [1, 1, 1, 1], (1, 1)),
    (2, (3, 3), 30, 33, [0, 0, 0, 0], (2, 1)),
    (5, (1, 9), 10, 50, [0, 4, 0, 4], (1, 1)),
    (5, (9, 1), 10, 50, [4, 0, 4, 0], (1, 1)),
]


@pytest.mark.toolchain
@pytest.mark.parametrize(("channels", "taps", "height", "width", "pads", "strides"), CASES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
def test_one_filter_a_few_rows_at_a_time(
    channels: int,
    taps: tuple[int, int],
    height: int,
    width: int,
    pads: list[int],
    strides: tuple[int, int],
    symbolic: bool,
) -> None:
    model = conv(channels, taps, "m" if symbolic else height, width, pads, strides)
    if not symbolic and taps[0] > 1:
        made = Compilation(model, Settings("cpu")).advance("scheduled")
        (f,) = [f for f in made.te.values() if "conv" in f.name]
        (acc,) = [s for s in f.stages if s.role == "conv"]
        unrolled = [d.args[0] for d in f.schedule if d.stage == acc.name and d.call == "unroll"]
        assert acc.axes[-2].name in unrolled
    session = occ.compile(model, "cpu", threads=1)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch, more in ((1, 0), (2, 0), (1, 17), (1, 1)):
        x = RNG.standard_normal((batch, channels, height + more * symbolic, width), np.float32)
        (want,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.toolchain
@pytest.mark.parametrize("filters", [1, 2])
def test_few_filters_of_images_of_any_size(filters: int) -> None:
    """Rows of which several are computed at once read the border that is in memory for all of them, and few taps stand one after the
    other: with a test of the border at each of 800 places Halide did not end.
    """
    text = f"""g (float[n, 4, h, w] x) => (float[n, {filters}, p, q] y) {{
        c = Conv <pads = [2, 2, 2, 2]> (x, k, b)
        y = Sigmoid(c)
    }}"""
    weights = {
        "k": RNG.standard_normal((filters, 4, 5, 5), np.float32) / 10,
        "b": RNG.standard_normal(filters, np.float32),
    }
    model = model_of(text, weights)
    for f in Compilation(model, Settings("cpu")).advance("scheduled").te.values():
        stored = {d.stage for d in f.schedule if d.call in ("compute_at", "compute_root")}
        assert all(s.name in stored for s in f.stages if s.role == "pad"), f
        for s in f.stages:
            unrolled = [d.args[0] for d in f.schedule if d.stage == s.name and d.call == "unroll" and d.update]
            taps = [a.extent for a in getattr(getattr(s, "expr", None), "axes", ()) if a.name in unrolled]
            assert np.prod(taps, initial=1) <= 49, s
    session = occ.compile(model, "cpu", threads=2)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch, height, width in ((1, 1, 1), (2, 3, 40), (1, 7, 17), (1, 8, 5), (2, 17, 16), (1, 24, 33)):
        x = RNG.standard_normal((batch, 4, height, width), np.float32)
        (want,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)
