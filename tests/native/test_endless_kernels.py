"""A kernel with which Halide does not end within its seconds: plain loops in its place, a warning, the same results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide import compile_kernels
from occ.compiler.codegen_halide.compile_kernels import _Effort, _Made
from occ.compiler.codegen_halide.kernels import Kernel, Setup
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(5)
_LITTLE = 0.01  # seconds: no processor compiles a Winograd kernel in them


@pytest.fixture
def few_seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Allow kernels of Winograd's algorithm a hundredth of a second, and all others a minute.

    How fast the processor is, and how busy, does not matter then. Returns the seconds of each run of Halide.
    """
    run, asked = compile_kernels._run, list[float]()

    def limited(kernels: Sequence[Kernel], setup: Setup, cache: Cache, how: _Effort) -> _Made:
        asked.append(how.seconds)
        slow = [k for k in kernels if k.name.startswith("winograd") and how.seconds == _LITTLE]
        rest = [k for k in kernels if k not in slow]
        made = [run(slow, setup, cache, how)] if slow else []
        made += [run(rest, setup, cache, replace(how, seconds=60.0))] if rest else []
        merged = {n: p for m in made for n, p in m.failed.items()}, {n: t for m in made for n, t in m.took.items()}
        return _Made(*merged)

    monkeypatch.setattr(compile_kernels, "_SECONDS", _LITTLE)
    monkeypatch.setattr(compile_kernels, "_run", limited)
    return asked


def test_plain_loops_in_place_of_a_schedule_that_takes_too_long(
    tools_only: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, few_seconds: list[float]
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
    with pytest.warns(RuntimeWarning, match="Halide did not compile the kernel `winograd_.*` in 0.01 seconds"):
        session = occ.compile(model, "cpu", threads=2)
    assert few_seconds[0] == _LITTLE
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, h, w in ((1, 1, 1), (2, 7, 17), (1, 20, 20)):
        x = RNG.standard_normal((n, 64, h, w), np.float32)
        (want,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


def test_later_builds_say_so_too_and_do_not_try_again(
    tools_only: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, few_seconds: list[float]
) -> None:
    """What `src/` of an artifact holds is what its library was made from, so that it can be made again."""
    weights = {"k": RNG.standard_normal((64, 64, 3, 3), np.float32) / 24}
    model = model_of(
        "g (float[n, 64, h, w] x) => (float[n, 64, p, q] y) { y = Conv <pads = [1, 1, 1, 1]> (x, k) }", weights
    )
    monkeypatch.setenv("OCC_CACHE_DIR", str(tools_only("cache")))
    said = "Halide did not compile the kernel `winograd_.*` in 0.01 seconds"
    with pytest.warns(RuntimeWarning, match=said):
        first = Compilation(model, Settings("cpu")).artifact()
    with monkeypatch.context() as patch:
        patch.setattr(compile_kernels, "_run", lambda *_, **__: pytest.fail("a kernel is compiled again"))
        with pytest.warns(RuntimeWarning, match=said):
            second = Compilation(model, Settings("cpu")).artifact()
    assert dict(first.files) == dict(second.files)
    cache = Path(os.environ["OCC_CACHE_DIR"])
    for made in (cache / "kernel").rglob("*.o"):
        made.unlink()
    with pytest.warns(RuntimeWarning, match=said):
        Compilation(model, Settings("cpu")).artifact()
    assert few_seconds[-1] == 10 * _LITTLE  # plain loops have ten times as long, whenever they are made
    monkeypatch.setattr(compile_kernels, "_SECONDS", 60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        whole = Compilation(model, Settings("cpu")).artifact()
    assert whole.files["src/kernels_0.cpp"] != first.files["src/kernels_0.cpp"]
