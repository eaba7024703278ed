"""Blocks summed into an image, with strides, dilations and pads of all kinds, against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.te.function import reduce_axes

TEXT = """g (float[n, {rows}, l] x) => (float[n, c, h, w] y) {{
    size = Constant<value_ints = {image}>()
    block = Constant<value_ints = {block}>()
    y = Col2Im<strides = {strides}, dilations = {dilations}, pads = {pads}>(x, size, block)
}}"""
CASES = [
    ([7, 9], block, strides, dilations, pads)
    for block, strides, dilations, pads in itertools.product(
        ([3, 1], [4, 2]), ([1, 3], [2, 2], [5, 1]), ([1, 1], [2, 3]), ([0, 0, 0, 0], [1, 2, 0, 1])
    )
]


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_every_stride_and_dilation(target: str) -> None:
    rng = np.random.default_rng(0)
    for image, block, strides, dilations, pads in CASES:
        counts = [(n + pads[k] + pads[k + 2] - d * (b - 1) - 1) // s + 1
                  for k, (n, b, s, d) in enumerate(zip(image, block, strides, dilations, strict=True))]  # fmt: skip
        rows = 2 * block[0] * block[1]
        made = model_of(
            TEXT.format(rows=rows, image=image, block=block, strides=strides, dilations=dilations, pads=pads)
        )
        x = rng.standard_normal((2, rows, counts[0] * counts[1])).astype(np.float32)
        (want,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
        got = occ.compile(made, target).run({"x": x})["y"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str((block, strides, dilations, pads)))


def test_sums_have_a_term_for_each_block_that_may_cover_a_pixel() -> None:
    """One for each tap made 256 of what 4 are enough for."""
    made = model_of(
        TEXT.format(rows=3 * 256, image=[224, 224], block=[16, 16], strides=[8, 8], dilations=[1, 1], pads=[0] * 4)
    )
    m = Compilation(made, Settings("cpu-jit")).advance("scheduled")
    terms = [a.extent for f in m.te.values() for s in f.stages for a in reduce_axes(s.expr)]
    assert terms == [2, 2]
