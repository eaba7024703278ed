"""Which taps of a window are unrolled: Halide's time grows with them, that of a run not always."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings

CHANNELS, SIZE = 64, 20


def between_convolutions(taps: int, *, pool: bool) -> onnx.ModelProto:
    """A window over planes whose channels are last in memory, as convolutions of 1x1 leave them."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)

    pads = [taps // 2] * 4
    middle = (
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[taps, taps], pads=pads)
        if pool
        else helper.make_node("Conv", ["a", "w"], ["b"], group=CHANNELS, pads=pads)
    )
    nodes = [helper.make_node("Conv", ["x", "v"], ["a"]), middle, helper.make_node("Conv", ["b", "u"], ["y"])]
    weights = [weight("v", CHANNELS, 8, 1, 1), weight("u", 8, CHANNELS, 1, 1)]
    weights += [] if pool else [weight("w", CHANNELS, 1, taps, taps)]
    x = helper.make_tensor_value_info("x", 1, [1, 8, SIZE, SIZE])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize(
    ("taps", "pool", "axes"), [(3, True, 1), (5, True, 1), (3, False, 2), (5, False, 1), (7, False, 1)]
)
def test_rows_of_a_large_window_are_a_loop(taps: int, pool: bool, axes: int) -> None:
    m = Compilation(between_convolutions(taps, pool=pool), Settings("cpu")).advance("scheduled")
    (f,) = (f for f in m.te.values() if any(d.rule == "window" for d in f.schedule))
    unrolled = [d for d in f.schedule if d.call == "unroll" and d.update and str(d.args[0]).startswith("r")]
    assert len(unrolled) == axes


@pytest.mark.toolchain
@pytest.mark.parametrize(("taps", "pool"), [(5, True), (5, False), (7, False)])
def test_windows_with_a_loop_over_rows_compute_what_onnxruntime_does(taps: int, pool: bool) -> None:
    model = between_convolutions(taps, pool=pool)
    x = np.random.default_rng(1).standard_normal((1, 8, SIZE, SIZE)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(occ.compile(model, "cpu").run({"x": x})["y"], np.asarray(want), rtol=1e-4, atol=1e-5)
