"""A kernel with which Halide does not end within its seconds: plain loops in its place, a warning, the same results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.codegen_halide import compile_kernels
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

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
    monkeypatch.setattr(compile_kernels, "_SECONDS", 0.25)
    with pytest.warns(RuntimeWarning, match="Halide did not compile the kernel `winograd_.*` in 0.25 seconds"):
        session = occ.compile(model, "cpu", threads=2)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, h, w in ((1, 1, 1), (2, 7, 17), (1, 20, 20)):
        x = RNG.standard_normal((n, 64, h, w), np.float32)
        (want,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


def test_later_builds_say_so_too_and_do_not_try_again(
    tools_only: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `src/` of an artifact holds is what its library was made from, so that it can be made again."""
    weights = {"k": RNG.standard_normal((64, 64, 3, 3), np.float32) / 24}
    model = model_of(
        "g (float[n, 64, h, w] x) => (float[n, 64, p, q] y) { y = Conv <pads = [1, 1, 1, 1]> (x, k) }", weights
    )
    monkeypatch.setenv("OCC_CACHE_DIR", str(tools_only("cache")))
    monkeypatch.setattr(compile_kernels, "_SECONDS", 0.1)
    said = "Halide did not compile the kernel `winograd_.*` in 0.1 seconds"
    with pytest.warns(RuntimeWarning, match=said):
        first = Compilation(model, Settings("cpu")).artifact()
    with monkeypatch.context() as patch:
        patch.setattr(compile_kernels, "_run", lambda *_, **__: pytest.fail("a kernel is compiled again"))
        with pytest.warns(RuntimeWarning, match=said):
            second = Compilation(model, Settings("cpu")).artifact()
    assert dict(first.files) == dict(second.files)
    run, limits = compile_kernels._run, list[float]()
    cache = Path(os.environ["OCC_CACHE_DIR"])
    for made in (cache / "kernel").rglob("*.o"):
        made.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(compile_kernels, "_run", lambda *a, **k: (limits.append(a[3].seconds), run(*a, **k))[1])
        with pytest.warns(RuntimeWarning, match=said):
            Compilation(model, Settings("cpu")).artifact()
    assert limits[-1] == 1.0  # plain loops have ten times as long, whenever they are made
    monkeypatch.setattr(compile_kernels, "_SECONDS", 60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        whole = Compilation(model, Settings("cpu")).artifact()
    assert whole.files["src/kernels_0.cpp"] != first.files["src/kernels_0.cpp"]
