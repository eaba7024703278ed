"""Files of onnxruntime's own format: what they compute, and what becomes of damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

import occ
from occ.analysis.onnx_graph import loaded
from occ.compiler.diagnostics import CompileError
from occ.compiler.frontend.onnx import import_model
from occ.compiler.frontend.ort_format import OrtFormatError, read_ort

RNG = np.random.default_rng(5)
LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def parsed(text: str, **weights: np.ndarray) -> ModelProto:
    made = parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return made


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


LSTM = {"w": f32(1, 16, 3), "r": f32(1, 16, 4)}
# name -> (model, inputs)
MODELS: dict[str, tuple[ModelProto, dict[str, np.ndarray]]] = {
    "symbolic": (
        parsed("g (float[n,4] x) => (float[n,4] y) <float[4] w = {1,2,3,4}> { a = Mul(x, w) y = Relu(a) }"),
        {"x": f32(3, 4)},
    ),
    "convolutions": (
        parsed(
            """g (float[1,3,9,9] x) => (float[1,16,4,4] y, int64[4] s)
            { a = Conv <kernel_shape=[3,3]> (x, w) b = Relu(a) c = MaxPool <kernel_shape=[2,2], strides=[2,2]> (b)
              z = Conv(b, v) y = AveragePool <kernel_shape=[4,4]> (z) s = Shape(c) }""",
            w=f32(32, 3, 3, 3), v=f32(16, 32, 1, 1),
        ),
        {"x": f32(1, 3, 9, 9)},
    ),
    "a weight that is a view": (
        parsed("g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) y = Gelu <approximate=\"tanh\"> (a) }".replace('Gelu <approximate="tanh">', "Tanh"), w=f32(64, 64)),
        {"x": f32(2, 64)},
    ),
    "a loop and a choice": (
        parsed(
            """g (float[2] x, int64 n, bool flag) => (float[2] y)
            { t = Constant <value_int=1> ()
              one = Cast <to=9> (t)
              a = Loop (n, one, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) { d = Identity(c) u = Add(v, x) }>
              y = If (flag) <then_branch = p () => (float[2] o) { o = Neg(a) }, else_branch = q () => (float[2] o) { o = Add(a, x) }> }"""
        ),
        {"x": f32(2), "n": np.array(3), "flag": np.array(False)},
    ),
    "recurrence": (
        parsed("g (float[5,2,3] x) => (float[5,1,2,4] y, float[1,2,4] h) { y, h = LSTM <hidden_size=4, activations=[\"Sigmoid\",\"Tanh\",\"Tanh\"], clip=1.5> (x, w, r) }", **LSTM),
        {"x": f32(5, 2, 3)},
    ),
    "texts": (
        parsed("g (string[2,3] x) => (int64[2,3] y) { y = ai.onnx.ml.LabelEncoder <keys_strings=[\"a\",\"é\"], values_int64s=[4,5], default_int64=-7> (x) }"),
        {"x": np.array([["a", "b", "é"], ["c", "a", ""]], object)},
    ),
    "a sequence": (
        parsed("g (float[2,3] x) => (float[k,3] y) { s = SequenceConstruct(x, x) y = ConcatFromSequence <axis=0> (s) }"),
        {"x": f32(2, 3)},
    ),
}  # fmt: skip
MODELS["texts"][0].opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))


def saved(model: ModelProto, path: Path, level: str) -> Path:
    """The model as onnxruntime writes it."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.graph_optimization_level = str(path), LEVELS[level]
    options.log_severity_level = 3
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return path


