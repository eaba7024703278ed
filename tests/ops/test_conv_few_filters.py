"""Convolutions with few filters, whose vectors run along rows: orders of axes, and results next to onnxruntime's."""

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings

RNG = np.random.default_rng(8)


def conv(filters: int, channels: int, taps: tuple[int, int], width: int | str = 88, strides: tuple[int, int] = (1, 1)):
    text = f"""g (float[n, {channels}, 19, {width}] x) => (float[n, {filters}, h, w] y) {{
        c = Conv <pads = [1, 3, 1, 3], strides = [{strides[0]}, {strides[1]}]> (x, k, b)
        y = Relu(c)
    }}"""
    weights = {
        "k": RNG.standard_normal((filters, channels, *taps), np.float32),
        "b": RNG.standard_normal(filters, np.float32),
    }
    return model_of(text, weights)


ALONG_ROWS = [
    (8, 8, (3, 39), (1, 1)),
    (12, 30, (7, 7), (1, 1)),
    (15, 16, (2, 35), (2, 1)),
    (3, 2, (3, 3), (1, 1)),
    (1, 8, (5, 5), (1, 1)),
    (1, 5, (2, 3), (2, 2)),
]


@pytest.mark.toolchain
@pytest.mark.parametrize(("filters", "channels", "taps", "strides"), ALONG_ROWS, ids=str)
@pytest.mark.parametrize("width", [88, 40, 264])
def test_few_filters_along_rows(
    filters: int, channels: int, taps: tuple[int, int], strides: tuple[int, int], width: int
) -> None:
    model = conv(filters, channels, taps, width, strides)
    module = Compilation(model, Settings("cpu")).advance("layout")
    assert all(r.tensor.layout.is_row_major for op in module.walk() for r in op.results)
    session = occ.compile(model, "cpu", threads=1)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in (1, 2):
        x = RNG.standard_normal((batch, channels, 19, width), np.float32)
        (want,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        conv(16, 8, (3, 39)),
        conv(12, 30, (5, 5)),
        conv(8, 8, (3, 39), "m"),
        conv(8, 8, (3, 39), strides=(1, 3)),
        conv(8, 512, (1, 1)),
    ],
    ids=["filters", "taps", "symbolic", "strides", "products"],
)
def test_others_along_channels(model) -> None:
    module = Compilation(model, Settings("cpu")).advance("layout")
    assert any(not r.tensor.layout.is_row_major for op in module.walk() for r in op.results)
