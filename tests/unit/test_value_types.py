"""The check of the interpreter that values are what the IR says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import occ
from occ.compiler.interp.value_types import type_problem
from occ.compiler.ir.dim import symbol
from occ.compiler.ir.dtype import F32, I64, STR
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType
from occ.runtime import hostops

ROWS = TensorType(F32, (symbol("n"), 3))


@pytest.mark.parametrize(("x", "type_", "text"), [
    (np.zeros((2, 3), np.float32), ROWS, ""),
    (np.zeros((2, 3)), ROWS, "elements of float64 instead of f32[n,3]"),
    (np.zeros((2, 4), np.float32), ROWS, "extents [2, 4] instead of f32[n,3]"),
    (np.zeros((5, 3), np.float32), ROWS, "extents [5, 3] instead of f32[n,3]"),
    (np.zeros((2, 3, 1), np.float32), ROWS, "extents [2, 3, 1] instead of f32[n,3]"),
    ([1.0], ROWS, "list instead of f32[n,3]"),
    (np.array(["a", 1], object), TensorType(STR, None), "an element of int instead of str[*]"),
    (None, OptionalType(ROWS), ""),
    ([np.zeros(3, np.int64)], SequenceType(TensorType(F32, None)), "elements of int64 instead of f32[*]"),
    ({}, MapType(I64, TensorType(F32, ())), ""),
    ([], MapType(I64, TensorType(F32, ())), "list instead of map<i64,f32[]>"),
])  # fmt: skip
def test_values_against_types(x: Any, type_: Any, text: str) -> None:
    assert type_problem(x, type_, {"n": 2}) == text


def test_sizes_that_nothing_has_shown_yet_may_be_any() -> None:
    assert type_problem(np.zeros((7, 3), np.float32), ROWS, {}) == ""


def test_the_interpreter_looks_at_what_operators_give(monkeypatch: pytest.MonkeyPatch) -> None:
    m = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (string[n] x, string[n] y) => (string[n] z) { z = StringConcat(x, y) }'
    )
    wrong = dict(hostops.routines())
    wrong["StringConcat"] = lambda x, y, a: np.zeros(x.shape, np.int64)
    monkeypatch.setattr(hostops, "routines", lambda: wrong)
    texts = np.array(["a"], object)
    with pytest.raises(occ.RunError, match=r"OCC0901.*StringConcat.*elements of int64 instead of str\[n\]"):
        occ.compile(m, target="interp").run({"x": texts, "y": texts})


def test_elements_of_sequences_have_the_type_of_the_input() -> None:
    m = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (seq(float[n]) x) => (float[m] y) { y = ConcatFromSequence<axis = 0>(x) }'
    )
    compiled = occ.compile(m, target="interp")
    assert compiled.run({"x": [np.float32([1]), np.float32([2])]})["y"].tolist() == [1, 2]
    with pytest.raises(occ.RunError, match=r"OCC0501.*float64, the model takes float32"):
        compiled.run({"x": [np.float32([1]), np.float64([2])]})


def test_tensors_within_an_optional_have_the_extents_of_the_input() -> None:
    """They were not looked at, and a kernel behind OptionalGetElement read past the end."""
    m = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (optional(float[5]) x) => (float[5] y)'
        " { z = OptionalGetElement(x)  y = Neg(z) }"
    )
    for target in ("interp", "cpu-jit"):
        compiled = occ.compile(m, target=target)
        assert compiled.run({"x": np.ones(5, np.float32)})["y"].tolist() == [-1] * 5
        for x in (np.ones(3, np.float32), np.ones((1, 5), np.float32)):
            with pytest.raises(occ.RunError, match=r"OCC0501.*the model takes \[5\] there"):
                compiled.run({"x": x})


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_an_element_whose_extents_differ_where_they_must_not_is_refused(target: str) -> None:
    """`MatMul(a, a)` shows that the element is square."""
    m = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (seq(float[n, k]) s) => (float[p, q] y)
        <int64 zero = {0}> { a = SequenceAt(s, zero) y = MatMul(a, a) }"""
    )
    session = occ.compile(m, target)
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_allclose(session.run({"s": [x]})["y"], x @ x)
    with pytest.raises(occ.RunError, match=r"OCC0503.*SequenceAt"):
        session.run({"s": [np.ones((2, 3), np.float32)]})
