"""Pad by reflection of one long row: its borders run backwards, and are no multiples of a vector."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float", "double", "int8"])
@pytest.mark.parametrize(("n", "before", "after"), [(60, 5, 5), (60, 17, 3), (300, 33, 131), (61, 1, 60)])
def test_borders_of_any_length(n: int, before: int, after: int, dtype: str, target: str) -> None:
    model = model_of(
        f"g ({dtype}[1, {n}] x) => ({dtype}[1, m] y) {{ p = Constant <value_ints = [0, {before}, 0, {after}]> () "
        'y = Pad <mode = "reflect"> (x, p) }'
    )
    kind = {"float": np.float32, "double": np.float64, "int8": np.int8}[dtype]
    x = np.arange(n).reshape(1, n).astype(kind)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    np.testing.assert_array_equal(occ.compile(model, target).run({"x": x})["y"], np.asarray(want), strict=True)
