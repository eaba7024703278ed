"""Branches that a run does not take may be wrong for the shapes it has: that is not an error until they are taken."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import occ

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2, 3] x) => (float y) {
    y = If (c) <
        then_branch = t () => (float a) { h = MatMul(x, x)  a = ReduceSum<keepdims=0>(h) },
        else_branch = e () => (float b) { b = ReduceSum<keepdims=0>(x) }
    >
}"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_a_branch_that_does_not_fit_is_an_error_only_where_it_is_taken(target):
    model = occ.compile(onnx.parser.parse_model(MODEL), target=target)
    (y,) = model.run({"c": np.array(False), "x": X}).values()
    assert y == 15
    with pytest.raises((occ.RunError, occ.CompileError), match="MatMul"):
        model.run({"c": np.array(True), "x": X})


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_a_decided_if_in_a_branch_of_a_decided_if_is_gone(target):
    inner = "e = If (k) < then_branch = tt () => (float p) { p = Relu(x) }, else_branch = ee () => (float q) { q = MatMul(x, x) } >"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float y) {{
        s = Shape(x)  r = Size(s)  two = Constant<value_int=2>()  k = Equal(r, two)
        y = If (k) < then_branch = t () => (float e) {{ {inner} }}, else_branch = f () => (float b) {{ b = Neg(x) }} >
    }}"""
    from occ.compiler.driver.compilation import Compilation, Settings

    made = Compilation(onnx.parser.parse_model(text), Settings(target)).advance("inferred")
    assert [op.name for op in made.walk() if op.name != "yield"] == ["Relu"]


def test_an_identity_of_unknown_rank_is_gone():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[2, 3] x) => (float y) {
        z = If (c) < then_branch = t () => (float a) { a = Neg(x) },
                     else_branch = e () => (float b) { b = ReduceSum<keepdims=0>(x) } >
        y = Identity(z)
    }"""
    from occ.compiler.driver.compilation import Compilation, Settings

    made = Compilation(onnx.parser.parse_model(text), Settings("cpu-jit")).advance("canonical")
    assert "Identity" not in [op.name for op in made.walk()]


def test_what_no_branch_is_around_is_an_error_at_once():
    with pytest.raises(occ.CompileError, match="MatMul"):
        occ.compile(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float y) { y = MatMul(x, x) }"""), target="interp")  # fmt: skip
