"""PRelu before operator set 7: a slope of one axis is one of each channel, not of the last axis."""

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ

SHAPES = {
    "planes": (2, 3, 4, 5),
    "rows": (2, 3, 7),
    "as long as the last axis": (2, 3, 4, 3),
    "matrices": (4, 3),
    "one slope": (2, 1, 4),
}


def model(opset: int, shape: tuple[int, ...], slope: tuple[int, ...]):
    dims, slopes = ",".join(map(str, shape)), ",".join(map(str, slope))
    head = f'<ir_version: 3, opset_import: ["" : {opset}]>'
    return model_of(f"{head} g (float[{dims}] x, float[{slopes}] s) => (float[{dims}] y) {{ y = PRelu(x, s) }}")


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_slope_for_each_channel(name: str, target: str) -> None:
    """As onnxruntime has it from operator set 7 on, where slopes are broadcast, with the axes stated."""
    shape = SHAPES[name]
    channels = shape[1]
    x, s = np.random.default_rng(0).standard_normal(shape).astype(np.float32), np.float32([0.5, -2, 4])[:channels]
    stated = (channels, *[1] * (len(shape) - 2))
    session = onnxruntime.InferenceSession(model(7, shape, stated).SerializeToString())
    (want,) = session.run(None, {"x": x, "s": s.reshape(stated)})
    got = occ.compile(model(6, shape, (channels,)), target).run({"x": x, "s": s})["y"]
    np.testing.assert_array_equal(got, want, strict=True)
