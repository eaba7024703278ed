"""Sample inputs show which nodes must stay FLOAT in a mode with half precision."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import simulated, worst

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.tuning.calibrate import Calibration, calibrate

RNG = np.random.default_rng(11)
SQUARES = """g (float[4, 32] x) => (float[4, 8] y) {
    a = MatMul(x, w)
    s = Mul(a, a)
    m = ReduceMean <axes = [1]> (s)
    r = Sqrt(m)
    y = Div(a, r)
}"""
DIFFERENCES = """g (float[4, 32] x, float[4, 32] z) => (float[4, 32] y) {
    a = Mul(x, c)
    b = Mul(z, c)
    d = Sub(a, b)
    y = Tanh(d)
}"""


def squares() -> onnx.ModelProto:
    return model_of(SQUARES, {"w": RNG.standard_normal((32, 8), dtype=np.float32) * 100}, opset=13)


def calibrated(model: onnx.ModelProto, target: str, x: dict[str, np.ndarray], **options: str) -> Calibration:
    settings = Settings(target, options={"cpu_fallback": "cpu-jit", "keep_dtype": "off", **options})
    return calibrate(Compilation(model, settings), [x])


def test_squares_that_overflow_stay_float():
    model, x = squares(), {"x": RNG.standard_normal((4, 32), dtype=np.float32)}
    want = reference(model, x)
    assert float(np.abs(x["x"] @ onnx.numpy_helper.to_array(model.graph.initializer[0])).max()) ** 2 > 65504
    found = calibrated(model, "ascend910b", x, precision_mode_v2="fp16")
    assert any(f.before.overflows for f in found.findings)
    assert not found.warnings()
    assert worst(simulated(found.artifact, x), want) < 5e-3
    plain = Compilation(model, Settings("ascend910b", options={"precision_mode_v2": "fp16", "keep_dtype": "off"}))
    assert not np.isfinite(simulated(plain.artifact(), x)[0]).all() or worst(simulated(plain.artifact(), x), want) > 0.1


def test_operands_are_kept_where_the_rounding_before_a_node_is_the_cause():
    model = model_of(DIFFERENCES, {"c": np.array(3.0, np.float32)})
    x = RNG.standard_normal((4, 32), dtype=np.float32)
    inputs = {"x": x, "z": x + np.float32(1e-4) * RNG.standard_normal((4, 32), dtype=np.float32)}
    want = reference(model, inputs)
    found = calibrated(model, "ascend910b", inputs, precision_mode_v2="fp16")
    assert [f.operator for f in found.findings] == ["Sub"]
    assert worst(simulated(found.artifact, inputs), want) < 1e-2
    assert found.findings[0].before.error > 0.01 >= found.findings[0].after.error


def test_what_nothing_helps_with_is_a_warning_with_the_node():
    text = "g (float[4, 32] x) => (float[4, 8] y) { big = MatMul(x, w) y = Mul(big, c) }"
    model = model_of(text, {"w": np.full((32, 8), 1e6, np.float32), "c": np.array(1e-6, np.float32)})
    x = {"x": np.ones((4, 32), np.float32)}
    found = calibrated(model, "ascend310p", x, precision_mode_v2="fp16")
    (warning,) = found.warnings()
    assert warning.code == "OCC0307"
    assert "MatMul#1" in warning.text()
    assert "MatMulV2" in warning.text()


def test_values_that_half_precision_has_no_steps_for_are_a_warning_that_says_how_small_they_are():
    weights = {"w": RNG.standard_normal((2, 4, 3, 3), dtype=np.float32) * np.float32(1e-9)}
    model = model_of("g (float[1, 4, 5, 5] x) => (float[1, 2, 3, 3] y) { y = Conv(x, w) }", weights)
    x = {"x": RNG.standard_normal((1, 4, 5, 5), dtype=np.float32)}
    (warning,) = calibrated(model, "ascend310p", x).warnings()
    assert "Conv#1" in warning.text()
    assert re.search(r"has a tensor whose largest value is \d\.\de-0[89], and half precision ends at", warning.text())
    assert not calibrated(model, "ascend910b", x).warnings()


def test_modes_that_lose_nothing_find_nothing():
    x = {"x": RNG.standard_normal((4, 32), dtype=np.float32)}
    found = calibrated(squares(), "ascend910b", x)
    assert found.findings == []
    assert found.kept == frozenset()


def test_it_is_for_ascend_and_needs_samples():
    with pytest.raises(CompileError, match="calibration is not for target `cpu-jit`"):
        calibrate(Compilation(squares(), Settings("cpu-jit")), [{}])
    with pytest.raises(CompileError, match="at least one sample"):
        calibrate(Compilation(squares(), Settings("ascend910b")), [])


def test_the_command_prints_what_was_found(tmp_path: Path, occ_cli):
    onnx.save(squares(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=RNG.standard_normal((4, 32), dtype=np.float32))
    arguments = [
        "build",
        tmp_path / "m.onnx",
        "-t",
        "ascend910b",
        "-C",
        "precision_mode_v2=fp16",
        "-C",
        "keep_dtype=off",
    ]
    arguments += ["-o", tmp_path / "m.occ", "--calibrate", tmp_path / "x.npz"]
    shown = occ_cli(*arguments)
    assert shown.code == 0
    assert "sampled  1 samples" in shown.err
    facts = json.loads(occ_cli(*arguments, "--json").out)
    assert any(f["kept"] for f in facts["calibration"])
    np.savez(tmp_path / "bad.npz", x=np.ones((3, 3), np.float32))
    wrong = occ_cli(*arguments[:-1], tmp_path / "bad.npz")
    assert wrong.code == 1
    assert "OCC0501" in wrong.err
