"""Quantised products through AscendQuant and AscendDequant on the simulator, against onnxruntime: within a step or two."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from simulating import built, simulated
from test_kernel_tables import loaded

from occ.compiler.codegen_cann.graph.graph import Desc
from occ.compiler.ge_simulator import simulate
from occ.compiler.ge_simulator.reader import BadGraph, read
from occ.runtime.artifact import Artifact

RNG = np.random.default_rng(41)
CHIPS = ("ascend310p", "ascend910b")
HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\ng '


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


WEIGHTS = {
    "s": np.float32(0.02), "z": np.uint8(117), "c": np.int8(-9), "none": np.int8(0), "t": np.float32(0.1), "q": np.uint8(3), "low": np.uint8(0),
    "w": i8(6, 4, 3, 3), "v": i8(8, 6, 1, 1), "d": i8(4, 1, 3, 3), "l": i8(6, 4, 3), "m": i8(24, 10),
    "ws": RNG.uniform(0.001, 0.01, 6).astype(np.float32), "wz": np.zeros(6, np.int8), "one": np.float32(0.003),
    "ms": RNG.uniform(0.001, 0.01, 10).astype(np.float32), "mz": np.zeros(10, np.int8),
    "b": RNG.integers(-900, 900, 6).astype(np.int32), "bs": np.float32(0.00006), "flat": np.array([2, 24], np.int64), "biased": RNG.integers(-9, 9, 10).astype(np.int32),
}  # fmt: skip
X = "(float[2, 4, 7, 8] x)"
BEGIN = f"{X} => (uint8[n, m, h, k] y) {{ i = QuantizeLinear (x, s, z)"
CONV = "QLinearConv <pads = [1, 2, 0, 1], strides = [2, 1]>"
# name -> text, operators of the graph other than those that move elements
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "conv": (f"{BEGIN} y = {CONV} (i, s, z, w, ws, wz, t, q, b) }}", {"AscendQuant": 2, "Conv2D": 1, "AscendDequant": 1}),
    "two convs": (
        f"{BEGIN} a = {CONV} (i, s, z, w, ws, wz, t, q, b) y = QLinearConv (a, t, q, v, one, none, t, z) }}",
        {"AscendQuant": 3, "Conv2D": 2, "AscendDequant": 2},
    ),
    "conv in groups": (
        f"{BEGIN} y = QLinearConv <group = 4, pads = [1, 1, 1, 1]> (i, s, z, d, one, none, t, q) }}",
        {"AscendQuant": 2, "Conv2D": 1, "AscendDequant": 1},
    ),
    "codes that are given": (
        f"(uint8[2, 4, 7, 8] x) => (uint8[n, m, h, k] y) {{ y = {CONV} (x, s, z, w, ws, wz, t, q, b) }}",
        {"AscendQuant": 1, "Conv2D": 1, "AscendDequant": 1, "PadV3": 1},
    ),
    "signed codes that are given": (
        f"(int8[2, 4, 7, 8] x) => (int8[n, m, h, k] y) {{ y = {CONV} (x, s, c, w, ws, wz, t, c, b) }}",
        {"AscendQuant": 1, "Conv2D": 1, "AscendDequant": 1, "PadV3": 1},
    ),
    "conv of one axis": (
        "(float[2, 4, 9] x) => (int8[n, m, h] y) { i = QuantizeLinear (x, s, c) y = QLinearConv <pads = [1, 1]> (i, s, c, l, ws, wz, t, c) }",
        {"AscendQuant": 2, "Conv2D": 1, "AscendDequant": 1, "PadV3": 0},
    ),
    "through a pooling": (
        f"{BEGIN} p = MaxPool <kernel_shape = [2, 2]> (i) y = {CONV} (p, s, z, w, ws, wz, t, q) }}",
        {"AscendQuant": 2, "Conv2D": 1, "AscendDequant": 1, "MaxPoolV3": 1, "PadV3": 1},
    ),
    "codes read with another zero point": (
        f"{BEGIN} y = {CONV} (i, s, q, w, ws, wz, t, q) }}", {"AscendQuant": 1, "Conv2D": 1, "AscendDequant": 0},
    ),
    "product": (
        "(float[2, 4, 24] x) => (uint8[n, k, h] y) { i = QuantizeLinear (x, s, z) y = QLinearMatMul (i, s, z, m, ms, mz, t, q) }",
        {"AscendQuant": 2, "MatMulV2": 1, "AscendDequant": 1, "Sub": 0},
    ),
    "a gemm of a flattened tensor": (
        "(float[2, 4, 2, 3] x) => (uint8[n, k] y) { i = QuantizeLinear (x, s, z) f = Reshape (i, flat) y = com.microsoft.QGemm (f, s, z, m, one, none, biased, t, q) }",
        {"AscendQuant": 2, "MatMulV2": 1, "AscendDequant": 1, "Sub": 0},
    ),
    "sum": (
        f"{BEGIN} j = QuantizeLinear (x, t, q) y = com.microsoft.QLinearAdd (i, s, z, j, t, q, t, z) }}", {"AscendQuant": 3},
    ),
}  # fmt: skip


def model(text: str) -> onnx.ModelProto:
    made = model_of(HEAD + text)
    for port in made.graph.output:
        port.type.tensor_type.ClearField("shape")
    used = {i for n in made.graph.node for i in n.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in WEIGHTS.items() if k in used
    )
    return made


def operators(made: Artifact) -> Counter[str]:
    graphs = [read(v) for k, v in made.files.items() if k.endswith(".air")]
    return Counter(n.type for gs in graphs for g in gs.values() for n in g.nodes)


def given(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    (port,) = m.graph.input
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
    if kind == np.float32:
        return {port.name: RNG.normal(0, 1.5, shape).astype(kind)}
    return {port.name: RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)}


def run(m: onnx.ModelProto, x: dict[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)[0]


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize(("text", "expected"), MODELS.values(), ids=MODELS)
def test_within_two_steps_of_onnxruntime(text: str, expected: dict[str, int], target: str):
    m = model(text)
    x = given(m)
    made, want = built(m, target, cpu_fallback="off"), run(m, x)
    found = operators(made)
    assert {k: found[k] for k in expected} == expected
    (got,) = simulated(made, x)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert len(np.unique(want)) > 8, "the test has something to tell"
    steps = np.abs(got.astype(int) - want.astype(int))
    assert steps.max() <= 2
    assert np.mean(steps > 0) < 0.2
    (exact,) = simulated(built(m, target, cpu_fallback="off", qdq="float"), x)
    assert np.abs(exact.astype(int) - want.astype(int)).max() <= 1  # halves are rounded away from zero in some builds


def test_ge_takes_offsets_out_and_the_graph_does_not(monkeypatch: pytest.MonkeyPatch):
    """Without what GE's passes do to the pattern, the codes of a padded convolution are off by far."""
    m = model(MODELS["conv"][0])
    x = given(m)
    made, want = built(m, "ascend310p"), run(m, x)
    monkeypatch.setattr(simulate.quantised, "take_offsets", lambda g: None)
    assert np.abs(simulated(made, x)[0].astype(int) - want).max() > 8


