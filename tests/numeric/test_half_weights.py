"""Weights of 16 bits: they stay so in memory, are read in panels, and agree with f32 sums of the same values."""

import platform
import shutil
import subprocess
from pathlib import Path

import machines
import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.passes.layout.narrow_weights import narrowed
from occ.runtime.open import open_artifact

KINDS = {
    "f16": (np.dtype(np.float16), TensorProto.FLOAT16),
    "bf16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16),
}
ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, 65504.0, 1.0], np.float32)


def graph(nodes, inputs, output, weights) -> onnx.ModelProto:
    made = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(w, n) for n, w in weights.items()])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def behind_a_cast(kind: str, rows: int, *, gemm: bool, seed: int = 0) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """A product of f32 rows and half weights of 384 x 300; returns also the rows and the exact result."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 384), dtype=np.float32)
    w = rng.standard_normal((384, 300)).astype(KINDS[kind][0])
    stored = np.ascontiguousarray(w.T) if gemm else w
    product = (
        helper.make_node("Gemm", ["x", "f"], ["y"], transB=1) if gemm else helper.make_node("MatMul", ["x", "f"], ["y"])
    )
    model = graph(
        [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), product],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 384])],
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 300]),
        {"w": stored},
    )
    return model, x, x.astype(np.float64) @ w.astype(np.float64)


def weight_bytes(compilation: Compilation) -> int:
    return sum(w.data.nbytes for w in compilation.module.weights.values())


@pytest.mark.thinned
@pytest.mark.parametrize("gemm", [False, True], ids=["matmul", "gemm"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_behind_a_cast_stay_narrow_for_few_rows(kind: str, gemm: bool) -> None:
    """On a processor that widens f16 in one instruction."""
    model, x, exact = behind_a_cast(kind, 1, gemm=gemm)
    widens = {} if machines.current().has_f16c else {"halide.target": machines.TARGETS["x86-64-v3"]}
    compilation = Compilation(model, Settings("cpu", options=widens, verify=True))
    session = machines.opened(compilation.artifact())
    assert 2 * 384 * 300 <= weight_bytes(compilation) <= 2 * 384 * 320  # panels are filled up
    (y,) = session(x)
    assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()


def test_weights_are_widened_for_many_rows() -> None:
    model, x, exact = behind_a_cast("f16", 64, gemm=False)
    compilation = Compilation(model, Settings("cpu"))
    session = open_artifact(compilation.artifact())
    assert weight_bytes(compilation) >= 4 * 384 * 300
    (y,) = session(x)
    assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("kind", KINDS)
def test_narrowing_keeps_every_bit(kind: str) -> None:
    values = np.tile(ODD, (40, 1)).astype(KINDS[kind][0]).astype(np.float32)
    made = narrowed(values)
    assert made is not None
    assert made.dtype.itemsize == 2
    assert np.array_equal(made.astype(np.float32).view(np.uint32), values.view(np.uint32))


def test_what_does_not_fit_is_left() -> None:
    wide = np.ones((512, 512), np.float32)
    wide[400, 3] = 1 + 2**-20
    assert narrowed(wide) is None
    assert narrowed(np.full((4, 4), 1e-9, np.float32) * np.float32(1.001)) is None
    third = np.full((4, 4), np.float16(1 / 3), np.float32)  # 11 bits: f16, and no bf16
    assert narrowed(third) is not None
    assert narrowed(third, f16=False) is None


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("channels", "out", "taps", "how"),
    [
        (32, 48, 1, {}),
        (32, 40, 3, {"pads": [1, 1, 1, 1]}),
        (3, 32, 3, {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
        (48, 48, 3, {"group": 48, "pads": [1, 1, 1, 1]}),
    ],
    ids=["1x1", "3x3", "first", "depthwise"],
)
def test_convolutions_of_half_floats(kind: str, channels: int, out: int, taps: int, how: dict) -> None:
    dtype, code = KINDS[kind]
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, channels, 13, 11)).astype(dtype)
    w = (rng.standard_normal((out, channels // how.get("group", 1), taps, taps)) * 0.2).astype(dtype)
    b = rng.standard_normal(out).astype(dtype)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], **how), helper.make_node("Relu", ["c"], ["y"])]

    def of(code: int, *weights: np.ndarray) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", code, ["n", channels, 13, 11])
        return graph(nodes, [given], helper.make_tensor_value_info("y", code, None), {"w": weights[0], "b": weights[1]})

    (y,) = occ.compile(of(code, w, b), "cpu")(x)
    wide = of(TensorProto.FLOAT, w.astype(np.float32), b.astype(np.float32))
    (exact,) = onnx.reference.ReferenceEvaluator(wide).run(None, {"x": x.astype(np.float32)})
    assert y.dtype == dtype
    step = 2.0**-11 if kind == "f16" else 2.0**-8  # half of the last place: sums are f32 and rounded once
    assert np.all(np.abs(y.astype(np.float64) - exact) <= 1.01 * step * np.abs(exact) + 1e-5)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build for x86-64")
def test_f16_is_widened_by_vector_instructions(tmp_path: Path) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    model, _, _ = behind_a_cast("f16", 1, gemm=False)
    artifact = Compilation(model, Settings("cpu", options={"halide.target": machines.TARGETS["x86-64-v3"]})).artifact()
    (tmp_path / "model.so").write_bytes(artifact.code)
    done = subprocess.run(["objdump", "-d", str(tmp_path / "model.so")], capture_output=True, text=True, check=True)
    assert any("vcvtph2ps" in line and ("zmm" in line or "ymm" in line) for line in done.stdout.splitlines())
