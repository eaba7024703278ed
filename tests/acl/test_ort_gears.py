"""Gears of the provider in onnxruntime: batches, pictures and dims, of whole models and of parts."""

from __future__ import annotations

import numpy as np
import pytest
from building import mlp, model_of
from ort_device import ABC, RNG, agree, nodes, session

import occ

pytestmark = pytest.mark.toolchain


@pytest.mark.parametrize(
    ("how", "sizes", "kind"),
    [
        ({"dynamic_batch_size": "1,2,5"}, (1, 2, 5), "batch"),
        ({"dynamic_dims": "n=2;n=3"}, (2, 3), "dims"),
        ({"dynamic_dims": "2;3"}, (3, 2), "dims"),
    ],
)
def test_gears(how, sizes, kind, device):
    occ.onnxruntime.register("ascend310p", options=how)
    model = mlp()
    opened = session(model)
    assert len(nodes()) == 1
    for n in sizes:
        agree(opened, model, {"x": RNG.standard_normal((n, 8), dtype=np.float32)})
    with pytest.raises(Exception, match=r"was compiled for inputs of \[\d,8\]; .*, not \[7,8\]"):
        opened.run(None, {"x": np.zeros((7, 8), np.float32)})
    agree(opened, model, {"x": RNG.standard_normal((sizes[0], 8), dtype=np.float32)})  # the session goes on


def test_gears_of_pictures(device):
    text = "g (float[1,2,h,w] x) => (float[1,2,h,w] y) { y = Relu(x) }"
    occ.onnxruntime.register("ascend310p")
    opened = session(model_of(text), dynamic_image_size="4,6;8,6")
    for h in (8, 4):
        agree(opened, model_of(text), {"x": RNG.standard_normal((1, 2, h, 6), dtype=np.float32)})


def test_gears_count_in_the_order_of_the_inputs(device):
    model = model_of("g (float[a] x, float[b,2] z) => (float[b,2] y, float[a] w) { y = Relu(z)  w = Neg(x) }")
    occ.onnxruntime.register("ascend310p")
    opened = session(model, dynamic_dims="3,4;5,7")
    for a, b in ((5, 7), (3, 4)):
        agree(
            opened,
            model,
            {"x": RNG.standard_normal(a).astype(np.float32), "z": RNG.standard_normal((b, 2)).astype(np.float32)},
        )


def test_gears_of_parts(device):
    model = model_of(ABC.replace("[4,8]", "[n,8]"))
    occ.onnxruntime.register("ascend310p")
    opened = session(model, dynamic_batch_size="1,4")
    assert sorted(nodes()) == [2, 3]
    for n in (4, 1):
        agree(opened, model, {"x": RNG.standard_normal((n, 8), dtype=np.float32)})
