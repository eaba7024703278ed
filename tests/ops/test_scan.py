"""Scans along other axes than the first, against onnxruntime: they are moved to the front, and have a native entry."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of, on_threads

import occ
from occ.compiler.native_entry.read_routines import host_steps

TEXT = """g (float[b, 3] s, float[b, 3, t] x, float[t, b] w, float[3] k) => (float[b, 3] last, float[b, t, 3] all, float[b, t] first) {{
    last, all, first = Scan <num_scan_inputs = 2, scan_input_axes = [{0}, 0], scan_input_directions = [1, 0],
        scan_output_axes = [{1}, {2}], scan_output_directions = [1, 0],
        body = step (float[b, 3] before, float[b, 3] now, float[b] v) => (float[b, 3] after, float[b, 3] out, float[b] mean) {{
            weighed = Mul(before, k)
            after = Add(weighed, now)
            out = Tanh(after)
            m = ReduceMean <axes = [1], keepdims = 0> (now)
            mean = Add(m, v)
        }}> (s, x, w)
}}"""
RNG = np.random.default_rng(0)


def feed(b: int, t: int) -> dict[str, np.ndarray]:
    shapes = {"s": (b, 3), "x": (b, 3, t), "w": (t, b), "k": (3,)}
    return {name: RNG.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.mark.thinned
@pytest.mark.parametrize("axes", [(2, 1, 1), (-1, -2, -1)])
@pytest.mark.parametrize("target", TARGETS)
def test_axes(target: str, axes: tuple[int, int, int]) -> None:
    model = model_of(TEXT.format(*axes), opset=17)
    session, theirs = occ.compile(model, target), onnxruntime.InferenceSession(model.SerializeToString())
    for b, t in ((2, 4), (3, 1)):
        given = feed(b, t)
        for x, y in zip(session.run(given).values(), theirs.run(None, given), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_in_native_code() -> None:
    model, given = model_of(TEXT.format(2, 1, 1), opset=17), feed(2, 5)
    artifact = occ.build(model, "cpu-jit")
    assert not host_steps(artifact.manifest)
    wanted = occ.compile(model, "interp").run(given).values()
    for session in on_threads(artifact):
        for a, b in zip(session.run(given).values(), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_artifact_holds_nothing_of_what_no_step_gives() -> None:
    """Stacked results of known extents were put into the manifest as zeros, or whatever lay in that memory."""
    model = model_of(
        """g (float[16, 4096] x, float[4096] s) => (float[4096] last, float[16, 4096] all) {
            last, all = Scan <num_scan_inputs = 1, body = step (float[4096] before, float[4096] now)
                => (float[4096] after, float[4096] out) { after = Add(before, now)  out = Tanh(after) }> (s, x)
        }"""
    )
    assert len(occ.build(model, "cpu-jit").members()["manifest.json"]) < 10_000
