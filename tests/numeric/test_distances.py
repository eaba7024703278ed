"""Sums of squared differences of rows: in the tiles of a product, with the digits of close points kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

import occ

RNG = np.random.default_rng(36)
IN_STEPS = """
    p = Unsqueeze(a, at) q = Unsqueeze(b, zero) d = Sub(p, q) s = Mul(d, d) y = ReduceSum <keepdims = 0> (s, two)"""


def model(m: int | str, n: int | str, k: int | str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[{m}, {k}] a, float[{n}, {k}] b) => (float[{m}, {n}] y)
        <int64[1] zero = {{0}}, int64[1] at = {{1}}, int64[1] two = {{2}}> {{ {IN_STEPS} }}""")


@pytest.mark.parametrize("target", ["cpu", "cpu-jit", "interp"])
@pytest.mark.parametrize("symbolic", ["", "m n", "m n k"])
def test_distances_are_those_of_the_reference(symbolic: str, target: str) -> None:
    for m, n, k in (37, 45, 51), (3, 33, 7), (1, 70, 64), (20, 1, 33):
        made = model(*(d if d in symbolic.split() else e for d, e in (("m", m), ("n", n), ("k", k))))
        a, b = (RNG.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
        b[:1] = a[:1] + 1e-4  # |a|^2 + |b|^2 - 2ab would have no digit of their distance
        want: Any
        (want,) = onnx.reference.ReferenceEvaluator(made).run(None, {"a": a, "b": b})
        np.testing.assert_allclose(occ.compile(made, target).run({"a": a, "b": b})["y"], want, rtol=1e-5)


@pytest.mark.parametrize("kind", ["double", "float16", "int32", "int64"])
def test_other_types_and_rows_of_one_operand(kind: str) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind.upper()))
    made = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g ({kind}[h, m, 21] a) => ({kind}[h, m, m] y) <int64[1] zero = {{1}}, int64[1] at = {{2}}, int64[1] two = {{3}}> {{
            b = Identity(a) {IN_STEPS} }}""")
    a = RNG.integers(-9, 9, (3, 35, 21)).astype(dtype)
    want: Any
    (want,) = onnx.reference.ReferenceEvaluator(made).run(None, {"a": a})
    np.testing.assert_allclose(
        occ.compile(made, "cpu").run({"a": a})["y"], want, rtol=1e-3 if dtype == np.float16 else 0
    )


def test_rows_of_both_operands_are_tiled() -> None:
    assert "role(columns)" in str(occ.dump(model("m", "n", 64), "scheduled"))
    assert "role(columns)" in str(occ.dump(model(128, 96, 64), "scheduled"))


def test_one_row_or_one_operand_is_not() -> None:
    assert "role(columns)" not in str(occ.dump(model(1, 96, 64), "scheduled"))
    lengths = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[m, 64] a) => (float[m] y) <int64[1] one = {1}> {
            s = Mul(a, a) y = ReduceSum <keepdims = 0> (s, one) }""")
    assert "role(columns)" not in str(occ.dump(lengths, "scheduled"))
