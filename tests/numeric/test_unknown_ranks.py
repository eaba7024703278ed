"""Inputs that a model does not declare the shape of: operators that read them say what rank they have."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

RNG = np.random.default_rng(0)
W = RNG.standard_normal((5, 3, 3, 3), dtype=np.float32)
CASES = {
    "Conv": ("y = Conv (x, w)", {"w": W}, (2, 3, 8, 7)),
    "after a scale": (
        "s = Mul (x, two)  r = Relu (s)  y = Conv (r, w)",
        {"w": W, "two": np.float32([2])},
        (1, 3, 6, 6),
    ),
    "MaxPool": ("y = MaxPool <kernel_shape = [2]> (x)", {}, (2, 3, 8)),
    "Gemm": ("c = Clip (x)  y = Gemm (c, w)", {"w": W[0, 0]}, (4, 3)),
    "Transpose": ("n = Neg (x)  y = Transpose <perm = [2, 0, 1]> (n)", {}, (2, 3, 4)),
    "Resize": ('y = Resize <mode = "nearest"> (x, , s)', {"s": np.float32([1, 1, 2])}, (1, 2, 3)),
    "Pad": ("y = Pad (x, p)", {"p": np.array([0, 1, 2, 0])}, (3, 3)),
}


def model(nodes, weights):
    made = model_of(f"g (float[1] x) => (float y) {{ {nodes} }}", weights)
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_readers_say_the_rank(target: str, case: str) -> None:
    nodes, weights, shape = CASES[case]
    made = model(nodes, weights)
    x = RNG.standard_normal(shape, dtype=np.float32)
    exact = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(occ.compile(made, target=target).run({"x": x})["y"], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nodes", ["y = Relu (x)", "y = MatMul (x, w)", "a = Add (x, w)  y = Conv (a, v)"])
def test_what_several_ranks_fit_is_asked_for(nodes: str) -> None:
    weights = {k: v for k, v in {"w": W[0, 0], "v": W}.items() if f" {k})" in nodes}
    with pytest.raises(occ.CompileError, match="OCC0204"):
        occ.compile(model(nodes, weights), target="interp")
