"""Plans whose end only Python runs: the native entry has the rest, and both runners give the same."""

import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.native_entry.read_routines import Unsuitable, routines
from occ.runtime.errors import RunError
from occ.runtime.session import Session

CLASSIFIER = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>
g (float[n, 3] x) => (string[n] label, float[n, 3] y, seq(map(string, float)) scores, int64[n] best) {
    y = Relu(x)
    best = ArgMax <axis = 1, keepdims = 0> (y)
    label = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1, 2], values_strings = ["a", "b", "c"]> (best)
    scores = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b", "c"]> (y)
}"""
ROWS = np.array([[1, 5, 2], [-1, -2, 7]], np.float32)


@pytest.fixture(scope="module")
def classifier() -> Session:
    return occ.compile(model_of(CLASSIFIER), "cpu-jit", threads=1)


def check(found: dict, rows: np.ndarray) -> None:
    assert list(found) == ["label", "y", "scores", "best"]
    relu = np.maximum(rows, 0)
    np.testing.assert_array_equal(found["y"], relu)
    np.testing.assert_array_equal(found["best"], relu.argmax(1))
    assert list(found["label"]) == [("a", "b", "c")[k] for k in relu.argmax(1)]
    assert found["scores"] == [dict(zip("abc", map(float, row), strict=True)) for row in relu]


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_both_runners(classifier: Session, rows: int, monkeypatch) -> None:
    assert classifier.engine._last is not None
    check(classifier.run({"x": ROWS[:rows]}), ROWS[:rows])
    check(classifier.run({"x": np.repeat(ROWS[:rows], 2, axis=1)[:, ::2]}), ROWS[:rows])  # not as kernels take it
    monkeypatch.setenv("OCC_ENTRY", "python")
    check(occ.compile(model_of(CLASSIFIER), "cpu-jit", threads=1).run({"x": ROWS[:rows]}), ROWS[:rows])


def test_outputs_of_the_caller(classifier: Session) -> None:
    y, label = np.empty((2, 3), np.float32), np.empty(2, object)
    found = classifier.run({"x": ROWS}, outputs={"y": y, "label": label})
    assert found["y"] is y
    assert found["label"] is label
    check(found, ROWS)


def test_a_result_that_is_kept_is_not_written_again(classifier: Session) -> None:
    first = classifier.run({"x": ROWS})
    classifier.run({"x": -ROWS})
    check(first, ROWS)


def test_what_reads_an_input_and_a_constant() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>
    g (float[n, 2] x) => (float[n, 2] y, seq(map(int64, float)) given, seq(map(int64, float)) fixed) {
        y = Neg(x)
        c = Constant <value = float[1, 2] {3, 4}> ()
        given = ai.onnx.ml.ZipMap <classlabels_int64s = [7, 8]> (x)
        fixed = ai.onnx.ml.ZipMap <classlabels_int64s = [7, 8]> (c)
    }"""
    found = occ.compile(model_of(text), "cpu-jit").run({"x": np.array([[1, 2]], np.float32)})
    assert found["given"] == [{7: 1.0, 8: 2.0}]
    assert found["fixed"] == [{7: 3.0, 8: 4.0}]
    np.testing.assert_array_equal(found["y"], [[-1, -2]])


def test_an_end_that_does_not_fit_its_data_names_its_node() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>
    g (float[n, k] x) => (seq(map(int64, float)) scores) {
        y = Neg(x)
        [mapped] scores = ai.onnx.ml.ZipMap <classlabels_int64s = [7, 8]> (y)
    }"""
    session = occ.compile(model_of(text), "cpu-jit")
    with pytest.raises(RunError, match="node `mapped`: `ZipMap` has 2 classes for 3 scores"):
        session.run({"x": np.zeros((1, 3), np.float32)})


def test_classes_with_names_are_compiled() -> None:
    """The names are looked up at the end; nothing is left to the compiler in a run."""
    text = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>
    g (float[n, 2] x) => (string[n] label, float[n, 3] scores) {
        label, scores = ai.onnx.ml.LinearClassifier <classlabels_strings = ["a", "b", "c"],
            coefficients = [1.0, 0.0, 0.0, 1.0, -1.0, -1.0], intercepts = [0.0, 0.0, 0.5]> (x)
    }"""
    session = occ.compile(model_of(text), "cpu-jit", threads=1)
    assert {s.kind for s in session.artifact.manifest.plan.steps} == {"kernel", "host"}
    assert list(session.run({"x": np.array([[2, 1], [0, 3], [-1, -1]], np.float32)})["label"]) == ["a", "b", "c"]


def test_a_library_for_programs_refuses_such_a_model() -> None:
    artifact = occ.compile(model_of(CLASSIFIER), "cpu-jit").artifact
    with pytest.raises(Unsuitable, match="only Python can run this model"):
        routines(artifact.manifest)
