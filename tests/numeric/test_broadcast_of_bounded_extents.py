"""Extents of at most 1 that broadcast: the last of N elements, next to all of them."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ

LAST = "end = Constant <value = int64[1] {9223372036854775807}> () back = Constant <value = int64[1] {-1}> ()"
CASES = {
    "plain": (f"{LAST} last = Slice (x, back, end, zero) y = Div (x, last)", lambda x: x / x[-1:]),
    "of a half": (
        f"{LAST} two = Constant <value = int64[1] {{2}}> () h = Slice (x, zero, end, zero, two) last = Slice (h, back, end, zero) y = Div (h, last)",
        lambda x: x[::2] / x[::2][-1:],
    ),
    "in a branch": (
        f"{LAST} f = Constant <value = float {{0.0}}> () s = ReduceSum <keepdims = 0> (x) c = Greater (s, f) "
        "y = If (c) <then_branch = t () => (float[a, 3] p) { last = Slice (x, back, end, zero) p = Div (x, last) },"
        " else_branch = e () => (float[b, 3] p) { p = Neg (x) }>",
        lambda x: x / x[-1:],
    ),
    "a product": (
        f"{LAST} last = Slice (x, back, end, zero) axes = Constant <value = int64[1] {{1}}> ()"
        " a = Unsqueeze (x, axes) b = Transpose <perm = [0, 2, 1]> (a) l = Unsqueeze (last, axes) y = MatMul (l, b)",
        lambda x: x[-1:, None] @ x[:, :, None],
    ),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_the_last_next_to_all(case: str, target: str) -> None:
    body, wanted = CASES[case]
    start = "zero = Constant <value = int64[1] {0}> ()"
    session = occ.compile(model_of(f"g (float[n, 3] x) => (y) {{ {start} {body} }}", opset=18), target)
    for n in (1, 2, 7, 64):
        x = np.random.default_rng(n).random((n, 3), dtype=np.float32) + 0.5
        np.testing.assert_allclose(session.run({"x": x})["y"], wanted(x), rtol=1e-6, strict=True)
    if case != "in a branch":  # which is not taken for none
        with pytest.raises(occ.RunError):
            session.run({"x": np.zeros((0, 3), np.float32)})
