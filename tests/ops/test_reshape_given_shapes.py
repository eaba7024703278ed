"""Reshape to shapes that are inputs: every mixture of 0, -1 and numbers, and empty tensors, against onnxruntime."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

import occ

SHAPES = ((2, 3), (6, 1), (1, 1), (0, 3), (5, 0), (0, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("allowzero", [0, 1])
def test_zeros_copy_or_are_sizes(allowzero: int, rank: int, target: str) -> None:
    extents = ", ".join("uv"[:rank])
    text = f"g (float[p, q] x, int64[{rank}] s) => (float[{extents}] y) {{ z = Reshape<allowzero = {allowzero}>(x, s) y = Neg(z) }}"
    model = model_of(text, opset=19)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session = occ.compile(model, target)
    taken = refused = 0
    for shape, asked in product(SHAPES, product((-1, 0, 1, 3), repeat=rank)):
        feeds = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape), "s": np.array(asked)}
        try:
            want = runtime.run(None, feeds)[0]
        except (Fail, RuntimeException):
            want = None
        if want is None or (allowzero and {0, -1} <= set(asked)):  # which ONNX forbids; onnxruntime takes it of nothing
            refused += 1
            with pytest.raises(occ.RunError, match=r"OCC050[34]"):
                session.run(feeds)
            continue
        taken += 1
        np.testing.assert_array_equal(session.run(feeds)["y"], want, strict=True, err_msg=f"{shape} to {asked}")
    assert taken > 6
    assert refused > 2
