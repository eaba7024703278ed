"""A kernel with which Halide does not end within its seconds: plain loops in its place, a warning, the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.codegen_halide import kernels

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(5)


def test_plain_loops_in_place_of_a_schedule_that_takes_too_long(
    tools_only: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution by Winograd's algorithm for images of any size takes a second."""
    text = """g (float[n, 64, h, w] x) => (float[n, 64, p, q] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k, b)
        s = Sigmoid(c)
        y = Mul(c, s)
    }"""
    weights = {"k": RNG.standard_normal((64, 64, 3, 3), np.float32) / 24, "b": RNG.standard_normal(64, np.float32)}
    model = model_of(text, weights)
    monkeypatch.setenv("OCC_CACHE_DIR", str(tools_only("cache")))
    monkeypatch.setattr(kernels, "_SECONDS", 0.25)
    with pytest.warns(RuntimeWarning, match="Halide did not compile the kernel `winograd_.*` in 0.25 seconds"):
        session = occ.compile(model, "cpu", threads=2)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, h, w in ((1, 1, 1), (2, 7, 17), (1, 20, 20)):
        x = RNG.standard_normal((n, 64, h, w), np.float32)
        (want,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
