"""Scatters of one index: rows are written whole, and there is no loop over indices; and of indices without axes."""

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ

MODELS = {
    "rows": "g (float[5, n] x, int64[1, 1] i, float[1, n] u) => (float[5, n] y)"
    ' { y = ScatterND <reduction = "min"> (x, i, u) }',
    "rows of doubles": "g (double[1, 5, n] x, int64[1, 2] i, double[1, n] u) => (double[1, 5, n] y)"
    ' { y = ScatterND <reduction = "add"> (x, i, u) }',
    "planes": "g (float[3, n, 17] x, int64[1, 1] i, float[1, n, 17] u) => (float[3, n, 17] y)"
    " { y = ScatterND(x, i, u) }",
    "of several axes": "g (float[5, n] x, int64[1, 3, 1] i, float[1, 3, n] u) => (float[5, n] y)"
    ' { y = ScatterND <reduction = "mul"> (x, i, u) }',
}


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("name", MODELS)
def test_one_index(name: str, target: str) -> None:
    model = model_of(MODELS[name])
    session, compiled = onnxruntime.InferenceSession(model.SerializeToString()), occ.compile(model, target)
    rng = np.random.default_rng(0)
    for n in (17, 1):
        feed = {}
        for v in session.get_inputs():
            shape = [n if isinstance(d, str) else d for d in v.shape]
            kind = {"tensor(float)": "f4", "tensor(double)": "f8"}.get(v.type)
            feed[v.name] = np.zeros(shape, np.int64) - 1 if kind is None else rng.random(shape).astype(kind)
        feed["i"][..., 0] = 0  # the last axis of an index is -1
        np.testing.assert_allclose(compiled.run(feed)["y"], session.run(None, feed)[0], rtol=1e-6, strict=True)


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
@pytest.mark.parametrize("lead", [(), (1,), (4,), (0,), (2, 2)])
def test_index_of_no_axes_writes_the_whole_tensor(lead: tuple[int, ...], reduction: str, target: str) -> None:
    many = ", ".join(map(str, (*lead, 0)))
    updates = ", ".join((*map(str, lead), "2", "n"))
    model = model_of(
        f"g (float[2, n] x, int64[{many}] i, float[{updates}] u) => (float[2, n] y)"
        f' {{ y = ScatterND <reduction = "{reduction}"> (x, i, u) }}'
    )
    session, compiled = onnxruntime.InferenceSession(model.SerializeToString()), occ.compile(model, target)
    rng = np.random.default_rng(0)
    for n in (17, 1, 0):
        feed = {"x": rng.random((2, n), np.float32), "i": np.empty((*lead, 0), np.int64)}
        feed["u"] = rng.random((*lead, 2, n), np.float32)
        np.testing.assert_allclose(compiled.run(feed)["y"], session.run(None, feed)[0], rtol=1e-6, strict=True)
