"""libocc where nothing goes in or comes out: sizes that the data decide, of tensors without elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import model_of, reference
from c_library import Model

import occ

NOTHING = np.zeros((0, 10), np.float32)
SOME = np.arange(12, dtype=np.float32).reshape(6, 2)
RESHAPE = "g (float[n, 10] x, int64[3] s) => (float[a, b, c] y) { z = Reshape <allowzero = 1> (x, s) y = Neg(z) }"
CASES = {
    "reshape": (RESHAPE, {"x": NOTHING, "s": np.array([3, 4, 0])}),
    "reshape of some": (RESHAPE, {"x": np.ones((3, 10), np.float32), "s": np.array([5, 2, 3])}),
    "reshape to the extents there": (
        "g (float[n, 10] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }", {"x": NOTHING, "s": np.array([0, 20])},
    ),
    "reshape of no batch": (
        "g (float[n, 10] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }", {"x": NOTHING, "s": np.array([-1, 20])},
    ),
    "slice": (
        "g (float[n, 2] x, int64[1] s, int64[1] e) => (float[a, 2] y) { z = Slice(x, s, e) y = Neg(z) }",
        {"x": SOME, "s": np.array([4]), "e": np.array([2])},
    ),
    "nonzero": ("g (float[n, 10] x) => (int64[2, k] y) { y = NonZero(x) }", {"x": NOTHING}),
    "nonzero of zeros": ("g (float[n, 2] x) => (int64[2, k] y) { y = NonZero(x) }", {"x": np.zeros((6, 2), np.float32)}),
    "compress": (
        "g (float[n, 2] x, bool[n] c) => (float[k, 2] y) { y = Compress <axis = 0> (x, c) }", {"x": SOME, "c": np.zeros(6, bool)},
    ),
}  # fmt: skip


@pytest.mark.toolchain
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_reference(case: str, tmp_path: Path):
    text, feed = CASES[case]
    model = model_of(text)
    occ.build(model, "cpu-jit", tmp_path / "m.occ")
    with Model(tmp_path / "m.occ") as m:
        (got,) = m.run(*feed.values())
    np.testing.assert_array_equal(got, reference(model, feed)[0], strict=True)


@pytest.mark.toolchain
def test_what_has_elements_again_is_a_sum_over_nothing(tmp_path: Path):
    """A sum over nothing is 0, as often as the data say."""
    text = """g (float[n, 10] x, int64[3] s) => (float[a, b] y) {
        z = Reshape <allowzero = 1> (x, s) axis = Constant <value = int64[1] {2}> () y = ReduceSum <keepdims = 0> (z, axis)
    }"""
    occ.build(model_of(text), "cpu-jit", tmp_path / "m.occ")
    (got,) = occ.load(tmp_path / "m.occ")(NOTHING, np.array([3, 4, 0]))
    np.testing.assert_array_equal(got, np.zeros((3, 4), np.float32), strict=True)
