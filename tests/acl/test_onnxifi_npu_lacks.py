"""libonnxifi-occ with an Ascend device that lacks something: the statuses of the device, and which function answers them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ascend_standin import Standin
from building import model_of
from onnx import numpy_helper
from test_onnxifi_npu import compiler, paths

NO_SYSTEM_MEMORY, NO_DEVICE_MEMORY, NO_DEVICE_RESOURCES, UNAVAILABLE, INTERNAL = 0x401, 0x402, 0x404, 0x405, 0x406
CLIENT = """
import sys
import numpy as np
from ctypes import byref, c_void_p
from onnxifi_api import IMPLICIT, Descriptor, call, descriptors, fence, ids, made, properties
model = open(sys.argv[1], "rb").read()
b = made("InitBackend", ids()[1], properties(2, 4))
x, y = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
io = (*descriptors(Descriptor.of("x", x)), *descriptors(Descriptor.of("y", y)))

def implicit(g):
    return call("RunGraph", g, byref(fence(kind=IMPLICIT)), byref(fence(kind=IMPLICIT)))

def events(g):
    begin, end = fence(made("InitEvent", b)), fence()
    assert call("RunGraph", g, byref(begin), byref(end)) == 0
    assert call("SignalEvent", begin.event) == 0
    return call("WaitEvent", end.event)

for attempt in range(2):
    graph = c_void_p()
    found = [call("InitGraph", b, None, len(model), model, 0, None, byref(graph))]
    if not found[0]:
        found.append(call("SetGraphIO", graph, *io))
    if not any(found):
        found.append(locals()[sys.argv[2]](graph))
    print(*found)
print(y[0, 0])
"""


def told(tmp_path: Path, run: str = "implicit", **environment: str) -> list[list[int]]:
    """The statuses of onnxInitGraph, onnxSetGraphIO and a run, twice."""
    model = model_of("g (float[2, 4] x) => (float[2, 4] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    env = {**os.environ, "PYTHONPATH": paths(), "OCC_COMPILER": str(compiler(tmp_path)), **environment}
    command = [sys.executable, "-c", CLIENT, str(tmp_path / "m.onnx"), run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    assert done.returncode == 0, done.stderr
    *lines, result = done.stdout.splitlines()
    found = [[int(word) for word in line.split()] for line in lines]
    assert result == ("1.0" if found[1] == [0, 0, 0] else "0.0")
    return found


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("call", "code", "status"),
    [("aclrtCreateContext", 207005, NO_DEVICE_RESOURCES), ("aclrtCreateContext", 200000, NO_SYSTEM_MEMORY),
     ("aclrtSetDevice", 507033, UNAVAILABLE)],
    ids=["contexts", "memory-of-the-host", "device"],
)  # fmt: skip
def test_what_a_graph_lacks(call: str, code: int, status: int, toolkit: Standin, tmp_path: Path):
    """The next attempt succeeds."""
    assert told(tmp_path, OCC_TEST_FAULT=f"open {call} {code}") == [[status], [0, 0, 0]]


@pytest.mark.toolchain
def test_a_graph_that_does_not_fit_into_the_device(toolkit: Standin, tmp_path: Path):
    assert told(tmp_path, OCC_TEST_MEMORY="1") == [[NO_DEVICE_MEMORY], [NO_DEVICE_MEMORY]]


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("code", "status"), [(207008, NO_DEVICE_RESOURCES), (207018, NO_DEVICE_MEMORY), (507015, INTERNAL)]
)
@pytest.mark.parametrize("run", ["implicit", "events"])
def test_what_a_run_lacks(run: str, code: int, status: int, toolkit: Standin, tmp_path: Path):
    """Waiting for an event has no status for it."""
    found = told(tmp_path, run, OCC_TEST_FAULT=f"run aclmdlExecuteAsync {code}")
    assert found == [[0, 0, status if run == "implicit" else INTERNAL], [0, 0, 0]]
