"""libonnxifi-occ: each status of the tables of ONNXIFI: models, handles, pointers, descriptors and weights that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from onnx import helper
from onnxifi_api import (
    IMPLICIT,
    Descriptor,
    backend,
    call,
    descriptors,
    fence,
    graph,
    ids,
    properties,
    refused,
    run,
)
from onnxifi_samples import (
    BACKEND,
    BAD_EVENT,
    DATATYPE,
    FENCE_TYPE,
    GRAPH,
    ID,
    JUNK,
    LOCATION,
    MEMORY_TYPE,
    MISMATCHING_DATATYPE,
    MISMATCHING_SHAPE,
    MODEL,
    NAME,
    OK,
    POINTER,
    PROPERTY,
    PROTOBUF,
    RELU,
    SHAPE,
    SIZE,
    U_ATTRIBUTE,
    U_DATATYPE,
    U_MEMORY_TYPE,
    U_OPERATOR,
    U_PROPERTY,
    U_SHAPE,
    U_TAG,
    U_VERSION,
    UNIDENTIFIED_NAME,
    X,
    Y,
)

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("keep_artifacts")]
RNG = np.random.default_rng(0)


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
    "asks Python for a step": (proto("g (float[4] x) => (float[4] y) { y = Bernoulli(x) }"), U_OPERATOR),
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


NULL = None
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
