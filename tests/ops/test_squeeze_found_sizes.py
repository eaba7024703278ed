"""Squeeze without axes of sizes that the data decide: the rank of the result is known once a run has them."""

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ

MODELS = {
    "an output": "v = Compress <axis = 0> (x, c) y = Squeeze(v)",
    "read by a node": "v = Compress <axis = 0> (x, c) w = Squeeze(v) y = Neg(w)",
}


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("name", MODELS)
def test_both_ranks(name: str, target: str) -> None:
    model = model_of(f"g (float[4] x, bool[4] c) => (float[n] y) {{ {MODELS[name]} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session, compiled = onnxruntime.InferenceSession(model.SerializeToString()), occ.compile(model, target)
    for count in (1, 2, 4, 0):
        feed = {"x": np.arange(4, dtype=np.float32), "c": np.arange(4) < count}
        np.testing.assert_array_equal(compiled.run(feed)["y"], session.run(None, feed)[0], strict=True)
