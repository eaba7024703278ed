"""Quantised operators with `qdq=float` on the simulator, against onnxruntime: integer sums are exact, so that results are equal."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from simulating import built, simulated

from occ.compiler.ge_simulator.reader import read

RNG = np.random.default_rng(11)
CONV = "strides = [2, 1], pads = [1, 2, 0, 1]"
TEXTS = {
    "conv": f"(uint8[1, 4, 9, 8] x) => (uint8[1, 6, 4, 9] y) {{ y = QLinearConv <{CONV}> (x, xs, xz, w, ws, wz, ys, yz, b) }}",
    "conv of unsigned filters": f"(uint8[1, 4, 9, 8] x) => (uint8[1, 6, 4, 9] y) {{ y = QLinearConv <{CONV}> (x, xs, xz, uw, xs, uz, ys, yz) }}",
    "conv in groups": "(int8[2, 4, 7] x) => (int8[2, 6, 5] y) { y = QLinearConv <group = 2> (x, xs, iz, gw, ws, wz, ys, iz) }",
    "conv of unsigned filters in groups": "(uint8[2, 4, 7] x) => (uint8[2, 6, 7] y) { y = QLinearConv <group = 2, auto_pad = \"SAME_UPPER\"> (x, xs, xz, ug, xs, uz, ys, yz) }",
    "integer conv": "(uint8[1, 4, 6, 6] x) => (int32[1, 6, 6, 6] y) { y = ConvInteger <pads = [1, 1, 1, 1]> (x, uw, xz, uz) }",
    "integer conv without zero points": "(uint8[1, 4, 6, 6] x) => (int32[1, 6, 6, 6] y) { y = ConvInteger <pads = [1, 1, 1, 1]> (x, uw) }",
    "product": "(uint8[2, 3, 4] x, uint8[2, 4, 6] z) => (uint8[2, 3, 6] y) { y = QLinearMatMul (x, xs, xz, z, ys, uz, ys, yz) }",
    "product with columns": "(uint8[3, 4] x) => (uint8[3, 6] y) { y = QLinearMatMul (x, xs, xz, m, cs, cz, ys, yz) }",
    "gemm": "(uint8[3, 4] x) => (uint8[3, 6] y) { y = com.microsoft.QGemm <transB = 1, alpha = 0.5> (x, xs, xz, t, ws, wz, b, ys, yz) }",
    "gemm to float": "(uint8[4, 3] x) => (float[3, 6] y) { y = com.microsoft.QGemm <transA = 1> (x, xs, xz, m, ys, zero) }",
    "sum": "(uint8[2, 3, 4] x, uint8[3, 1] z) => (uint8[2, 3, 4] y) { y = com.microsoft.QLinearAdd (x, xs, xz, z, ys, uz, ys, yz) }",
    "elementwise product": "(uint8[2, 3, 4] x, uint8[3, 1] z) => (uint8[2, 3, 4] y) { y = com.microsoft.QLinearMul (x, xs, xz, z, ys, uz, ys, yz) }",
}  # fmt: skip
WEIGHTS = {
    "w": RNG.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8), "uw": RNG.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8),
    "gw": RNG.integers(-128, 128, (6, 2, 3)).astype(np.int8), "ug": RNG.integers(0, 256, (6, 2, 3)).astype(np.uint8),
    "m": RNG.integers(-128, 128, (4, 6)).astype(np.int8), "t": RNG.integers(-128, 128, (6, 4)).astype(np.int8),
    "ws": RNG.uniform(0.001, 0.01, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
    "cs": RNG.uniform(0.001, 0.01, 6).astype(np.float32), "cz": RNG.integers(-20, 20, 6).astype(np.int8),
    "xs": np.array(0.021, np.float32), "xz": np.array(117, np.uint8), "uz": np.array(99, np.uint8),
    "ys": np.array(0.043, np.float32), "yz": np.array(128, np.uint8), "iz": np.array(-3, np.int8),
    "zero": np.array(5, np.int8), "b": RNG.integers(-900, 900, 6).astype(np.int32),
}  # fmt: skip


def model(name: str) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\ng '
    made = model_of(head + TEXTS[name])
    used = {i for n in made.graph.node for i in n.input}
    made.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in WEIGHTS.items() if k in used)
    return made


@pytest.mark.parametrize("name", TEXTS)
def test_same_as_onnxruntime(name: str):
    m = model(name)
    given: dict[str, np.ndarray] = {}
    for port in m.graph.input:
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        given[port.name] = RNG.integers(low, high + 1, shape).astype(kind)
    session = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, given)
    made = built(m, cpu_fallback="off", qdq="float")
    assert [p.name for p in made.manifest.parts] == ["part0"]
    (got,) = simulated(made, given)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


PRODUCTS = {
    "matrix": ("MatMulInteger (x, w, xz, wz)", "uint8[3, 512]", (512, 64)),
    "matrix of columns": ("MatMulInteger (x, w, xz, wzs)", "uint8[3, 512]", (512, 64)),
    "batch": ("MatMulInteger (x, w, xz)", "uint8[2, 3, 32]", (2, 32, 512)),
    "conv": ("ConvInteger (x, w, xz, wz)", "uint8[1, 64, 5, 5]", (64, 64, 3, 3)),
}


@pytest.mark.parametrize(("node", "given", "shape"), PRODUCTS.values(), ids=PRODUCTS)
def test_weights_are_stored_once(node: str, given: str, shape: tuple[int, ...]):
    """What zero points need of them is summed at build time, and sums of the other operand are products with ones."""
    weights = {
        "w": RNG.integers(-128, 128, shape).astype(np.int8), "xz": np.array(100, np.uint8), "wz": np.array(3, np.int8),
        "wzs": RNG.integers(-5, 5, shape[-1]).astype(np.int8),
    }  # fmt: skip
    m = model_of(
        f"g ({given} x) => (int32[n] y) {{ y = {node} }}", {k: v for k, v in weights.items() if f" {k}" in node}
    )
    m.graph.output[0].type.tensor_type.ClearField("shape")
    x = {"x": RNG.integers(0, 256, [int(d) for d in given[6:-1].split(",")]).astype(np.uint8)}
    made = built(m, cpu_fallback="off")
    assert made.manifest.parts[0].weights < 1.15 * weights["w"].nbytes
    np.testing.assert_array_equal(
        simulated(made, x)[0], onnxruntime.InferenceSession(m.SerializeToString()).run(None, x)[0]
    )
    assert "ReduceSum" not in {n.type for n in next(iter(read(made.files["device/part0.air"]).values())).nodes}
