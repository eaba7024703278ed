"""Compress by conditions shorter and longer than the axis, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

AXES = ("", "<axis = 0>", "<axis = 1>", "<axis = -1>")
LENGTHS = (0, 1, 3, 4, 12, 13, 40)
CONDITION = "condition of a run", "constant condition"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("known", [False, True], ids=CONDITION)
def test_what_is_past_the_end_of_the_other_is_left_out(known: bool, axis: str, target: str) -> None:
    flags = np.random.default_rng(0).random(max(LENGTHS)) < 0.6
    shape = "k" if not axis else "p, q"
    for n in LENGTHS[-2:] if known else LENGTHS[:1]:
        text = (
            f"g (float[a, b] x{'' if known else ', bool[n] c'}) => (float[{shape}] y) {{ y = Compress {axis} (x, c) }}"
        )
        model = model_of(text, {"c": flags[:n]} if known else {}, opset=19)
        runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        session = occ.compile(model, target)
        for count in [n] if known else LENGTHS:
            for extents in ((3, 4), (1, 1), (0, 4), (3, 0)):
                feeds = {"x": np.arange(np.prod(extents), dtype=np.float32).reshape(extents)}
                feeds |= {} if known else {"c": flags[:count]}
                np.testing.assert_array_equal(session.run(feeds)["y"], runtime.run(None, feeds)[0], strict=True)
