"""ConvTranspose in groups of any size, whose phases are grouped convolutions, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ

RNG = np.random.default_rng(0)
# Channels in, out, groups, kernel, strides, further attributes.
CASES: dict[str, tuple[int, int, int, list[int], list[int], dict[str, Any]]] = {
    "two of many channels": (32, 48, 2, [4, 4], [2, 2], {"pads": [1, 1, 1, 1]}),
    "two of few": (4, 6, 2, [3, 3], [2, 2], {}),
    "three, and unlike strides": (9, 6, 3, [3, 5], [1, 3], {"pads": [0, 2, 1, 1]}),
    "one for each channel": (12, 12, 12, [4, 4], [2, 2], {"pads": [1, 1, 1, 1]}),
    "three results of each channel": (5, 15, 5, [2, 2], [2, 2], {}),
    "stride 1": (16, 16, 2, [3, 3], [1, 1], {"pads": [1, 1, 1, 1]}),
    "a kernel below the stride": (8, 8, 4, [1, 2], [3, 2], {}),
    "vectors": (16, 24, 2, [5], [3], {"pads": [2, 1]}),
    "volumes": (6, 6, 3, [2, 3, 2], [2, 2, 1], {}),
    "more rows at the end": (16, 16, 2, [3, 3], [2, 2], {"pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    "taps apart": (6, 4, 2, [3, 3], [2, 2], {"dilations": [2, 1]}),
    "as large as asked for": (16, 16, 2, [4, 4], [2, 2], {"auto_pad": "SAME_UPPER"}),
}


def model_of_case(case: str, *, free: bool, biased: bool) -> bytes:
    channels, made, group, kernel, strides, more = CASES[case]
    weights = {"w": RNG.standard_normal((channels, made // group, *kernel)).astype(np.float32)}
    if biased:
        weights["b"] = RNG.standard_normal(made).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", *weights], ["y"], group=group, strides=strides, **more)
    names = [f"d{k}" if free else 7 + k for k in range(len(kernel))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n" if free else 2, channels, *names])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, n) for n, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("free", [True, False], ids=["any size", "one size"])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_onnxruntime(case: str, free: bool, target: str) -> None:
    model, rank = model_of_case(case, free=free, biased=free), len(CASES[case][3])
    session, theirs = occ.compile(model, target, threads=1), onnxruntime.InferenceSession(model)
    shapes = [(1, 4, 9, 3), (3, 7, 1, 2)] if free else [(2, 7, 8, 9)]
    for n, *extents in shapes:
        x = RNG.standard_normal((n, CASES[case][0], *extents[:rank])).astype(np.float32)
        (want,) = theirs.run(None, {"x": x})
        got = session.run({"x": x})["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1, np.abs(want).max()), strict=True)


@pytest.mark.parametrize("case", ["two of many channels", "three, and unlike strides", "one for each channel"])
def test_phases_are_convolutions(case: str) -> None:
    """A sum over taps that are mostly zero took up to 30 times as long as onnxruntime."""
    kernels = [
        s.name for s in occ.compile(model_of_case(case, free=True, biased=True), "cpu-jit").artifact.manifest.plan.steps
    ]
    assert any(name.startswith("conv_") for name in kernels)
    assert not any("transpose" in name for name in kernels)
