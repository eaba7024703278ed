"""Models as AMCT and torch_npu write them, against onnxruntime on the same model in ONNX's operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from onnx import helper

import occ
from occ.compiler.compare import difference
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.sessions import open_session

RNG = np.random.default_rng(31)
STEP, OFFSET, CHANNELS = 0.05, -3, 6
CODES = RNG.integers(-127, 128, (CHANNELS, 4, 3, 3)).astype(np.int8)
STEPS = RNG.uniform(0.005, 0.02, CHANNELS).astype(np.float32)
BIAS = RNG.integers(-500, 500, CHANNELS).astype(np.int32)
MATRIX = RNG.integers(-127, 128, (8, 5)).astype(np.int8)
SUMS = (STEPS * np.float32(STEP)).astype(np.float32)


def bits(scales: np.ndarray) -> np.ndarray:
    """Scales as AscendDequant takes them: FLOAT in the lower half of 64 bits."""
    return np.atleast_1d(np.asarray(scales, np.float32)).view(np.uint32).astype(np.uint64)


def convolution(views: bool = False, **dequant: int) -> onnx.ModelProto:
    """As AMCT writes it; `views`: codes are pooled and moved on their way."""
    between = "p = MaxPool <kernel_shape = [1, 1]> (q) t = Identity (p)" if views else "t = Identity (q)"
    made = model_of(
        f"""<ir_version: 8, opset_import: ["" : 11]>
        g (float[1, 4, 8, 8] x) => (float[1, 6, 8, 8] y) {{
            q = AscendQuant <scale = {1 / STEP}, offset = {float(OFFSET)}> (x)
            {between}
            c = Conv <pads = [1, 1, 1, 1]> (t, w, b)
            y = AscendDequant <dtype = 0, sqrt_mode = 0> (c, s)
        }}""",
        {"w": CODES, "b": BIAS, "s": bits(SUMS)},
    )
    node = made.graph.node[-1]
    node.attribute.extend(helper.make_attribute(k, v) for k, v in dequant.items() if k == "relu_flag")
    return made


def in_onnx(relu: bool) -> onnx.ModelProto:
    """The same as ONNX says it."""
    return model_of(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[1, 4, 8, 8] x) => (float[1, 6, 8, 8] y) {{
            q = QuantizeLinear (x, step, zero)
            f = DequantizeLinear (q, step, zero)
            v = DequantizeLinear <axis = 0> (w, steps)
            c = Conv <pads = [1, 1, 1, 1]> (f, v, b)
            y = {"Relu" if relu else "Identity"} (c)
        }}""",
        {
            "step": np.float32(STEP),
            "zero": np.int8(OFFSET),
            "w": CODES,
            "steps": STEPS,
            "b": (BIAS * SUMS).astype(np.float32),
        },
    )


def right(model: onnx.ModelProto, x: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, x)[0]


