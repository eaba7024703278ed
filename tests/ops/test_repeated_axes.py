"""Axes that are named twice, also from the end: refused, or what onnxruntime or onnx.reference makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ

X = np.random.default_rng(0).random((1, 3, 4, 1), dtype=np.float32)
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")


def _cases() -> Iterator[tuple[str, int, list[list[int] | None], dict[str, Any]]]:
    """Operators, operator sets, constants and attributes."""
    for axes in ([1, 1], [1, -3], [2, 0, 2]):
        for op in (f"Reduce{r}" for r in REDUCTIONS):
            yield op, 21, [axes], {}
            yield op, 21, [axes], {"keepdims": 0}
            yield op, 11, [], {"axes": axes}
    for axes in ([0, 0], [0, -4], [0, -6], [2, 2], [3, -1]):
        for op in ("Squeeze", "Unsqueeze"):
            yield op, 21, [axes], {}
            yield op, 11, [], {"axes": axes}
    for axes in ([1, 1], [2, -2]):
        yield "Slice", 21, [[0, 1], [2, 3], axes], {}
        yield "Slice", 9, [], {"axes": axes, "starts": [0, 1], "ends": [2, 3]}
        yield "Pad", 21, [[1, 0, 0, 2], None, axes], {}
        yield "CenterCropPad", 21, [[2, 2]], {"axes": axes}
        yield "MeanVarianceNormalization", 13, [], {"axes": axes}
        yield "Resize", 21, [None, None, [6, 6]], {"axes": axes}
    yield "Transpose", 21, [], {"perm": [0, 1, 1, 3]}


def _model(
    op: str, opset: int, constants: list[list[int] | None], attrs: dict[str, Any], *, symbolic: bool
) -> ModelProto:
    data = {f"c{k}": np.array(v, np.int64) for k, v in enumerate(constants) if v is not None}
    reads = ["x", *(f"c{k}" if v is not None else "" for k, v in enumerate(constants))]
    x = helper.make_tensor_value_info("x", 1, list("abcd") if symbolic else X.shape)
    graph = helper.make_graph(
        [helper.make_node(op, reads, ["y"], **attrs)], "g", [x], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(v, n) for n, v in data.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _of_others(m: ModelProto) -> Iterator[np.ndarray]:
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    for run in (
        lambda: onnxruntime.InferenceSession(m.SerializeToString(), quiet).run(None, {"x": X})[0],
        lambda: ReferenceEvaluator(m).run(None, {"x": X})[0],
    ):
        try:
            yield run()
        except Exception:
            continue


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_axes_that_are_named_twice(target: str, symbolic: bool) -> None:
    refused = 0
    for case in _cases():
        m = _model(*case, symbolic=symbolic)
        try:
            y = occ.compile(m, target=target).run({"x": X})["y"]
        except (occ.CompileError, occ.RunError) as e:
            codes = [d.code for d in e.diagnostics] if isinstance(e, occ.CompileError) else [e.code]
            assert not {"OCC0403", "OCC0901", "OCC0902"} & {*codes}, case
            refused += 1
        else:
            assert any(y.shape == z.shape and np.allclose(y, z, atol=1e-5) for z in _of_others(m)), case
    assert refused > 20
