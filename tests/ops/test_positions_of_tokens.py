"""Positions that are constants: those of the first token, from which the others count."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import occ

RNG = np.random.default_rng(0)


def model(batch: int | str, length: int | str, first: int) -> ModelProto:
    """RotaryEmbedding whose first token is at a constant position."""
    node = helper.make_node("RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], domain="com.microsoft", interleaved=1)
    x = helper.make_tensor_value_info("x", 1, [batch, 2, length, 8])
    weights = {"p": np.array([first]), "cos": RNG.random((9, 4), np.float32), "sin": RNG.random((9, 4), np.float32)}
    graph = helper.make_graph(
        [node], "g", [x], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("sizes", [(2, 3), ("n", "l"), (1, 5)])
def test_first_positions_that_are_constants(sizes: tuple[int | str, int | str], first: int) -> None:
    """At 0 the position of a token is its index, which a stage of two axes of its own computed."""
    made = model(*sizes, first)
    n, length = (k if isinstance(k, int) else 3 for k in sizes)
    x = RNG.standard_normal((n, 2, length, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    for target in ("interp", "cpu-jit"):
        np.testing.assert_allclose(occ.compile(made, target=target).run({"x": x})["y"], wanted, rtol=0, atol=1e-5)
