"""libonnxifi-occ with a backend for an Ascend device: found where there is one, and models run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ascend_standin import Standin
from building import model_of

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"
CLIENT = """
import sys
import numpy as np
from ctypes import byref, c_size_t, c_uint64, create_string_buffer
from onnxifi_api import Descriptor, call, descriptors, fence, ids, made, properties, run
print(len(ids()))
for i in ids()[1:]:
    kind, name, size = c_uint64(), create_string_buffer(50), c_size_t(8)
    assert call("GetBackendInfo", i, 6, byref(kind), byref(size)) == 0
    size.value = 50
    assert call("GetBackendInfo", i, 5, name, byref(size)) == 0
    model = open(sys.argv[1], "rb").read()
    b = made("InitBackend", i, None)
    assert call("GetBackendCompatibility", i, len(model), model) == 0
    g = made("InitGraph", b, None, len(model), model, 0, None)
    x, y = np.arange(-4, 4, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)
    for _ in range(2):
        assert run(g, [Descriptor.of("x", x)], [Descriptor.of("y", y)]) == 0
    wrong = np.zeros((2, 5), np.float32)
    assert call("SetGraphIO", g, *descriptors(Descriptor.of("x", wrong)), *descriptors(Descriptor.of("y", wrong))) == 0x302
    assert call("ReleaseGraph", g) == 0
    print(kind.value, name.value.decode(), y.tolist() == np.maximum(x, 0).tolist())
"""


def paths() -> str:
    """Where a client, and the compiler of `compiler`, find what they import."""
    return os.pathsep.join(map(str, (HERE, NATIVE, HERE.parent)))


def compiler(folder: Path) -> Path:
    """The compiler of a machine with an Ascend device, as a program."""
    program = folder / "occ"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'onnxifi_npu.py'}\n")
    program.chmod(0o755)
    return program


def told(tmp_path: Path, **environment: str) -> list[str]:
    """What the client says."""
    model = tmp_path / "m.onnx"
    model.write_bytes(model_of("g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }").SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(model)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": paths(), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.toolchain
def test_a_model_on_an_ascend_device(toolkit: Standin, tmp_path: Path):
    assert told(tmp_path, OCC_COMPILER=str(compiler(tmp_path))) == ["2", "1 Ascend910B1 True"]


@pytest.mark.toolchain
@pytest.mark.parametrize("library", ["/nonexistent/libascendcl.so", "/etc/passwd"])
def test_without_a_device_there_is_the_cpu_alone(library: str, tmp_path: Path):
    assert told(tmp_path, OCC_ASCENDCL=library) == ["1"]
