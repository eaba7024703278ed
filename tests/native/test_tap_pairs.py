"""Depthwise convolutions of bytes without VNNI: two taps are interleaved and multiplied at once, and sums are exact."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from building import model_of
from machines import TARGETS, opened

import occ

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(7)
ENDS = np.array([-128, 127, 100, -77, 1, 0], np.int8)
WINDOWS = {
    "3x3": ("x [1, 40, 9, 10]", "pads = [1, 1, 1, 1]", (3, 3)),
    "strided": ("x [2, 24, 11, 9]", "strides = [2, 2], pads = [1, 1, 1, 1]", (3, 3)),
    "5x5": ("x [1, 16, 12, 9]", "pads = [2, 2, 2, 2]", (5, 5)),
    "apart": ("x [1, 17, 12, 11]", "dilations = [2, 1], pads = [0, 1, 1, 0]", (3, 2)),
}


def depthwise(window: str, dtype: type, point: int) -> onnx.ModelProto:
    x, how, kernel = WINDOWS[window]
    channels = int(x.split(", ")[1])
    text = f"g ({np.dtype(dtype).name}{x[1:]} x) => (int32[N, C, H, W] y) {{ y = ConvInteger <group = {channels}, {how}> (x, w, z) }}"
    weight = RNG.choice(ENDS, (channels, 1, *kernel))
    weight[0], weight[1] = 127, -128
    return model_of(text, {"w": weight, "z": np.array(point, dtype)})


@pytest.mark.parametrize(("dtype", "point"), [(np.uint8, 0), (np.uint8, 255), (np.int8, -128), (np.int8, 3)])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v2"])
def test_sums_at_the_ends_of_their_range(machine: str, window: str, dtype: type, point: int) -> None:
    made = depthwise(window, dtype, point)
    session = opened(occ.build(made, "cpu", options={"halide.target": TARGETS[machine]}), 1)
    shape = tuple(int(n) for n in session.inputs[0].shape)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for codes in (np.full(shape, most), np.full(shape, least), RNG.integers(least, most + 1, shape)):
        x = codes.astype(dtype)
        (want,) = onnx.reference.ReferenceEvaluator(made).run(None, {"x": x})
        np.testing.assert_array_equal(session.run({"x": x})["y"], want, strict=True)


@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
def test_taps_are_interleaved(tmp_path: Path) -> None:
    """Each product had an instruction of its own, which can sum two of them."""
    built = occ.build(depthwise("3x3", np.uint8, 0), "cpu", options={"halide.target": TARGETS["x86-64-v3"]})
    (tmp_path / "model.so").write_bytes(built.code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "model.so")]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "vpmovzxbw" in code
    assert "vpunpcklbw" in code
