"""Layers of no filters, whose results have no elements: kernels with an axis of extent 0."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ

LAYERS = {
    "Conv": ("float[1,1,3,3] x, float[0,1,2,2] w", "Conv<pads=[1,1,1,1]>(x, w)", (1, 0, 4, 4)),
    "ConvTranspose": ("float[1,2,3,3] x, float[2,0,2,2] w", "ConvTranspose(x, w)", (1, 0, 4, 4)),
    "DeformConv": (
        "float[1,1,3,3] x, float[0,1,2,2] w, float[1,8,4,4] o",
        "DeformConv<pads=[1,1,1,1]>(x, w, o)",
        (1, 0, 4, 4),
    ),
    "MatMul": ("float[0,5] x, float[5,20] w", "MatMul(x, w)", (0, 20)),
    "MatMul of batches": ("float[3,0,5] x, float[3,5,20] w", "MatMul(x, w)", (3, 0, 20)),
}


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("layer", LAYERS)
def test_results_are_empty(layer: str, target: str) -> None:
    inputs, node, shape = LAYERS[layer]
    model = model_of(f"g ({inputs}) => (float[{','.join(map(str, shape))}] y) {{ y = {node} }}")
    feeds = {
        i.name: np.ones([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32) for i in model.graph.input
    }
    np.testing.assert_array_equal(occ.compile(model, target).run(feeds)["y"], np.empty(shape, np.float32), strict=True)
