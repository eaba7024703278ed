"""Convolutions whose kernels have symbolic extents, against onnxruntime at several sizes."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, onnxruntime_of

import occ

WINDOWS = {
    "Conv": "pads=[1,0,1,1], strides=[2,1]",
    "Conv with a kernel_shape": "pads=[1,0,1,1], kernel_shape=[3,2]",
    "ConvTranspose": "pads=[1,0,1,1], strides=[3,2]",
    "ConvTranspose with a kernel_shape": "strides=[3,2], kernel_shape=[3,2]",
    "ConvTranspose with dilations": "strides=[3,2], dilations=[2,3], output_padding=[1,1]",
    "ConvTranspose with SAME": 'strides=[3,2], auto_pad="SAME_UPPER"',
    "ConvTranspose with an output_shape": "strides=[1,1], output_shape=[4,5]",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", WINDOWS)
def test_as_onnxruntime(case: str, target: str) -> None:
    name = case.split()[0]
    text = f"g (float[n,c,h,w] x, float[q,o,k,l] f) => (float[a,b,d,e] y) {{ y = {name}<{WINDOWS[case]}>(x, f) }}"
    model = model_of(text, opset=19)
    runtime = onnxruntime_of(model)
    session = occ.compile(model, target)
    rng = np.random.default_rng(7)
    kernels = [(3, 2)] if "kernel_shape" in case else [(3, 2), (4, 3)]
    for kernel, size in zip([*kernels, kernels[0]], ((4, 5), (4, 5), (4, 5)), strict=False):
        feeds = {
            "x": rng.standard_normal((2, 3, *size)).astype(np.float32),
            "f": rng.standard_normal((3, 3, *kernel)).astype(np.float32),
        }
        want = runtime.run(None, feeds)[0]
        np.testing.assert_allclose(session.run(feeds)["y"], want, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_another_kernel_than_stated_is_refused(operator: str) -> None:
    text = (
        f"g (float[n,c,h,w] x, float[q,o,k,l] f) => (float[a,b,d,e] y) {{ y = {operator}<kernel_shape=[3,2]>(x, f) }}"
    )
    session = occ.compile(model_of(text, opset=19), "interp")
    with pytest.raises(occ.RunError, match=r"OCC050[13]"):
        session.run({"x": np.ones((1, 3, 8, 8), np.float32), "f": np.ones((3, 3, 2, 3), np.float32)})
