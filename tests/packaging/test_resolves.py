"""That occ can be installed from wheels alone on machines that are not this one, and works with each release of onnx it names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # and of the network

MACHINES = [
    ("x86_64-unknown-linux-gnu", "3.11", True), ("x86_64-unknown-linux-gnu", "3.13", True),
    ("x86_64-unknown-linux-gnu", "3.14", False),
    ("aarch64-unknown-linux-gnu", "3.11", False), ("aarch64-unknown-linux-gnu", "3.14", False),
    ("aarch64-apple-darwin", "3.13", True), ("aarch64-apple-darwin", "3.14", False),
    ("x86_64-apple-darwin", "3.12", True), ("x86_64-apple-darwin", "3.14", False),
    ("x86_64-pc-windows-msvc", "3.12", True), ("x86_64-pc-windows-msvc", "3.14", False),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "python", "halide"), MACHINES)
def test_there_are_wheels_for_a_machine(machine: str, python: str, halide: bool) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not installed: `pip install uv`; pip reads markers for the machine that it runs on")
    command = [uv, "pip", "compile", "-q", "--only-binary", ":all:", "--no-annotate", "--no-header"]
    where = ["--python-platform", machine, "--python-version", python, "pyproject.toml"]
    ran = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, check=False)
    if "error sending request" in ran.stderr or "client error" in ran.stderr:
        pytest.skip("there is no network")
    assert ran.returncode == 0, ran.stderr
    found = {line.partition("==")[0] for line in ran.stdout.split()}
    assert {"onnx", "numpy"} <= found
    assert ("llvmlite" in found) == (machine != "x86_64-apple-darwin")
    assert ("halide" in found) == halide


# What a release of onnx has to be good for: an import, shapes, integers, a text, and the list of operators.
SLICE = """
import numpy as np, onnx, occ
from onnx import TensorProto as T, helper as h
assert onnx.__version__ == {version!r}, onnx.__version__
x = np.load("examples/three.npy")
for target in ("interp", "cpu-jit"):
    assert occ.compile("examples/digits.onnx", target)(x)[0].argmax() == 3
text = occ.dump("examples/digits.onnx", "fused", "cpu-jit")
assert occ.compile(text, "cpu-jit")(x)[0].argmax() == 3
port = lambda n: h.make_tensor_value_info(n, T.FLOAT, ["n", 4])
scale, zero, w = h.make_tensor("s", T.FLOAT, [], [0.1]), h.make_tensor("z", T.UINT8, [], [3]), h.make_tensor("w", T.FLOAT, [4, 4], np.eye(4))
nodes = [h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), h.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    h.make_node("MatMul", ["d", "w"], ["m"]), h.make_node("Cast", ["m"], ["i"], to=T.INT64), h.make_node("Cast", ["i"], ["y"], to=T.FLOAT)]
model = h.make_model(h.make_graph(nodes, "g", [port("x")], [port("y")], [scale, zero, w]), opset_imports=[h.make_opsetid("", 21)], ir_version=9)
values = np.float32([[0, 1.26, -9, 40]])
want = np.trunc(np.clip(np.rint(values / np.float32(0.1)) + 3, 0, 255) - 3) * np.float32(0.1)
for target in ("interp", "cpu-jit"):
    np.testing.assert_array_equal(occ.compile(model, target)(values)[0], np.trunc(want.astype(np.float32)))
"""


@pytest.mark.parametrize("version", ["1.17.0", "1.18.0", "1.19.1", "1.21.0", "1.22.0", "1.23.2"])
def test_a_release_of_onnx_works(version: str, tmp_path: Path) -> None:
    got = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(tmp_path / "onnx"),
        f"onnx=={version}",
    ]
    if subprocess.run(got, capture_output=True, check=False).returncode:
        pytest.skip(f"there is no network, or no wheel of onnx {version} for this Python")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "onnx"), "OCC_CACHE_DIR": str(tmp_path / "cache")}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    sliced = run("-c", SLICE.format(version=version))
    assert sliced.returncode == 0, sliced.stderr
    listed = run("-m", "occ", "ops")
    assert listed.returncode == 0, listed.stderr
    assert ("TensorScatter" in listed.stdout) == (version not in ("1.17.0", "1.18.0"))
    (tmp_path / "young.occ").write_text(YOUNG)
    refused = run("-m", "occ", "run", str(tmp_path / "young.occ"), "-t", "interp")
    if version < "1.19":
        assert refused.returncode == 1
        assert f"onnx {version} does not know `TensorScatter`" in refused.stderr
        assert "pip install -U onnx" in refused.stderr
    else:
        assert refused.returncode == 0, refused.stderr


YOUNG = """module @young {stage="imported"} {
  func @main(%past: f32[1,3,8,4], %new: f32[1,3,2,4]) -> f32[1,3,8,4] as "present" {
    %present = TensorScatter(%past, %new) {axis=-2, mode="linear"} : f32[1,3,8,4] loc("scatter")
    return %present
  }
}
"""
