"""The three targets agree with onnx.reference on a small model."""

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest

import occ

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> {
  h = MatMul(x, w)
  y = Relu(h)
}
"""


@pytest.mark.parametrize("target", ["cpu", "cpu-jit", "interp"])
def test_matmul_relu_at_two_batch_sizes_from_one_build(target: str) -> None:
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 4), dtype=np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    compiled = occ.compile(model, target=target)
    for batch in (1, 5):
        x = rng.standard_normal((batch, 8), dtype=np.float32)
        (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(compiled.run({"x": x})["y"], want, rtol=1e-5, atol=1e-6)