QDQ = f"""{X} => (float[n, m, h, k] y) {{
    i = QuantizeLinear (x, s, z) a = DequantizeLinear (i, s, z) f = DequantizeLinear <axis = 0> (w, ws, wz) o = DequantizeLinear (b, bs)
    n = Conv (a, f, o) r = Relu (n) u = QuantizeLinear (r, t, low) y = DequantizeLinear (u, t, low)
}}"""


RELU = f"""{X} => (int8[n, m, h, k] y) {{
    i = QuantizeLinear (x, s, none) a = DequantizeLinear (i, s, none) f = DequantizeLinear <axis = 0> (w, ws, wz)
    n = Conv (a, f) r = Relu (n) u = QuantizeLinear (r, t, none) h = DequantizeLinear (u, t, none)
    g = DequantizeLinear (v, one, none) o = Conv (h, g) p = Relu (o) y = QuantizeLinear (p, t, none)
}}"""


@pytest.mark.parametrize("target", CHIPS)
def test_a_relu_before_symmetric_codes_is_a_flag(target: str):
    """No saturation implies it there, as with TensorRT's codes; between the products nothing but codes is left."""
    m = model(RELU)
    x = given(m)
    made, want = built(m, target, cpu_fallback="off"), run(m, x)
    found = operators(made)
    expected = {"Conv2D": 2, "AscendDequant": 2, "AscendQuant": 3, "Relu": 0, "AscendAntiQuant": 0, "Cast": 0}
    assert {k: found[k] for k in expected} == expected
    (got,) = simulated(made, x)
    assert len(np.unique(want)) > 8
    assert want.min() == 0
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 2


