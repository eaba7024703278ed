"""Columns whose number a run knows are reduced in strips, in vectors, or in guarded ones: each agrees with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, onnxruntime_of

import occ

SHAPES = (
    (1, 1),
    (3, 15),
    (70, 16),
    (60, 17),
    (64, 127),
    (64, 128),
    (64, 129),
    (520, 200),
    (1100, 333),
    (0, 130),
    (5, 0),
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("op", "dtype"), [("ReduceSum", "float"), ("ReduceMean", "float"), ("ReduceSum", "double"), ("ReduceMax", "float"),
                      ("ReduceSum", "int64"), ("ReduceL2", "float")],
)  # fmt: skip
def test_columns(op: str, dtype: str, target: str) -> None:
    rng = np.random.default_rng(0)
    model = model_of(
        f"g ({dtype}[n, k] x) => ({dtype}[k] y) {{ a = Constant <value = int64[1] {{0}}> () y = {op} <keepdims = 0> (x, a) }}"
    )
    theirs, session = onnxruntime_of(model), occ.compile(model, target)
    for shape in SHAPES:
        if shape[0] == 0 and op != "ReduceSum":
            continue  # onnxruntime takes none
        x = rng.integers(-9, 9, shape).astype(np.float32 if dtype == "float" else dtype.replace("double", "float64"))
        wanted = np.asarray(theirs.run(None, {"x": x})[0])
        np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-6)
