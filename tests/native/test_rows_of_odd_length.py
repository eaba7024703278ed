"""Rows whose length is not a multiple of a vector, computed inside another stage on `cpu`: no read past a tensor."""

import multiprocessing

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from tools.fuzz.guard import all_guarded

MODEL = (
    "g (float[3,2,{n}] x, int32[3,{n}] t) => (float[3,{n}] y)"
    ' {{ y = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t) }}'
)


def _compare(length: int) -> None:
    model = model_of(MODEL.format(n=length))
    rng = np.random.default_rng(length)
    feed = {
        "x": rng.standard_normal((3, 2, length)).astype(np.float32),
        "t": rng.integers(0, 2, (3, length)).astype(np.int32),
    }
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    compiled = occ.compile(model, "cpu")
    for side in ("end", "start"):
        np.testing.assert_allclose(compiled.run(all_guarded(feed, side))["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.toolchain
@pytest.mark.parametrize("length", [6, 13])
def test_nothing_behind_a_tensor_is_read(length: int) -> None:
    child = multiprocessing.get_context("fork").Process(target=_compare, args=(length,))
    child.start()
    child.join()
    assert child.exitcode == 0, "a read past the end ends the process"
