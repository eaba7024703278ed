"""What --emit generator writes builds without occ."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from c_library import block

from occ.compiler.codegen_halide.toolchain import find_halide

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]


@pytest.mark.parametrize("tool", ["cmake", "make"])
def test_generators_alone_rebuild_the_library(tool: str, occ_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A C++ program calls a kernel that is built from the sources alone."""
    if shutil.which(tool) is None or shutil.which("make") is None:
        pytest.skip(f"{tool} or make is not installed")
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of("g (float[4, 8] x) => (float[4, 8] y) { y = Relu(x) }"), "m.onnx")
    assert occ_cli("build", "m.onnx", "-O3", "--emit", "generator", "-o", "src").code == 0
    found = re.search(r"HALIDE_REGISTER_GENERATOR\((\w+)", Path("src/kernels_0.cpp").read_text())
    assert found is not None
    Path("main.cpp").write_text(CALLER.replace("KERNEL", found[1]))
    if tool == "cmake":
        Path("CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(user CXX)\nadd_subdirectory(src)\n"
            "add_executable(main main.cpp)\ntarget_link_libraries(main m)\n"
        )
        subprocess.run(["cmake", "-B", ".", f"-DPYTHON={sys.executable}"], check=True, capture_output=True)
        subprocess.run(["cmake", "--build", "."], check=True, capture_output=True)
    else:
        subprocess.run(["make", "-C", "src", f"PYTHON={sys.executable}"], check=True, capture_output=True)
        include = f"-I{find_halide()}/include"
        subprocess.run(["g++", include, "main.cpp", "src/model.so", "-Wl,-rpath,src", "-o", "main"], check=True)
    assert subprocess.run(["./main"], capture_output=True, text=True, check=True).stdout == "0 0 15\n"


@pytest.mark.parametrize("tool", ["cmake", "make"])
def test_a_cpp_program_runs_models_that_are_rebuilt_from_sources(
    tool: str, occ_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The program of docs/c.md; under CMake with two models of one structure, which have names in common."""
    if shutil.which(tool) is None or shutil.which("make") is None:
        pytest.skip(f"{tool} or make is not installed")
    monkeypatch.chdir(tmp_path)
    names = ("mlp", "test") if tool == "cmake" else ("mlp",)
    for k, name in enumerate(names):
        onnx.save(mlp(k), f"{name}.onnx")
        assert occ_cli("build", f"{name}.onnx", "--emit", "generator", "-o", f"{name}-src").code == 0
    text = block("c.md", "cpp", 1)
    if tool == "cmake":
        second = text.replace("mlp", "test_2").replace("test_2-src", "test-src").replace("int main", "int second")
        Path("second.cpp").write_text(second)
        Path("main.cpp").write_text(text.replace("int main() {", "int second();\nint main() { second();"))
        cmake = (
            block("c.md", "cmake", 0).replace("main.cpp", "main.cpp second.cpp").replace("main mlp", "main mlp test_2")
        )
        Path("CMakeLists.txt").write_text(cmake.replace("add_executable", "add_subdirectory(test-src)\nadd_executable"))
        subprocess.run(["cmake", "-B", "build", f"-DPYTHON={sys.executable}"], check=True, capture_output=True)
        subprocess.run(["cmake", "--build", "build"], check=True, capture_output=True)
    else:
        Path("main.cpp").write_text(text)
        subprocess.run(["make", "-C", "mlp-src", f"PYTHON={sys.executable}"], check=True, capture_output=True)
        include = ["-Imlp-src", "-Imlp-src/libocc", "-Wl,-rpath,mlp-src"]
        Path("build").mkdir()
        subprocess.run(["g++", "main.cpp", *include, "mlp-src/model.so", "-o", "build/main"], check=True)
    said = subprocess.run(["build/main"], capture_output=True, text=True, check=True, env={}).stdout
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    want = [reference(mlp(k), {"x": x})[0][0, 0] for k in reversed(range(len(names)))]
    np.testing.assert_allclose([float(n) for n in said.split()], want, rtol=1e-5)


CALLER = """
#include <HalideRuntime.h>
#include <cstdio>
extern "C" int KERNEL(halide_buffer_t *x, halide_buffer_t *y);
int main() {
    alignas(64) float x[32], y[32];
    for (int k = 0; k < 32; k++) x[k] = float(k - 16);
    halide_dimension_t dims[2] = {{0, 8, 1}, {0, 4, 8}};
    halide_buffer_t buffers[2] = {};
    for (halide_buffer_t &b : buffers) b.type = halide_type_t(halide_type_float, 32), b.dimensions = 2, b.dim = dims;
    buffers[0].host = reinterpret_cast<uint8_t *>(x);
    buffers[1].host = reinterpret_cast<uint8_t *>(y);
    int code = KERNEL(&buffers[0], &buffers[1]);
    printf("%d %g %g\\n", code, y[0], y[31]);
}
"""
