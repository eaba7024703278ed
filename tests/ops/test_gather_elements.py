"""GatherElements along any axis, at positions from either end, is equal to onnxruntime's for rows of any length."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import occ
from occ.runtime.errors import RunError

INT = {np.int32: TensorProto.INT32, np.int64: TensorProto.INT64}
CASES = {
    "rows of two blocks and one": ((5, 65), (5, 4097), 1, np.int64),
    "a line": ((70,), (4099,), 0, np.int32),
    "columns": ((3, 100), (2, 77), 0, np.int64),
    "planes": ((2, 3, 65), (2, 7, 65), 1, np.int32),
    "nothing": ((4, 70), (0, 70), 0, np.int64),
}


@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", CASES)
def test_gathered_elements(case: str, symbolic: bool, target: str) -> None:
    shape, places, axis, kind = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    i = rng.integers(-shape[axis], shape[axis], places).astype(kind)
    dims = [[f"{n}{k}" for k in range(len(shape))] if symbolic else s for n, s in (("a", shape), ("b", places))]
    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["x", "i"], ["y"], axis=axis)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, dims[0]),
            helper.make_tensor_value_info("i", INT[kind], dims[1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = occ.compile(model, target)
    np.testing.assert_array_equal(session.run({"x": x, "i": i})["y"], theirs.run(None, {"x": x, "i": i})[0])
    if i.size:
        i.flat[i.size // 2] = shape[axis]
        with pytest.raises(RunError, match="has an index outside of the tensor"):
            session.run({"x": x, "i": i})
