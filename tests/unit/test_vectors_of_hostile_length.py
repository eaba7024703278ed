"""Vectors of 2**40 elements where shapes, axes or lengths are taken: refused or left to a run, and never listed."""

from __future__ import annotations

import pytest
from building import model_of

import occ

REFUSED = ["Reshape(x, s)", "Expand(x, s)", "ConstantOfShape(s)", "Unsqueeze(x, s)", "Col2Im(x, s, s)"]
LEFT = [
    "Tile(x, s)",
    "Slice(x, s, s)",
    "Pad(x, s)",
    "ReduceSum(x, s)",
    "Split(x, s)",
    "CenterCropPad(x, s)",
]


def model(node: str):
    made = model_of(f"g (float[4, 4] x, int64[1099511627776] s) => (float y) {{ y = {node} }}")
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.parametrize("node", REFUSED)
def test_ranks_of_no_tensor_are_refused(node: str) -> None:
    with pytest.raises(occ.CompileError, match=r"would have 10995116277\d\d axes"):
        occ.compile(model(node), target="interp")


def test_resize_takes_a_size_for_each_axis() -> None:
    with pytest.raises(occ.CompileError, match=r"OCC0202.*1099511627776 scales or sizes for 2 axes"):
        occ.compile(model("Resize(x, , , s)"), target="interp")


@pytest.mark.parametrize("node", LEFT)
def test_what_only_a_run_can_see_is_left_to_it(node: str) -> None:
    assert occ.compile(model(node), target="interp").outputs[0].shape == ("?", "?")
