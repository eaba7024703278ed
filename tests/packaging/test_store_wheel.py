"""A wheel of kernels, and a machine without a C++ compiler that has it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, reference

from occ.compiler.objects.processors import PROCESSORS
from occ.runtime.machine import best_of
from tools import store_wheel

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(best_of([PROCESSORS["x86-64-v3"]]) < 0, reason="this processor does not run x86-64-v3"),
]
RNG = np.random.default_rng(0)
NET = model_of(
    "g (float[n, 64] x) => (float[n, 96] y) { h = MatMul(x, w) y = Relu(h) }",
    {"w": RNG.standard_normal((64, 96), np.float32)},
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """A folder of installed packages with the wheel of one network, for one processor."""
    place = tmp_path_factory.mktemp("store")
    before = os.environ.get("OCC_CACHE_DIR")
    wheel = store_wheel.build(place / "dist", place / "cache", [("net", NET)], ["x86-64-v3"])
    if before is None:
        del os.environ["OCC_CACHE_DIR"]
    else:
        os.environ["OCC_CACHE_DIR"] = before
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(place / "site")
    return place / "site"


def without_compiler(site: Path | None, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`occ` in a process that finds no program, and whose build cache is empty."""
    env = {"PATH": str(where), "OCC_CACHE_DIR": str(where / "cache"), "PYTHONPATH": str(site or "")}
    command = [sys.executable, "-m", "occ.cli", *words]
    return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False)


def test_a_machine_without_a_compiler_takes_installed_kernels(unpacked, tmp_path):
    onnx.save(NET, tmp_path / "m.onnx")
    lacks = without_compiler(None, tmp_path, "build", "m.onnx", "-t", "cpu")
    assert lacks.returncode == 4, lacks.stderr
    made = without_compiler(unpacked, tmp_path, "build", "m.onnx", "-t", "cpu")
    assert made.returncode == 0, made.stderr
    x = RNG.standard_normal((5, 64), np.float32)
    np.save(tmp_path / "x.npy", x)
    ran = without_compiler(None, tmp_path, "run", "m.occ", "--input", "x=x.npy", "-o", "out")
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), reference(NET, {"x": x})[0], rtol=1e-4, atol=1e-4)


def test_native_entries_of_models_are_left_out(unpacked):
    objects = [path.read_bytes() for path in unpacked.rglob("*.o")]
    assert objects
    assert not [data for data in objects if b"occ_model_facts" in data]


def test_what_is_asked_for_is_not_replaced(unpacked, tmp_path):
    onnx.save(NET, tmp_path / "m.onnx")
    for given in (("-O3",), ("-C", "halide.target=host")):
        made = without_compiler(unpacked, tmp_path, "build", "m.onnx", "-t", "cpu", *given)
        assert made.returncode == 4, made.stderr
        assert "kernels are not in the build cache" in made.stderr
