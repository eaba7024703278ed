"""Names in the branches of If that are there outside too, as optimum's merged decoders have them."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import occ

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
BRANCHES = {
    "result": (
        "y = If (c) <then_branch = t () => (float[N] y) { h = Neg(x) y = Abs(h) }, "
        "else_branch = e () => (float[N] y) { y = Neg(x) }>"
    ),
    "constant": (
        "y = If (c) <then_branch = t () => (float[N] w) <float[1] y = {0.0}> { h = Abs(x) w = Add(h, y) }, "
        "else_branch = e () => (float[N] y) { y = Neg(x) }>"
    ),
    "one inside another": (
        "y = If (c) <then_branch = t () => (float[N] y) { y = If (c) <then_branch = tt () => (float[N] y) { y = Abs(x) }, "
        "else_branch = te () => (float[N] y) { y = Identity(x) }> }, else_branch = e () => (float[N] y) { y = Neg(x) }>"
    ),
}


@pytest.mark.parametrize("case", BRANCHES)
def test_what_a_branch_defines_may_be_called_as_the_result(case: str) -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[N] x, bool c) => (float[N] y) {{ {BRANCHES[case]} }}")
    session = occ.compile(model, "interp")
    x = np.array([1, -2], np.float32)
    for c, expected in ((True, np.abs(x)), (False, -x)):
        np.testing.assert_array_equal(session.run({"x": x, "c": np.array(c)})["y"], expected)
