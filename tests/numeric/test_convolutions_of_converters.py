"""Convolutions as tf2onnx writes those of Keras: along one axis as one of two, with views between them and their bias."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 9, 5] x) => (float[n, 7, 4] y) <int64[1] last = {3}, int64[1] third = {2}> {
  u = Transpose <perm = [0, 2, 1]> (x)
  p = Unsqueeze(u, third)
  c = Conv <kernel_shape = [1, 3]> (p, w)
  s = Squeeze(c, third)
  a = Add(s, b)
  m = Mul(a, k)
  t = Transpose <perm = [0, 2, 1]> (m)
  d = Sub(t, e)
  y = Relu(d)
}"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (4, 5, 1, 3), "b": (1, 4, 1), "k": (4, 1), "e": (4,)}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return made


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_views_between_a_convolution_and_its_bias(target: str, rows: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, 9, 5)).astype(np.float32)
    got = occ.compile(model(), target).run({"x": x})["y"]
    if rows:
        (want,) = ReferenceEvaluator(model()).run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.shape == (rows, 7, 4)


def test_what_follows_the_views_is_in_the_convolution() -> None:
    fused = Compilation(model(), Settings("cpu-jit")).advance("canonical")
    names = [op.name for op in fused.walk()]
    assert not {"Add", "Mul", "Sub"} & set(names)
    assert names.index("Relu") == names.index("Conv") + 1
