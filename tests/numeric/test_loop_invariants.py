"""Loops whose states include what never changes: the states become captures, and results stay what they were."""

import numpy as np
import pytest
from building import TARGETS, model_of

import occ

TEXT = """g (int64 n, float[a, 3] x, float[3] b) => (float[a, 3] y, float[3, 3] u, float[3] c, float[t, a, 3] all) {
    on = Constant <value = bool {1}> ()
    y, u, c, all = Loop <body = step (int64 i, bool going, float[a, 3] s, float[3, 3] v, float[3] d)
            => (bool still, float[a, 3] q, float[3, 3] w1, float[3] d1, float[a, 3] each) {
        still = Identity(going)
        p = MatMul(s, v)
        q = Add(p, d)
        w1 = Identity(v)
        d1 = Identity(d)
        each = Tanh(q)
    }> (n, on, x, w, b)
}"""


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_a_loop(target: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((3, 3), dtype=np.float32)
    session = occ.compile(model_of(TEXT, {"w": w}), target)
    for n, rows in ((4, 2), (1, 1), (2, 9)):
        x, b = rng.standard_normal((rows, 3), dtype=np.float32), rng.standard_normal(3, dtype=np.float32)
        exact, each = x.astype(np.float64), []
        for _ in range(n):
            exact = exact @ w + b
            each.append(np.tanh(exact))
        y, u, c, found = session(np.array(n, np.int64), x, b)
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found, np.stack(each), rtol=1e-4, atol=1e-5)
        assert np.array_equal(u, w)
        assert np.array_equal(c, b)


@pytest.mark.parametrize("target", TARGETS)
def test_no_step_gives_the_states_of_the_start(target: str) -> None:
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    x, b = np.ones((2, 3), np.float32), np.full(3, 0.5, np.float32)
    y, u, c, each = occ.compile(model_of(TEXT, {"w": w}), target)(np.array(0, np.int64), x, b)
    assert np.array_equal(y, x)
    assert np.array_equal(u, w)
    assert np.array_equal(c, b)
    assert len(each) == 0