@pytest.mark.thinned
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_ort_file_computes_what_onnxruntime_does(name: str, level: str, tmp_path: Path) -> None:
    model, feed = MODELS[name]
    path = saved(model, tmp_path / "model.ort", level)
    wanted = onnxruntime.InferenceSession(str(path)).run(None, feed)
    for source in (path, path.read_bytes()):
        for got, want in zip(occ.compile(source, "cpu-jit").run(feed).values(), wanted, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_ort_file_keeps_names_and_symbols(tmp_path: Path) -> None:
    path = saved(MODELS["symbolic"][0], tmp_path / "model.ort", "basic")
    module = import_model(path)
    assert [str(v.type) for v in module.funcs["main"].args] == ["f32[n,4]"]
    whole, folder = loaded(path)
    assert folder == tmp_path
    assert [n.op_type for n in whole.graph.node] == ["Mul", "Relu"]
    onnx.checker.check_model(whole)


@pytest.mark.parametrize("against", ["onnxruntime", "reference", "interp"])
def test_ort_file_is_compared(against: str, tmp_path: Path) -> None:
    path = saved(MODELS["symbolic"][0], tmp_path / "model.ort", "basic")
    for model in (path, path.read_bytes()):
        assert all(row.ok for row in occ.diff(model, "cpu-jit", against=against, every_node=True).rows)


def test_weights_of_an_ort_file_are_views_of_it(tmp_path: Path) -> None:
    model, _ = MODELS["a weight that is a view"]
    path = saved(model, tmp_path / "model.ort", "basic")
    made, mapped = read_ort(np.memmap(path, np.uint8, "r"), views=True)
    assert made.ByteSize() < 1000
    (view,) = mapped.raw.values()
    assert not view.flags.owndata
    np.testing.assert_array_equal(
        view.view(np.float32).reshape(64, 64), numpy_helper.to_array(model.graph.initializer[0])
    )


def damaged(whole: bytes, k: int) -> bytes:
    """One of many changes: a cut, another byte, or an offset to another place."""
    rng = np.random.default_rng(k)
    data = bytearray(whole)
    if k % 3 == 0:
        return whole[: int(rng.integers(8, len(whole)))]
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(8, len(data) - 4))
        if k % 3 == 1:
            data[at] = int(rng.integers(256))
        else:
            word = int(rng.integers(len(data))) if rng.random() < 0.8 else int(rng.integers(2**32))
            data[at & ~3 : (at & ~3) + 4] = word.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["symbolic", "a loop and a choice", "recurrence"])
def test_damaged_ort_file_is_an_error(name: str, tmp_path: Path) -> None:
    whole = saved(MODELS[name][0], tmp_path / "model.ort", "all").read_bytes()
    codes = [code_of(damaged(whole, k)) for k in range(600)]
    assert "OCC0901" not in codes
    assert sum(code != "" for code in codes) > 200


def code_of(data: bytes) -> str:
    """The code of the error of an import, if there is one."""
    try:
        import_model(data)
    except CompileError as e:
        return e.diagnostics[0].code
    return ""


def test_ort_file_whose_parts_stand_in_many_places_is_an_error() -> None:
    """Nodes that are one, and its attributes, which are one: 300 times 300 of them in a few kilobytes."""
    n, slots = 300, 13
    table, vector = 4 + 4 * slots, 4 + 4 * n
    session = 8 + 4 + 2 * slots
    model, graph, nodes = session + table, session + 2 * table, session + 3 * table
    node, attributes = nodes + vector, nodes + vector + table
    attribute = attributes + vector
    version = attribute + table
    data = bytearray(version + 8)
    data[:8] = session.to_bytes(4, "little") + b"ORTM"
    data[8:session] = b"".join(v.to_bytes(2, "little") for v in (4 + 2 * slots, table, *range(4, table, 4)))
    for at in (session, model, graph, node, attribute):
        data[at : at + 4] = (at - 8).to_bytes(4, "little")

    def lead(place: int, target: int) -> None:
        data[place : place + 4] = (target - place).to_bytes(4, "little")

    for owner, field, target in ((session, 0, version), (session, 1, model), (model, 7, graph), (graph, 2, nodes), (node, 10, attributes)):  # fmt: skip
        lead(owner + 4 + 4 * field, target)
    for at, target in ((nodes, node), (attributes, attribute)):
        data[at : at + 4] = n.to_bytes(4, "little")
        for k in range(n):
            lead(at + 4 + 4 * k, target)
    data[attribute + 4 + 4 * 2] = 2  # INT
    data[version : version + 5] = b"\1\0\0\0006"
    with pytest.raises(OrtFormatError, match="many times larger"):
        read_ort(bytes(data))


def test_version_of_the_format_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    whole = saved(MODELS["symbolic"][0], tmp_path / "model.ort", "basic").read_bytes()
    at = whole.index(b"\1\0\0\0006\0")
    with pytest.raises(CompileError, match="OCC0102") as e:
        import_model(whole[: at + 4] + b"9" + whole[at + 5 :])
    assert "version '9' of the format" in str(e.value)
