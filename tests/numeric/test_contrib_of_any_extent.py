"""com.microsoft operators with operands of any extents: what does not fit is refused at run time, and no kernel leaves a tensor."""

from __future__ import annotations

import numpy as np
import pytest
from extents import NONE, SOME, of_any_extent, outside
from onnx import ModelProto
from test_contrib import CASES, GQA, model
from test_contrib_exported import CASES as EXPORTED

import occ
from occ.runtime.errors import RunError

OTHERS = (
    "attention-mask", "attention-past", "multi-head-bias", "multi-head-scores", "group-query-bias", "dynamic-lstm-both",
    "rotary-offset",
)  # fmt: skip


def models() -> dict[str, ModelProto]:
    """The first case of each operator, and others whose operands differ: all operands inputs, or all but the first constants."""
    found: dict[str, ModelProto] = {}
    for case, (name, operands, attrs, n, _) in CASES.items():
        if case in OTHERS or not any(k.startswith(f"{name} ") for k in found):
            given = [k for k in operands if not k.startswith("_")]
            found[f"{name} {case}"] = model(name, operands, attrs, n, tuple(k for k in given if k == "total"))
            found[f"{name} {case}, constants"] = model(name, operands, attrs, n, tuple(given[1:]))
    for case, (name, operands, attrs, n, _, constant) in EXPORTED.items():
        found[f"{name} {case}"] = model(name, operands, attrs, n, constant)
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("part", range(4))
def test_kernels_of_contrib_operators_stay_within_their_tensors(part: int) -> None:
    found: dict[str, list[str]] = {}
    for name, made in list(models().items())[part::4]:
        tried = [outside(of_any_extent(made, kept)) for kept in (NONE, SOME[0])]
        if any(texts is not None for texts in tried):
            found[name] = [p for texts in tried for p in texts or ()]
    assert len(found) > 10
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize(("operand", "axis"), [("k", 0), ("v", 0), ("pk", 0), ("pv", 2), ("lens", 0), ("q", 0)])
def test_attention_over_operands_of_unlike_batches_is_an_error(operand: str, axis: int, target: str) -> None:
    """The operator states its types itself, and what it is made of was not checked."""
    made = model("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3, ("total",))
    session = occ.compile(of_any_extent(made, SOME[0]), target)
    feed = {k: v for k, v in GQA.items() if k != "total"}
    session.run(feed)
    with pytest.raises(RunError, match=r"OCC050[13]"):
        session.run(feed | {operand: np.take(feed[operand], [0], axis)})