@pytest.mark.parametrize("target", ["ascend310", "ascend310b", "ascend910", *CHIPS])
def test_float_operators_between_codes_are_products_of_integers(target: str):
    m = model(QDQ)
    x = given(m)
    made = built(m, target, cpu_fallback="off")
    found = operators(made)
    assert found["AscendDequant"] == 1
    np.testing.assert_allclose(simulated(made, x)[0], run(m, x), atol=0.21)
    floats = operators(built(m, target, cpu_fallback="off", qdq="float"))
    assert not [k for k in floats if k.startswith("Ascend")]


def test_half_precision_dequantises_by_itself():
    m = model("(int8[3, 5] x) => (float16[n, m] y) { y = DequantizeLinear (x, half, c) }")
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(0.25), "half"))
    x = given(m)
    made = built(m, "ascend310p", cpu_fallback="off")
    assert operators(made)["AscendAntiQuant"] == 1
    np.testing.assert_array_equal(simulated(made, x)[0], run(m, x))


def dequant(e, x, **attrs):
    return e.op("AscendDequant", x, e.constant(attrs.pop("scale", np.array([1 << 29], np.uint64))),
                out=Desc("FLOAT16", x.shape), dtype="FLOAT16", **attrs)  # fmt: skip


def multiplied(e, x, y, **attrs):
    return dequant(e, e.op("MatMulV2", x, y, out=Desc("INT32", (4, 4))), **attrs)


PLANTED = {
    "no product": (lambda e, x: dequant(e, e.cast(x, "INT32")), "reads no sums of the matrix unit", "Ascend310P3"),
    "scales that do not fit": (
        lambda e, x: multiplied(e, x, x, scale=np.full(3, 1 << 29, np.uint64)), "3 scales for 4 channels", "Ascend310P3",
    ),
    "a scale of a float": (
        lambda e, x: multiplied(e, x, x, scale=np.array([-1], np.int64).view(np.uint64)), "not a vector of UINT64", "Ascend310P3",
    ),
    "a root": (lambda e, x: multiplied(e, x, x, sqrt_mode=True), "no sqrt_mode", "Ascend310P3"),
    "weights that are not constants": (
        lambda e, x: multiplied(e, e.op("AscendQuant", e.cast(x, "FLOAT"), out=x.desc, scale=1.0, offset=2.0), x),
        "GE sums constant weights alone", "Ascend310P3",
    ),
    "a way of rounding": (
        lambda e, x: e.op("AscendQuant", e.cast(x, "FLOAT"), out=x.desc, scale=1.0, offset=2.0, round_mode="Up"),
        "round_mode is one of", "Ascend310P3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said", "soc"), PLANTED.values(), ids=PLANTED)
def test_what_the_simulator_refuses(make, said: str, soc: str):
    with pytest.raises(BadGraph, match=said):
        loaded(make, soc, "origin", "INT8", (4, 4)).run([np.zeros((4, 4), np.int8)])
