"""Scan of opset 8, which has a batch before all other axes: agreement with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import occ


def model(direction: int, lengths: str = "") -> ModelProto:
    """States that add up and are scaled by a value from outside of the body."""

    def info(name: str, *shape: int | str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["sum"]),
            helper.make_node("Mul", ["sum", "w"], ["next"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "body", [info("s", 3), info("x", 3)], [info("next", 3), info("seen", 3)],
    )  # fmt: skip
    scan = helper.make_node(
        "Scan", [lengths, "start", "steps"], ["last", "all"], body=body, num_scan_inputs=1, directions=[direction]
    )
    inputs = [info("start", "b", 3), info("steps", "b", "t", 3), info("v", 3)]
    if lengths:
        inputs.append(helper.make_tensor_value_info(lengths, TensorProto.INT64, ["b"]))  # pyright: ignore[reportArgumentType]
    outputs = [info("last", "b", 3), info("all", "b", "t", 3)]
    graph = helper.make_graph([helper.make_node("Relu", ["v"], ["w"]), scan], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("direction", [0, 1])
def test_every_batch_is_scanned_alone(direction: int, target: str) -> None:
    made = model(direction)
    ours, theirs = occ.compile(made, target), onnxruntime.InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(1)
    for b, t in ((2, 4), (3, 1)):
        shapes = {"start": (b, 3), "steps": (b, t, 3), "v": (3,)}
        given = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
        for x, y in zip(ours.run(given).values(), theirs.run(None, given), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_sequence_lengths_are_refused() -> None:
    with pytest.raises(occ.CompileError, match=r"OCC0301.*sequence_lens"):
        occ.compile(model(0, "lengths"), "interp")
