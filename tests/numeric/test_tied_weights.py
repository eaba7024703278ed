"""An embedding and a head that share a matrix: it is stored once, and results are those of onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ

WORDS, WIDTH = 2003, 40


def model(matrix: np.ndarray, batch: str | int) -> onnx.ModelProto:
    """The embedding of words, and the head for the last one."""
    held = {"matrix": matrix, "last": np.array(-1)}
    n = helper.make_node
    nodes = [
        n("Gather", ["matrix", "ids"], ["rows"]), n("Tanh", ["rows"], ["mixed"]),
        n("Gather", ["mixed", "last"], ["one"], axis=1),
        n("Transpose", ["matrix"], ["head"], perm=[1, 0]), n("MatMul", ["one", "head"], ["logits"]),
    ]  # fmt: skip
    value, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
    outputs = [value("rows", f32, [batch, "sequence", WIDTH]), value("logits", f32, [batch, WORDS])]
    inputs = [value("ids", TensorProto.INT64, [batch, "sequence"])]
    weights = [numpy_helper.from_array(data, name) for name, data in held.items()]
    graph = helper.make_graph(nodes, "tied", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("kind", "batch", "size"), [("f32", "batch", 4), ("f16", 1, 2), ("bf16", 1, 2), ("f32", 1, 4)])
def test_a_matrix_is_stored_once(kind: str, batch: str | int, size: int) -> None:
    """In 16 bits if no value changes, and one row is multiplied by it."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(WORDS, WIDTH)).astype(np.float32)
    if kind != "f32":
        matrix = matrix.astype(np.float16 if kind == "f16" else ml_dtypes.bfloat16).astype(np.float32)
    made = model(matrix, batch)
    s = occ.compile(made, "cpu", threads=1)
    assert sum(w.nbytes for w in s.artifact.manifest.weights) < 1.1 * size * matrix.size
    peer = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (1, 7):
        ids = rng.integers(-WORDS, WORDS, (1, count))
        (rows, logits), want = s(ids), peer.run(None, {"ids": ids})
        np.testing.assert_array_equal(rows, want[0])
        np.testing.assert_allclose(logits, want[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(occ.RunError):
        s(np.array([[WORDS]]))
