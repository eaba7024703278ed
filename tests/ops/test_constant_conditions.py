"""Truth values that are known when a model is built: their results are folded, and agree with onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ

PAIRS = list(itertools.product([False, True], repeat=2))


def agree(operator: str, constants: dict[str, np.ndarray], **attrs: int) -> None:
    node = helper.make_node(operator, list(constants), ["y"], **attrs)
    data = [numpy_helper.from_array(x, n) for n, x in constants.items()]
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.BOOL, None)], data)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {})
    for target in ("interp", "cpu-jit"):
        np.testing.assert_array_equal(occ.compile(model, target).run({})["y"], want, err_msg=f"{operator} {constants}")


@pytest.mark.parametrize("operator", ["ReduceMin", "ReduceMax"])
@pytest.mark.parametrize("pair", PAIRS)
def test_extremes(operator: str, pair: tuple[bool, bool]) -> None:
    agree(operator, {"x": np.array(pair), "axes": np.array([-1])}, keepdims=0)


@pytest.mark.parametrize("operator", ["And", "Or", "Xor", "Equal"])
def test_of_two(operator: str) -> None:
    a, b = (np.array(x) for x in zip(*PAIRS, strict=True))
    agree(operator, {"a": a, "b": b})
