"""Codes of 8 bits without AVX-512: two vectors are packed at once by instructions that saturate."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of
from machines import TARGETS, opened

import occ

pytestmark = pytest.mark.toolchain


def quantised(filters: int, dtype: type, point: int, scale: float) -> onnx.ModelProto:
    """1x1 of 16 codes, whose sums are multiplied by `scale`."""
    rng = np.random.default_rng(filters)
    text = f"""g (uint8[1, 16, 9, 11] x) => ({np.dtype(dtype).name}[N, C, H, W] y) {{
        y = QLinearConv (x, one, zero, w, one, still, step, point)
    }}"""
    weights = {"w": rng.integers(-127, 128, (filters, 16, 1, 1)).astype(np.int8), "one": np.float32(1)}
    weights |= {
        "zero": np.uint8(3),
        "still": np.int8(0),
        "step": np.float32(1 / scale),
        "point": np.array(point, dtype),
    }
    return model_of(text, {name: np.asarray(value) for name, value in weights.items()})


@pytest.mark.parametrize(("dtype", "point"), [(np.uint8, 0), (np.uint8, 169), (np.int8, -5), (np.int8, 0)])
@pytest.mark.parametrize("filters", [8, 24, 32])  # a vector, three, and pairs of two
@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v2"])
def test_codes_saturate_however_large_their_numbers_are(machine: str, filters: int, dtype: type, point: int) -> None:
    for power in (-9, -2, 5, 18, 40):  # all within the range, some beyond it, beyond 16 and beyond 32 bits
        made = quantised(filters, dtype, point, 2.0**power)
        session = opened(occ.build(made, "cpu", options={"halide.target": TARGETS[machine]}), 1)
        x = np.random.default_rng(1).integers(0, 256, (1, 16, 9, 11)).astype(np.uint8)
        w = onnx.numpy_helper.to_array(next(i for i in made.graph.initializer if i.name == "w"))[:, :, 0, 0]
        sums = np.einsum("oc,nchw->nohw", w.astype(np.float64), x.astype(np.float64) - 3)
        want = np.clip(np.rint(sums * 2.0**power) + point, np.iinfo(dtype).min, np.iinfo(dtype).max)
        np.testing.assert_array_equal(session.run({"x": x})["y"], want.astype(dtype), strict=True)


@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
def test_two_vectors_are_packed_at_once(tmp_path: Path) -> None:
    """Each vector was packed by shuffles of its own, after two comparisons."""
    built = occ.build(quantised(32, np.uint8, 0, 2.0**-9), "cpu", options={"halide.target": TARGETS["x86-64-v3"]})
    (tmp_path / "model.so").write_bytes(built.code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "model.so")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    packs = [n for n in lines if "vpackssdw" in n]
    assert packs
    assert all("%ymm" in n for n in packs)
    assert not [n for n in lines if "vmaxps" in n]
