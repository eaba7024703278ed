"""Cast to and from texts: what leaves is text, as onnx.reference and ONNX's own cases write it, and what reads it finds it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ

TARGETS = ("interp", "cpu-jit", "cpu")
NUMBERS = {
    "f32": np.array([0.1, 1 / 3, 100, -0.0, 2.5, 1e20, 1e-7], np.float32),
    "f64": np.array([0.1, 1 / 3, 100, 123456789.125, 1e17]),
    "f16": np.array([0.1, 1 / 3, 100, 2.5], np.float16),
    "i64": np.array([1, -5, 2**62]),
    "u64": np.array([2**64 - 1], np.uint64),
    "i8": np.array([-7], np.int8),
    "bool": np.array([True, False]),
    "empty": np.zeros((0,), np.float32),
}


def model(
    x: np.ndarray, to: int, *more: tuple[str, list[str], dict[str, object]], out: int = 0, **constants: object
) -> ModelProto:
    kind = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes = [helper.make_node("Cast", ["x"], ["s"], to=to)]
    for op, reads, attrs in more:
        domain = "ai.onnx.ml" if op.endswith("Encoder") else ""
        nodes.append(helper.make_node(op, reads, ["y"], domain=domain, **attrs))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, ["n"] * x.ndim)],
        [helper.make_tensor_value_info(nodes[-1].output[0], out or to, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9
    )


def run(m: ModelProto, x: np.ndarray, target: str) -> np.ndarray:
    (found,) = occ.compile(m, target=target).run({"x": x}).values()
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_become_texts(name: str, target: str) -> None:
    x = NUMBERS[name]
    m = model(x, TensorProto.STRING)
    (expected,) = ReferenceEvaluator(m).run(None, {"x": x})
    found = run(m, x, target)
    assert found.dtype == object
    assert found.tolist() == expected.tolist()
    assert all(type(v) is str for v in found.reshape(-1))


@pytest.mark.parametrize("target", TARGETS)
def test_whole_numbers_keep_their_point(target: str) -> None:
    """ONNX leaves open whether 3 is `3` or `3.0`; onnx.reference decides, and onnxruntime does otherwise."""
    x = np.array([3, -100, 0], np.float32)
    m = model(x, TensorProto.STRING)
    assert (
        run(m, x, target).tolist() == ReferenceEvaluator(m).run(None, {"x": x})[0].tolist() == ["3.0", "-100.0", "0.0"]
    )
    assert onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0].tolist() == ["3", "-100", "0"]


@pytest.mark.parametrize("target", TARGETS)
def test_special_values_are_spelled_as_onnx_spells_them(target: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert run(model(x, TensorProto.STRING), x, target).tolist() == ["NaN", "INF", "-INF"]


def test_texts_of_narrow_floats_are_read_back() -> None:
    x = np.array([0.1, 100, 1 / 3], ml_dtypes.bfloat16)
    texts = run(model(x, TensorProto.STRING), x, "interp")
    assert np.array_equal(texts.astype(np.float32).astype(ml_dtypes.bfloat16), x)


@pytest.mark.parametrize("target", TARGETS)
def test_what_reads_the_texts_finds_them(target: str) -> None:
    x = np.array([1, -2], np.int64)
    same = model(
        x, TensorProto.STRING, ("Equal", ["s", "t"], {}), out=TensorProto.BOOL, t=np.array(["1", "-2"], object)
    )
    keys = {"keys_strings": ["1", "-2"], "values_int64s": [10, 20]}
    labels = model(x, TensorProto.STRING, ("LabelEncoder", ["s"], keys), out=TensorProto.INT64)
    hot = model(x, TensorProto.STRING, ("OneHotEncoder", ["s"], {"cats_strings": ["1", "-2"]}), out=TensorProto.FLOAT)
    for m in (same, labels, hot):
        expected = onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0]
        np.testing.assert_array_equal(run(m, x, target), expected)


def test_constants_become_texts_when_they_are_folded() -> None:
    k = np.array([0.1, 2.5], np.float32)
    nodes = [helper.make_node("Cast", ["k"], ["s"], to=8), helper.make_node("StringConcat", ["s", "x"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 8, [2])], [helper.make_tensor_value_info("y", 8, [2])],
        [numpy_helper.from_array(k, "k")],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert run(m, np.array(["a", "b"], object), "cpu-jit").tolist() == ["0.1a", "2.5b"]


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "DOUBLE", "INT64", "INT8", "UINT64", "BOOL"])
def test_texts_become_numbers(to: str) -> None:
    kind = getattr(TensorProto, to)
    texts = ["1", " 1", "+3", "-0", "300", "3.7", "1.0"] + (["1e3", "NaN", "-inf", "+INF"] if to[0] in "FD" else [])
    x = np.array(texts, object)
    m = model(x, kind)
    expected = onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0]
    for target in TARGETS:
        found = run(m, x, target)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("to", "text"), [
    ("FLOAT", "abc"), ("FLOAT", ""), ("FLOAT", "1_0"), ("INT64", "abc"), ("INT64", "nan"), ("INT64", "99999999999999999999"),
    ("INT64", "1e400"), ("INT8", "1_0"), ("BOOL", "abc"),
])  # fmt: skip
def test_texts_that_are_no_numbers_are_refused(to: str, text: str) -> None:
    x = np.array([text], object)
    for target in TARGETS:
        with pytest.raises(occ.RunError, match=r"OCC0504.*`Cast#1`.*cannot become"):
            run(model(x, getattr(TensorProto, to)), x, target)


def test_inputs_of_texts_hold_texts() -> None:
    m = model(np.array(["1"], object), TensorProto.INT64)
    with pytest.raises(occ.RunError, match="an element of the input `x` is int"):
        run(m, np.array([1], object), "interp")
    assert run(m, np.array(["7"]), "interp").tolist() == [7]  # numpy's own texts