def run(model: onnx.ModelProto, target: str, x: dict[str, np.ndarray]) -> np.ndarray:
    if not target.startswith("ascend"):
        return occ.compile(model, target).run(x)["y"]
    artifact = occ.build(model, target, options={"cpu_fallback": "off"})
    return open_session(artifact, 1, simulate=True).run(x)["y"]


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "ascend910", "ascend910b"])
@pytest.mark.parametrize("relu", [0, 1])
def test_products_of_codes_mean_what_their_scales_say(target: str, relu: int) -> None:
    x = {"x": RNG.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    got = run(convolution(views=bool(relu), relu_flag=relu), target, x)
    # AscendQuant rounds in half precision, and is a step off at times.
    most = {"ascend910": 2e-2, "ascend910b": 2e-2}.get(target, 1e-5)
    assert difference(got, right(in_onnx(bool(relu)), x)) < most


def test_chips_that_have_them_get_them_back() -> None:
    artifact = occ.build(convolution(), "ascend310p", options={"cpu_fallback": "off"})
    (air,) = (data for name, data in artifact.files.items() if name.endswith(".air"))
    assert all(kind in air for kind in (b"AscendQuant", b"AscendDequant", b"Conv2D"))


def test_a_product_of_matrices_with_its_bias_after_it() -> None:
    bias = RNG.integers(-500, 500, 5).astype(np.int32)
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 13, "npu" : 1]>
        g (float[3, 8] x) => (float[3, 5] y) {
            q = npu.NPUAscendQuantV2 <axis = -1, dtype = 2> (x, scale, offset)
            m = MatMul (q, w)
            a = Add (m, b)
            y = AscendDequant (a, s)
        }""",
        {
            "scale": np.float32([1 / STEP]),
            "offset": np.float32([OFFSET]),
            "w": MATRIX,
            "b": bias,
            "s": bits(0.05 * 0.01),
        },
    )
    x = {"x": RNG.standard_normal((3, 8)).astype(np.float32)}
    codes = np.clip(np.rint(x["x"] / np.float32(STEP)) + OFFSET, -128, 127)
    want = ((codes - OFFSET) @ MATRIX.astype(np.float64) + bias) * np.float32(0.05 * 0.01)
    for target in ("interp", "cpu-jit"):
        assert difference(run(model, target, x), want.astype(np.float32)) < 1e-5


def test_operators_of_torch_npu() -> None:
    model = model_of(
        """<ir_version: 8, opset_import: ["" : 13, "npu" : 1]>
        g (float[2, 3, 4, 8] x, float[2, 3, 4, 8] z) => (float[2, 4, 3, 5] y) {
            n, unused, s = npu.NPUAddRmsNorm <epsilon = 0.001> (x, z, g)
            o, more = npu.NPURmsNorm (s, g)
            r = npu.NPURotaryMul (n, c, i)
            h = npu.NPUFastGelu (r)
            m = npu.NPUMish (o)
            a = Add (h, m)
            l = npu.NPULinear (a, w, b)
            y = npu.NPUTranspose <perm = [0, 2, 1, 3]> (l)
        }""",
        {
            "g": np.ones(8, np.float32), "c": RNG.standard_normal((1, 3, 4, 8)).astype(np.float32),
            "i": RNG.standard_normal((1, 3, 4, 8)).astype(np.float32), "w": RNG.standard_normal((5, 8)).astype(np.float32),
            "b": RNG.standard_normal(5).astype(np.float32),
        },
    )  # fmt: skip
    given = {k: RNG.standard_normal((2, 3, 4, 8)).astype(np.float32) for k in "xz"}
    k = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    x, z = (v.astype(np.float64) for v in given.values())

    def norm(v: np.ndarray, epsilon: float) -> np.ndarray:
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + epsilon)

    n, o = norm(x + z, 1e-3), norm(x + z, 1e-6)
    r = n * k["c"] + np.concatenate([-n[..., 4:], n[..., :4]], -1) * k["i"]
    sum_ = r / (1 + np.exp(-1.702 * r)) + o * np.tanh(np.log1p(np.exp(o)))
    want = (sum_ @ k["w"].T + k["b"]).transpose(0, 2, 1, 3)
    for target in ("interp", "cpu-jit", "ascend910b"):
        assert difference(run(model, target, given), want.astype(np.float32)) < 2e-5


REFUSED = {
    'y = AscendQuant <scale = 2.0, offset = 0.0, dst_type = "INT4"> (x)': "other codes than INT8",
    "y = AscendQuant <scale = -2.0> (x)": "a scale that is not positive",
    "y = AscendDequant (x, s)": "reads no Conv, Gemm, MatMul of codes",
    "y = AscendDequant (x, x)": "the scale has to be constant",
    "y, r = NPURmsNorm (x, s) z = Relu (r)": "a second result that is read",
    "y = npu.NPUCiou (x, x)": "`NPUCiou` is an operator of Ascend devices",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=REFUSED.values())
def test_what_is_not_read_is_refused_with_the_node(text: str, said: str) -> None:
    out = (
        "(float[2, 4] y, float[2, 1] z)"
        if "z =" in text
        else "(int8[2, 4] y)"
        if "y = AscendQuant" in text
        else "(float[2, 4] y)"
    )
    model = model_of(
        f'<ir_version: 8, opset_import: ["" : 13, "npu" : 1]>\ng (float[2, 4] x) => {out} {{ {text} }}',
        {"s": np.ones(4, np.float32)},
    )
    with pytest.raises(CompileError, match=said) as e:
        occ.build(model, "cpu-jit")
    assert "#1" in e.value.diagnostics[0].text()
