"""Sums of many floats: their error grows like that of sums of blocks, not like that of one chain of additions."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ

LONG = 1 << 17
CLOSE = 1.5e-6  # of positive terms; one chain of them is off by 7e-6 to 3e-5
TARGETS = ("cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain))
TEXT = """g (float[m, 16] x, float[2, m, 24] z, float[m, 8, n] p, float[k, m] t) => (
        float[d1] mean, float[m, 16] share, float[d2, d3] dot, float[d4, 1, d5] squares, float[d6] both, float[d7, d8] rows) {
    first = Constant<value_ints = [0]>()
    second = Constant<value_ints = [1]>()
    outer = Constant<value_ints = [0, 2]>()
    mean = ReduceMean<keepdims = 0>(x, first)
    share = Softmax<axis = 0>(x)
    xt = Transpose(x)
    dot = MatMul(xt, x)
    zz = Mul(z, z)
    squares = ReduceSum(zz, second)
    both = ReduceSum<keepdims = 0>(p, outer)
    tt = Transpose(t)
    rows = MatMul(t, tt)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_error_of_long_sums(target: str) -> None:
    rng = np.random.default_rng(0)
    session = occ.compile(model_of(TEXT), target)
    for m, n in ((LONG, 3), (513, 700), (1, 1), (512, 2)):
        shapes = {"x": (m, 16), "z": (2, m, 24), "p": (m, 8, n), "t": (5, m)}
        feed = {k: rng.uniform(0.5, 1.5, s).astype(np.float32) for k, s in shapes.items()}
        x, z, p, t = (v.astype(np.float64) for v in feed.values())
        e = np.exp(x - x.max(0))
        want = {"mean": x.mean(0), "share": e / e.sum(0), "dot": x.T @ x, "squares": (z * z).sum(1, keepdims=True),
                "both": p.sum((0, 2)), "rows": t @ t.T}  # fmt: skip
        for name, got in session.run(feed).items():
            assert got.shape == want[name].shape
            assert np.max(np.abs(got / want[name] - 1)) < CLOSE, (name, m, n)


@pytest.mark.parametrize("target", TARGETS)
def test_error_of_long_products_with_weights(target: str) -> None:
    """More terms than a block, in numbers that blocks do not divide, and of windows, whose loops are short."""
    rng = np.random.default_rng(1)
    w, k = (
        rng.uniform(0.5, 1.5, (8209, 48)).astype(np.float32),
        rng.uniform(0.5, 1.5, (16, 911, 3, 3)).astype(np.float32),
    )
    text = """g (float[n, 8209] x, float[1, 911, 5, 5] c) => (float[n, 48] y, float[1, 16, 3, 3] z) {
        y = MatMul(x, w)
        z = Conv(c, k)
    }"""
    session = occ.compile(model_of(text, {"w": w, "k": k}), target)
    for n in (1, 3, 37):
        feed = {"x": rng.uniform(0.5, 1.5, (n, 8209)), "c": rng.uniform(0.5, 1.5, (1, 911, 5, 5))}
        feed = {key: v.astype(np.float32) for key, v in feed.items()}
        x, c = (v.astype(np.float64) for v in feed.values())
        windows = np.lib.stride_tricks.sliding_window_view(c, (3, 3), (2, 3))
        want = {"y": x @ w, "z": np.einsum("nchwyx,ocyx->nohw", windows, k.astype(np.float64))}
        for name, got in session.run(feed).items():
            assert np.max(np.abs(got / want[name] - 1)) < CLOSE, (name, n)


@pytest.mark.toolchain
@pytest.mark.parametrize("level", ["1", "2"])
def test_long_products_whose_blocks_do_not_divide_them_at_any_level(level: str) -> None:
    """Where extents are values of the call, a prefetch divided by the steps of the last block, and the generator ended: OCC0403."""
    rng = np.random.default_rng(2)
    x, w = rng.uniform(0.5, 1.5, (3, 4111)).astype(np.float32), rng.uniform(0.5, 1.5, (4111, 117)).astype(np.float32)
    model = model_of("g (float[n, 4111] x) => (float[n, 117] y) { y = MatMul(x, w) }", {"w": w})
    y = occ.compile(model, "cpu", options={"optimize": level}).run({"x": x})["y"]
    assert np.max(np.abs(y / (x.astype(np.float64) @ w) - 1)) < CLOSE
