"""Operands that ONNX's text calls one number are checked, all of them; explicit defaults are not requests."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.ir.operator.operand_forms import NUMBERS, VECTORS
from occ.compiler.ir.operator.registry import builtin

_NUMBER = re.compile(r"\b(0-D tensor|scalars?|single element)\b", re.IGNORECASE)
_OR_MORE = re.compile(r"\b(1-D|1D|N-D|broadcast|per-head scalar|as if C is)\b")
# Whose own definitions look at the extents, for reasons of their own.
ELSEWHERE = {
    "Clip": "its bounds broadcast",
    "If": "`infer_control`",
    "OneHot": "its depth may be a vector of one",
    "Range": "`data_dependent_shapes`",
    "NonMaxSuppression": "a routine, whose operands `infer` checks",
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow", "DFT", "STFT"), "`signal`"),
    **dict.fromkeys(("Adagrad", "Adam", "Momentum", "Pad", "Trilu"), "`scalar` reads it"),
}


def _texts() -> Iterator[tuple[str, str]]:
    """Operators and operands that are one number by ONNX's text."""
    for s in onnx.defs.get_all_schemas():
        for i in s.inputs:
            if _NUMBER.search(i.description) and not _OR_MORE.search(i.description):
                yield s.name, i.name


def test_all_operands_that_are_one_number_are_checked() -> None:
    found = dict.fromkeys(_texts())
    assert len(found) > 20
    missing = [f"{op}.{name}" for op, name in found if op not in ELSEWHERE and name not in NUMBERS.get(op, ())]
    assert not missing


@pytest.mark.parametrize("table", [NUMBERS, VECTORS])
def test_tables_name_operands_that_there_are(table: dict[str, tuple[str, ...]]) -> None:
    for op, names in table.items():
        assert set(names) <= {o.name for o in builtin()[op].operands}, op


@pytest.mark.parametrize("attribute", ["output_dtype", "precision"])
def test_a_stated_default_of_no_element_type(attribute: str) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], **{attribute: 0})
    info = [helper.make_tensor_value_info(n, 1, shape) for n, shape in (("x", [3]), ("s", []))]
    graph = helper.make_graph([node], "g", info, [helper.make_empty_tensor_value_info("y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    feeds = {"x": np.float32([1.4, 2.6, 300]), "s": np.float32(1)}
    found = occ.compile(made, target="interp").run(feeds)["y"]
    (wanted,) = ReferenceEvaluator(made).run(None, feeds)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.uint8


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_an_axis_in_a_vector_of_one(target: str) -> None:
    graph = "g (float[2,3] x) => (y) { a = Constant<value_ints = [1]>() y = CumSum(x, a) }"
    text = f'<ir_version: 9, opset_import: ["" : 20]> {graph}'
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = occ.compile(parser.parse_model(text), target=target).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.cumsum(x, 1))
