"""libonnxifi-occ: each status of the tables of ONNXIFI, what queries tell, and the ways to run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from onnx import helper
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
    properties,
    refused,
    run,
)
from onnxifi_parts import KEEP, library

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(0)
RELU = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }").SerializeToString()
OK, FALLBACK = 0, 1
(ID, SIZE, POINTER, PROTOBUF, MODEL, BACKEND, GRAPH, BAD_EVENT, STATE, NAME, SHAPE, DATATYPE, MEMORY_TYPE, LOCATION, FENCE_TYPE,
 PROPERTY) = range(0x101, 0x111)  # fmt: skip
(U_TAG, U_VERSION, U_OPERATOR, U_ATTRIBUTE, U_SHAPE, U_DATATYPE, U_MEMORY_TYPE, U_FENCE_TYPE, U_PROPERTY) = range(
    0x201, 0x20A
)
UNIDENTIFIED_NAME, MISMATCHING_SHAPE, MISMATCHING_DATATYPE = range(0x301, 0x304)
X, Y = np.arange(-4, 4, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)


@pytest.fixture(scope="module", autouse=True)
def _keep() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as m:
        for name, value in KEEP.items():
            m.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def relu(_keep: None) -> int:
    return graph(RELU)


def proto(text: str = "g (float[4] x) => (float[4] y) { y = Relu(x) }", **changes: Any) -> bytes:
    """A model with some fields changed: `ir_version`, or `output`, its declared type."""
    m = model_of(text)
    if "ir_version" in changes:
        m.ir_version = changes["ir_version"]
    if "opset" in changes:
        m.opset_import[0].version = changes["opset"]
    if "output" in changes:
        m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", *changes["output"]))
    return m.SerializeToString()


# Models, and what both onnxGetBackendCompatibility and onnxInitGraph say of them.
MODELS: dict[str, tuple[bytes, int]] = {
    "no protobuf": (b"\xff\xffno model", PROTOBUF),
    "no graph": (onnx.ModelProto(ir_version=8).SerializeToString(), PROTOBUF),
    "undefined value": (proto("g (float[4] x) => (float[4] y) { y = Relu(z) }"), MODEL),
    "operands": (proto("g (float[4] x) => (float[4] y) { y = Relu(x, x) }"), MODEL),
    "type": (proto("g (bool[4] x) => (bool[4] y) { y = Relu(x) }"), MODEL),
    "shapes": (proto("g (float[4] x, float[3] z) => (float[4] y) { y = Add(x, z) }"), MODEL),
    "ir": (proto(ir_version=99), U_VERSION),
    "operator set": (proto(opset=999), U_VERSION),
    "unknown operator": (proto("g (float[4] x) => (float[4] y) { y = Wonder(x) }"), U_OPERATOR),
    "needs Python": (proto("g (float[4] x) => (int64[1, k] y) { y = NonZero(x) }"), U_OPERATOR),
    "sequence": (proto("g (seq(float[4]) x) => (float[4] y) { y = ConcatFromSequence <axis = 0> (x) }"), U_DATATYPE),
    "texts": (proto("g (string[4] x) => (string[4] y) { y = Identity(x) }"), U_DATATYPE),
    "no elements": (proto("g (float[0] x) => (float[0] y) { y = Relu(x) }"), U_SHAPE),
    "no rank": (
        helper.make_model(
            helper.make_graph(
                [helper.make_node("Relu", ["x"], ["y"])], "g",
                [helper.make_tensor_value_info("x", 1, None)], [helper.make_tensor_value_info("y", 1, None)],
            ),
            opset_imports=[helper.make_opsetid("", 21)],
        ).SerializeToString(), U_SHAPE,
    ),
    "declared shape": (proto(output=(1, [5])), MISMATCHING_SHAPE),
    "declared rank": (proto(output=(1, [4, 1])), MISMATCHING_SHAPE),
    "declared type": (proto(output=(7, [4])), MISMATCHING_DATATYPE),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_models_that_are_refused(case: str):
    data, wanted = MODELS[case]
    assert call("GetBackendCompatibility", ids()[0], len(data), data) == wanted
    assert refused(data) == wanted


def test_declared_type_of_an_intermediate_value():
    m = model_of("g (float[4] x) => (float[4] y) { t = Relu(x) y = Neg(t) }")
    m.graph.value_info.append(helper.make_tensor_value_info("t", 1, [5]))
    assert refused(m.SerializeToString()) == MISMATCHING_SHAPE


def test_compatible_models():
    for model in (RELU, mlp().SerializeToString()):
        assert call("GetBackendCompatibility", ids()[0], len(model), model) == OK


NULL, JUNK = None, 0x7FFF1234
Row = tuple[Callable[[int], int], int]
HANDLES: dict[str, Row] = {
    "ids: no count": (lambda g: call("GetBackendIDs", None, None), POINTER),
    "info: junk": (lambda g: call("GetBackendInfo", JUNK, 0, None, byref(c_size_t())), ID),
    "info: no size": (lambda g: call("GetBackendInfo", ids()[0], 0, None, None), POINTER),
    "info: unknown": (lambda g: call("GetBackendInfo", ids()[0], 99, None, byref(c_size_t())), U_ATTRIBUTE),
    "release id: null": (lambda g: call("ReleaseBackendID", NULL), ID),
    "release id: a graph": (lambda g: call("ReleaseBackendID", g), ID),
    "compatibility: null": (lambda g: call("GetBackendCompatibility", NULL, len(RELU), RELU), ID),
    "compatibility: no model": (lambda g: call("GetBackendCompatibility", ids()[0], 5, None), POINTER),
    "compatibility: no size": (lambda g: call("GetBackendCompatibility", ids()[0], 0, RELU), SIZE),
    "backend: junk": (lambda g: call("InitBackend", JUNK, None, byref(c_void_p())), ID),
    "backend: no place": (lambda g: call("InitBackend", ids()[0], None, None), POINTER),
    "backend: unknown property": (lambda g: call("InitBackend", ids()[0], properties(4, 1), byref(c_void_p())), U_PROPERTY),
    "backend: bad optimization": (lambda g: call("InitBackend", ids()[0], properties(1, 9), byref(c_void_p())), PROPERTY),
    "backend: bad level": (lambda g: call("InitBackend", ids()[0], properties(2, 9), byref(c_void_p())), PROPERTY),
    "release backend: id": (lambda g: call("ReleaseBackend", ids()[0]), BACKEND),
    "event: junk": (lambda g: call("InitEvent", JUNK, byref(c_void_p())), BACKEND),
    "event: no place": (lambda g: call("InitEvent", backend(), None), POINTER),
    "signal: null": (lambda g: call("SignalEvent", NULL), BAD_EVENT),
    "state: junk": (lambda g: call("GetEventState", JUNK, byref(c_int32())), BAD_EVENT),
    "state: no place": (lambda g: call("GetEventState", JUNK, None), POINTER),
    "wait: a backend": (lambda g: call("WaitEvent", backend()), BAD_EVENT),
    "release event: null": (lambda g: call("ReleaseEvent", NULL), BAD_EVENT),
    "graph: junk": (lambda g: call("InitGraph", JUNK, None, 5, RELU, 0, None, byref(c_void_p())), BACKEND),
    "graph: no place": (lambda g: call("InitGraph", backend(), None, 5, RELU, 0, None, None), POINTER),
    "graph: no model": (lambda g: call("InitGraph", backend(), None, 5, None, 0, None, byref(c_void_p())), POINTER),
    "graph: no size": (lambda g: call("InitGraph", backend(), None, 0, RELU, 0, None, byref(c_void_p())), SIZE),
    "graph: no weights": (lambda g: call("InitGraph", backend(), None, 5, RELU, 1, None, byref(c_void_p())), POINTER),
    "graph: unknown property": (
        lambda g: call("InitGraph", backend(), properties(1, 1), len(RELU), RELU, 0, None, byref(c_void_p())), U_PROPERTY,
    ),
    "release graph: null": (lambda g: call("ReleaseGraph", NULL), GRAPH),
    "io: junk": (lambda g: call("SetGraphIO", JUNK, 0, None, 0, None), GRAPH),
    "io: no inputs": (lambda g: call("SetGraphIO", g, 1, None, *descriptors(Descriptor.of("y", Y))), POINTER),
    "io: no outputs": (lambda g: call("SetGraphIO", g, *descriptors(Descriptor.of("x", X)), 0, None), POINTER),
    "run: null": (lambda g: call("RunGraph", NULL, byref(fence()), byref(fence())), GRAPH),
    "run: no input fence": (lambda g: call("RunGraph", g, None, byref(fence())), POINTER),
    "run: no output fence": (lambda g: call("RunGraph", g, byref(fence()), None), POINTER),
    "run: tag of the input": (lambda g: call("RunGraph", g, byref(fence(tag=1)), byref(fence())), U_TAG),
    "run: tag of the output": (lambda g: call("RunGraph", g, byref(fence()), byref(fence(tag=1))), U_TAG),
    "run: type of the input": (lambda g: call("RunGraph", g, byref(fence(kind=77)), byref(fence())), FENCE_TYPE),
    "run: type of the output": (lambda g: call("RunGraph", g, byref(fence()), byref(fence(kind=1 << 40))), FENCE_TYPE),
    "run: no event": (lambda g: call("RunGraph", g, byref(fence()), byref(fence())), BAD_EVENT),
    "io and run: null": (lambda g: call("SetIOAndRunGraph", NULL, 0, None, 0, None, byref(fence())), GRAPH),
    "io and run: no fence": (
        lambda g: call("SetIOAndRunGraph", g, *descriptors(), *descriptors(Descriptor.of("y", Y)), None), POINTER,
    ),
    "extension: junk": (lambda g: call("GetExtensionFunctionAddress", JUNK, b"x", byref(c_void_p())), ID),
    "extension: no name": (lambda g: call("GetExtensionFunctionAddress", ids()[0], None, byref(c_void_p())), POINTER),
    "extension: no place": (lambda g: call("GetExtensionFunctionAddress", ids()[0], b"x", None), POINTER),
    "extension: unknown": (lambda g: call("GetExtensionFunctionAddress", ids()[0], b"x", byref(c_void_p(1))), UNIDENTIFIED_NAME),
}  # fmt: skip


@pytest.mark.parametrize("row", HANDLES)
def test_handles_and_pointers(row: str, relu: int):
    work, wanted = HANDLES[row]
    assert work(relu) == wanted


# Descriptors that do not fit: which of them is another one.
BAD: dict[str, tuple[dict[str, Any], int]] = {
    "tag": ({"tag": 5}, U_TAG),
    "no name": ({"name": None}, NAME),
    "unknown name": ({"name": b"other"}, UNIDENTIFIED_NAME),
    "no type": ({"dtype": 0}, DATATYPE),
    "texts": ({"dtype": 8}, DATATYPE),
    "unknown type": ({"dtype": 1 << 33}, DATATYPE),
    "other type": ({"dtype": 7}, MISMATCHING_DATATYPE),
    "unknown memory": ({"memory": 3}, MEMORY_TYPE),
    "memory of a device": ({"memory": 1}, U_MEMORY_TYPE),
    "no shape": ({"shape": None}, POINTER),
    "zero": ({"shape": (c_uint64 * 2)(0, 4)}, SHAPE),
    "rank": ({"rank": 1}, MISMATCHING_SHAPE),
    "huge rank": ({"rank": 1 << 31, "shape": (c_uint64 * 1)()}, MISMATCHING_SHAPE),
    "extent": ({"shape": (c_uint64 * 2)(2, 5)}, MISMATCHING_SHAPE),
    "other size": ({"shape": (c_uint64 * 2)(3, 4)}, MISMATCHING_SHAPE),
    "overflow": ({"shape": (c_uint64 * 2)(1 << 62, 4)}, MISMATCHING_SHAPE),
    "no memory": ({"buffer": 0}, LOCATION),
}


@pytest.mark.parametrize("which", ["input", "output"])
@pytest.mark.parametrize("case", BAD)
def test_descriptors_that_do_not_fit(case: str, which: str, relu: int):
    changes, wanted = BAD[case]
    good = [Descriptor.of("x", X), Descriptor.of("y", Y)]
    assert run(relu, good[:1], good[1:]) == OK
    x = Descriptor.of("x", X, **(changes if which == "input" else {}))
    y = Descriptor.of("y", Y, **(changes if which == "output" else {}))
    assert call("SetGraphIO", relu, *descriptors(x), *descriptors(y)) == wanted
    failed = call("RunGraph", relu, byref(fence(kind=IMPLICIT)), byref(fence(kind=IMPLICIT)))
    assert failed == UNIDENTIFIED_NAME, "what was bound before is no longer"


def test_names_that_are_given_twice_or_are_none(relu: int):
    x, y, z = Descriptor.of("x", X), Descriptor.of("y", Y), Descriptor.of("z", X)
    assert call("SetGraphIO", relu, *descriptors(x, x), *descriptors(y)) == NAME
    assert call("SetGraphIO", relu, *descriptors(x, z), *descriptors(y)) == NAME
    assert call("SetGraphIO", relu, *descriptors(), *descriptors(y)) == UNIDENTIFIED_NAME


def test_sizes_that_do_not_go_together():
    same = graph(model_of("g (float[n] x, float[n] z) => (float[n] y) { y = Add(x, z) }").SerializeToString())
    folded = graph(
        model_of(
            "g (float[n] x) => (float[2, m] y) { y = Reshape(x, s) }", {"s": np.array([2, -1])}
        ).SerializeToString()
    )
    a, b = np.ones(6, np.float32), np.ones(5, np.float32)
    assert run(same, [Descriptor.of("x", a), Descriptor.of("z", b)], [Descriptor.of("y", a)]) == MISMATCHING_SHAPE
    assert run(folded, [Descriptor.of("x", b)], [Descriptor.of("y", np.ones((2, 2), np.float32))]) == U_SHAPE
    assert run(folded, [Descriptor.of("x", a)], [Descriptor.of("y", np.ones((2, 3), np.float32))]) == OK
    assert [call("ReleaseGraph", g) for g in (same, folded)] == [OK, OK]


# weights

DENSE = model_of(
    "g (float[n, 8] x, float[8, 4] w, int64[2] s) => (float[m, k] y) { t = MatMul(x, w) y = Reshape(t, s) }"
)
W, S = RNG.standard_normal((8, 4), np.float32), np.array([-1, 2])
BAD_WEIGHTS: dict[str, tuple[dict[str, Any], int]] = {
    "tag": ({"tag": 5}, U_TAG), "no name": ({"name": None}, NAME), "unknown name": ({"name": b"other"}, NAME),
    "twice": ({"name": b"s"}, NAME), "unknown type": ({"dtype": 77}, DATATYPE), "other type": ({"dtype": 6}, MISMATCHING_DATATYPE),
    "memory of a device": ({"memory": 2}, U_MEMORY_TYPE), "unknown memory": ({"memory": 99}, MEMORY_TYPE),
    "zero": ({"shape": (c_uint64 * 2)(0, 4)}, SHAPE), "other shape": ({"shape": (c_uint64 * 2)(4, 8)}, MISMATCHING_SHAPE),
    "no memory": ({"buffer": 0}, LOCATION), "huge": ({"shape": (c_uint64 * 2)(1 << 40, 4)}, U_SHAPE),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_that_do_not_fit(case: str):
    changes, wanted = BAD_WEIGHTS[case]
    weights = Descriptor.of("w", W, **changes), Descriptor.of("s", S)
    assert refused(DENSE.SerializeToString(), *weights) == wanted


def test_weights_by_descriptor():
    """They decide shapes as initializers do, and their memory is not looked at after the call."""
    w, s, x = W.copy(), S.copy(), RNG.standard_normal((3, 8), np.float32)
    g = graph(DENSE.SerializeToString(), Descriptor.of("w", w), Descriptor.of("s", s))
    w[:], s[:] = 0, 0
    y = np.zeros((6, 2), np.float32)
    assert run(g, [Descriptor.of("x", x)], [Descriptor.of("y", y)]) == OK
    np.testing.assert_allclose(y, (x @ W).reshape(-1, 2), rtol=1e-4, atol=1e-5)
    assert call("ReleaseGraph", g) == OK


def test_weights_beside_initializers_are_those():
    """Some clients pass the initializers of a model a second time."""
    m, x, y = mlp(), RNG.standard_normal((3, 8), np.float32), np.zeros((3, 4), np.float32)
    listed = [Descriptor.of(t.name, onnx.numpy_helper.to_array(t).copy()) for t in m.graph.initializer]
    g = graph(m.SerializeToString(), *listed)
    assert run(g, [Descriptor.of("x", x)], [Descriptor.of("y", y)]) == OK
    np.testing.assert_allclose(y, reference(m, {"x": x})[0], rtol=1e-4, atol=1e-5)


# runs


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
import sys, time, ctypes
sys.path[:0] = sys.argv[2:]
from onnxifi_api import call, ids, made, properties
from ctypes import byref, c_void_p
model = open(sys.argv[1], "rb").read()
b = made("InitBackend", ids()[0], properties(1, 3, 2, 4))
start, g = time.perf_counter(), c_void_p()
status = call("InitGraph", b, None, len(model), model, 0, None, byref(g))
print(hex(status), time.perf_counter() - start)
"""


