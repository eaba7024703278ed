"""libonnxifi-occ: the ways to run, the results of queries, and the compiler that it starts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of
from onnxifi_api import (
    EVENT,
    IMPLICIT,
    Descriptor,
    api,
    backend,
    call,
    descriptors,
    fence,
    graph,
    ids,
    made,
    run,
)
from onnxifi_parts import library
from onnxifi_samples import BAD_EVENT, FALLBACK, JUNK, OK, RELU, STATE, X

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("keep_artifacts")]
RNG = np.random.default_rng(0)


def test_events(relu: int):
    y = np.zeros((2, 4), np.float32)
    assert call("SetGraphIO", relu, *descriptors(Descriptor.of("x", X)), *descriptors(Descriptor.of("y", y))) == OK
    begin, end, state = fence(made("InitEvent", backend())), fence(JUNK), c_int32()
    assert call("RunGraph", relu, byref(begin), byref(end)) == OK
    assert end.event != JUNK
    assert call("GetEventState", end.event, byref(state)) == OK
    assert state.value == 0x16BD
    waiter = threading.Thread(target=lambda: call("WaitEvent", end.event))
    waiter.start()
    assert not y.any()
    assert [call("SignalEvent", begin.event), call("SignalEvent", begin.event)] == [OK, STATE]
    assert call("WaitEvent", end.event) == OK
    waiter.join()
    assert call("GetEventState", end.event, byref(state)) == OK
    assert state.value == 0x3395
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    assert [call("ReleaseEvent", e.event) for e in (begin, end)] == [OK, OK]
    assert [call("ReleaseEvent", begin.event), call("WaitEvent", end.event)] == [BAD_EVENT, BAD_EVENT]
    assert call("GetEventState", end.event, byref(state)) == BAD_EVENT
    assert state.value == 0


def test_the_end_of_one_run_begins_another(relu: int):
    y, z = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
    second = graph(RELU)
    first = fence(made("InitEvent", backend()))
    middle, last = fence(), fence()
    minus = graph(model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }").SerializeToString())
    assert call("SetGraphIO", minus, *descriptors(Descriptor.of("x", X)), *descriptors(Descriptor.of("y", y))) == OK
    assert call("SetGraphIO", second, *descriptors(Descriptor.of("x", y)), *descriptors(Descriptor.of("y", z))) == OK
    assert call("RunGraph", minus, byref(first), byref(middle)) == OK
    assert call("RunGraph", second, byref(middle), byref(last)) == OK
    assert call("SignalEvent", first.event) == OK
    assert call("WaitEvent", last.event) == OK
    np.testing.assert_array_equal(z, np.maximum(-X, 0))


@pytest.mark.parametrize("name", [b"onnxSetIOAndRunGraph", b"onnxSetIOAndRunGraphFunction"])
def test_the_extension_function_by_both_names(name: bytes, relu: int):
    address = c_void_p()
    assert call("GetExtensionFunctionAddress", ids()[0], name, byref(address)) == OK
    function = ctypes.CFUNCTYPE(c_int32, *api().onnxSetIOAndRunGraph.argtypes)(address.value)
    y, end = np.zeros((2, 4), np.float32), fence()
    x, out = descriptors(Descriptor.of("x", X)), descriptors(Descriptor.of("y", y))
    assert function(relu, *x, *out, byref(end)) == OK
    assert call("WaitEvent", end.event) == OK
    np.testing.assert_array_equal(y, np.maximum(X, 0))


def test_symbolic_sizes_of_every_run(relu: int):
    for n in (1, 7, 3):
        x, y = RNG.standard_normal((n, 4), np.float32), np.zeros((n, 4), np.float32)
        assert run(relu, [Descriptor.of("x", x)], [Descriptor.of("y", y)]) == OK
        np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_scalars_as_tensors_of_one_element():
    g = graph(
        model_of(
            "g (float[n] x, float b) => (float y) { s = ReduceSum <keepdims = 0> (x) y = Add(s, b) }"
        ).SerializeToString()
    )
    x, one, y = np.ones(3, np.float32), np.ones(1, np.float32), np.zeros((1, 1), np.float32)
    assert run(g, [Descriptor.of("x", x), Descriptor.of("b", one)], [Descriptor.of("y", y)]) == OK
    assert y[0, 0] == 4


def test_bool_and_every_number_that_has_a_name():
    for number in (*range(2, 8), *range(9, 14), 16):
        name = onnx.helper.tensor_dtype_to_string(number).rpartition(".")[2].lower()
        text = f"g ({name}[2] x) => ({name}[2] y) {{ y = Identity(x) }}"
        g = graph(model_of(text).SerializeToString())
        x = np.array([1, 0]).astype(onnx.helper.tensor_dtype_to_np_dtype(number))
        y = np.zeros_like(x)
        d = [Descriptor.of(n, v.view(np.uint8), dtype=number, shape=(c_uint64 * 1)(2)) for n, v in (("x", x), ("y", y))]
        assert run(g, d[:1], d[1:]) == OK
        np.testing.assert_array_equal(x, y)


def test_a_failed_run_is_told_by_its_event():
    g = graph(model_of("g (float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }").SerializeToString())
    x, i, y = np.ones(4, np.float32), np.array([0, 9]), np.zeros(2, np.float32)
    inputs = descriptors(Descriptor.of("x", x), Descriptor.of("i", i))
    end, state = fence(kind=EVENT), c_int32()
    assert call("SetIOAndRunGraph", g, *inputs, *descriptors(Descriptor.of("y", y)), byref(end)) == OK
    assert call("WaitEvent", end.event) == 0x406
    assert call("GetEventState", end.event, byref(state)) == OK
    assert state.value == 0x3395


# queries

REQUIRED = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 20, 21, 22)


def query(number: int) -> bytes:
    size = c_size_t(0)
    assert call("GetBackendInfo", ids()[0], number, None, byref(size)) == FALLBACK
    for capacity in (size.value - 1, size.value):
        data, found = ctypes.create_string_buffer(b"?" * size.value), c_size_t(capacity)
        status = call("GetBackendInfo", ids()[0], number, data, byref(found))
        assert (status, found.value) == (OK if capacity == size.value else FALLBACK, size.value)
        assert status == OK or data.raw.startswith(b"?" * size.value)
    return data.raw[: size.value]


def test_required_queries():
    told = {k: query(k) for k in REQUIRED}
    numbers = {k: int.from_bytes(v, "little") for k, v in told.items() if k in (0, 6, 10, 11, 12, 13, 14, 20, 21, 22)}
    assert numbers[0] == 1 << 32
    assert numbers[6] == 8
    assert numbers[10] == 7  # thread safe, symbolic batch, symbolic sizes
    assert [numbers[k] for k in (11, 12, 13)] == [0, 0, 0]
    assert numbers[14] == IMPLICIT
    assert numbers[20] > 1 << 28
    texts = {k: told[k] for k in (1, 2, 3, 4, 5, 7, 8)}
    assert all(t.endswith(b"\0") and b"\0" not in t[:-1] for t in texts.values())
    assert len(texts[1]) < 50
    assert str(onnx.IR_VERSION) in texts[7].decode()
    assert f"ai.onnx:{onnx.defs.onnx_opset_version()}" in texts[8].decode().split(" ")[0]
    assert texts[4] == b"onnx_extension_function\0"


def test_measured_queries():
    """Multiply-accumulates of this machine are between those of a small core and of any that there is; the same each time."""
    told = {k: int.from_bytes(query(k), "little") for k in (30, 31, 35, 36, 37)}
    assert 1e8 < told[30] < 1e14
    assert 0 <= told[31] < 1e14
    assert all(1e8 < told[k] < 1e13 for k in (35, 36, 37))
    assert told == {k: int.from_bytes(query(k), "little") for k in told}


def test_handles_of_backends_are_counted():
    count, listed = c_size_t(0), (c_void_p * 1)()
    assert call("GetBackendIDs", listed, byref(count)) == FALLBACK
    assert (count.value, listed[0]) == (1, None)
    before = ids()[0]
    for _ in range(2):
        assert call("GetBackendIDs", listed, byref(count)) == OK
        assert listed[0] == before
    assert [call("ReleaseBackendID", before) for _ in range(2)] == [OK, OK]
    assert call("InitBackend", before, None, byref(c_void_p())) == OK, "one of three is not released"


# the compiler

CHILD = """
import sys, ctypes
sys.path[:0] = sys.argv[2:]
from onnxifi_api import call, ids, made, properties
from ctypes import byref, c_void_p
model = open(sys.argv[1], "rb").read()
b = made("InitBackend", ids()[0], properties(1, 3, 2, 4))
print(hex(call("InitGraph", b, None, len(model), model, 0, None, byref(c_void_p()))))
"""


def child(model: bytes, tmp_path: Any, **environment: str) -> int:
    """Status of onnxInitGraph in a new process."""
    (tmp_path / "m.onnx").write_bytes(model)
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "m.onnx"), here, os.path.dirname(here)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return int(made.stdout, 16)


def test_a_known_graph_needs_no_compiler(tmp_path: Any):
    model = model_of(f"g{len(str(tmp_path))} (float[7] x) => (float[7] y) {{ y = Neg(x) }}").SerializeToString()
    started = tmp_path / "started"
    program = tmp_path / "occ"
    program.write_text(f'#!/bin/sh\necho >> {started}\nexec {sys.executable} -m occ.cli "$@"\n')
    program.chmod(0o755)
    for _ in range(2):
        assert child(model, tmp_path, OCC_COMPILER=str(program)) == OK
        assert started.read_text() == "\n"


@pytest.mark.thinned
@pytest.mark.parametrize("program", ["/nonexistent/occ", "/bin/true", "/bin/false"])
def test_a_compiler_that_is_none(program: str, tmp_path: Any):
    assert child(RELU, tmp_path, OCC_COMPILER=program) == 0x405


def test_the_compiler_that_a_variable_names(tmp_path: Any):
    """The path is one argument, blanks and all, and no shell looks at it."""
    program = tmp_path / "my occ; exit"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/seen\nexec {sys.executable} -m occ.cli "$@"\n')
    program.chmod(0o755)
    assert child(RELU, tmp_path, OCC_COMPILER=str(program)) == OK
    assert (tmp_path / "seen").read_text() == "onnxifi\n"


def test_the_library_exports_the_interface_alone():
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    assert names == {f"onnx{n}" for n in (
        "GetBackendIDs", "ReleaseBackendID", "GetBackendInfo", "GetBackendCompatibility", "InitBackend", "ReleaseBackend",
        "InitEvent", "SignalEvent", "GetEventState", "WaitEvent", "ReleaseEvent", "InitGraph", "SetGraphIO", "RunGraph",
        "ReleaseGraph", "GetExtensionFunctionAddress", "SetIOAndRunGraph",
    )}  # fmt: skip
