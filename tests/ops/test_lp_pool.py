"""LpPool and GlobalLpPool of any p, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, onnxruntime_of

import occ

WINDOWS = ("strides = [1, 1]", "pads = [1, 0, 1, 1]", 'auto_pad = "SAME_UPPER"', "dilations = [2, 2]")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("window", WINDOWS)
def test_negative_p_leaves_padding_out(window: str, target: str) -> None:
    """A 0 to a negative power is infinite, so padding is not zeros there."""
    nodes = "".join(f" y{p} = LpPool<kernel_shape = [2, 2], {window}, p = {q}>(x)" for p, q in enumerate((-1, -2, -3)))
    listed = ", ".join(f"float[a,b,c,d] y{p}" for p in range(3))
    compare(f"g (float[1, 2, h, w] x) => ({listed}) {{{nodes} }}", target)


@pytest.mark.parametrize("target", TARGETS)
def test_negative_p_of_whole_pictures(target: str) -> None:
    compare("g (float[1, 2, h, w] x) => (float[a,b,c,d] y) { y = GlobalLpPool<p = -2>(x) }", target)


def compare(text: str, target: str) -> None:
    model = model_of(text, opset=18)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)
    x[0, 0, 0, 0] = 0
    runtime = onnxruntime_of(model)
    session = occ.compile(model, target)
    for (name, got), want in zip(session.run({"x": x}).items(), runtime.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=name, strict=True)