def child(model: bytes, tmp_path: Any, **environment: str) -> tuple[int, float]:
    """Status and seconds of onnxInitGraph in a new process."""
    (tmp_path / "m.onnx").write_bytes(model)
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "m.onnx"), here, os.path.dirname(here)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    status, seconds = made.stdout.split()
    return int(status, 16), float(seconds)


def test_a_known_graph_needs_no_compiler(tmp_path: Any):
    model = model_of(f"g{len(str(tmp_path))} (float[7] x) => (float[7] y) {{ y = Neg(x) }}").SerializeToString()
    assert call("ReleaseGraph", graph(model)) == OK
    status, seconds = child(model, tmp_path)
    assert status == OK
    assert seconds < 0.5, "no process was started"


@pytest.mark.parametrize("program", ["/nonexistent/occ", "/bin/true", "/bin/false"])
def test_a_compiler_that_is_none(program: str, tmp_path: Any):
    assert child(RELU, tmp_path, OCC_COMPILER=program)[0] == 0x405


def test_the_compiler_that_a_variable_names(tmp_path: Any):
    """The path is one argument, blanks and all, and no shell looks at it."""
    program = tmp_path / "my occ; exit"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/seen\nexec {sys.executable} -m occ.cli "$@"\n')
    program.chmod(0o755)
    assert child(RELU, tmp_path, OCC_COMPILER=str(program))[0] == OK
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
