"""Steps that Python runs for the native entry: texts, sequences, maps, sizes that nothing bounds, and functions that they call."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.native_entry.read_routines import without_host
from occ.runtime.errors import RunError
from occ.runtime.native.engine import NativeEngine
from occ.runtime.native.host_steps import KernelRun, Values
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
def test_a_classifier(classifier: Session, rows: int) -> None:
    check(classifier.run({"x": ROWS[:rows]}), ROWS[:rows])
    check(classifier.run({"x": np.repeat(ROWS[:rows], 2, axis=1)[:, ::2]}), ROWS[:rows])  # not as kernels take it


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
    assert without_host(artifact.manifest).startswith("only Python can run this model: node ")


def test_sizes_that_nothing_bounds() -> None:
    """Tensors of such sizes get memory when they are known: of the heap in a first run, and of the call's in the next."""
    text = """g (float[n] x, int64[2] s) => (float[a, b] y, float[n] z) {
        y0 = ConstantOfShape <value = float[1] {1}> (s)
        k = ReduceSum <keepdims = 0> (x)
        y1 = Mul (y0, k)
        z = Relu (x)
        y = Exp (y1)
    }"""
    session = occ.compile(model_of(text), "cpu-jit", threads=1)
    for shape in ((3, 4), (300, 7), (3, 4), (0, 5), (700, 11), (700, 11)):
        found = session.run({"x": ROWS[0], "s": np.array(shape)})
        np.testing.assert_allclose(found["y"], np.full(shape, np.exp(8.0), np.float32), rtol=1e-5, strict=True)
        np.testing.assert_array_equal(found["z"], ROWS[0])
    with pytest.raises(RunError, match="OCC050"):
        session.run({"x": ROWS[0], "s": np.array([1 << 30, 1 << 30])})
    assert session.run({"x": ROWS[0], "s": np.array([1, 1])})["y"].shape == (1, 1)


LOOP = """g (float[n] x, int64 m) => (float[k] y, seq(float[n]) rows) {
    none = SequenceEmpty <dtype = 1> ()
    last, rows, y = Loop (m, , x, none) <body = b (int64 i, bool c, float[n] v, seq(float[n]) s)
        => (bool d, float[n] w, seq(float[n]) t, float e) {
            d = Identity (c) two = Constant <value = float {2}> () w = Mul (v, two) t = SequenceInsert (s, v)
            e = ReduceSum <keepdims = 0> (w) }>
}"""


@pytest.mark.parametrize("target", ["cpu-jit", "cpu", "interp"])
def test_a_loop_around_a_sequence(target: str) -> None:
    """The body is compiled, and asks for the insertion; values of former iterations are forgotten."""
    session = occ.compile(model_of(LOOP), target)
    x = np.array([1, -1, 3], np.float32)
    for trips in (0, 1, 5, 3000):
        found = session.run({"x": x if trips < 9 else x * 0, "m": np.array(trips)})
        assert len(found["rows"]) == trips
        assert found["y"].shape == (trips,)
        if 0 < trips < 9:
            np.testing.assert_array_equal(found["rows"][-1], x * 2 ** (trips - 1))
            np.testing.assert_array_equal(found["y"], 3 * 2.0 ** np.arange(1, trips + 1, dtype=np.float32))


def test_values_of_former_iterations_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    forget = Values.forget_lost

    def watched(self: Values, call) -> None:
        nonlocal most
        forget(self, call)
        most = max(most, len(self._values))

    monkeypatch.setattr(Values, "forget_lost", watched)
    text = """g (float[n] x, int64 m) => (float[n] y, seq(float[n]) rows) {
        none = SequenceEmpty <dtype = 1> ()
        y, rows = Loop (m, , x, none) <body = b (int64 i, bool c, float[n] v, seq(float[n]) s)
            => (bool d, float[n] w, seq(float[n]) t) { d = Identity (c) w = Exp (v) t = SequenceInsert (s, v) }>
    }"""
    session = occ.compile(model_of(text), "cpu-jit", threads=1)
    found = session.run({"x": np.zeros(2, np.float32), "m": np.array(5000)})
    assert len(found["rows"]) == 5000
    assert 1000 < most < 2000


def test_states_that_grow() -> None:
    """Python runs a Loop whose states change their shape, and its body is compiled."""
    text = """g (float[n] x, int64 m) => (float[k] y, int64[j] seen) {
        y, seen = Loop (m, , x) <body = b (int64 i, bool c, float[a] v) => (bool d, float[b] w, int64[1] e) {
            d = Identity (c) w = Concat <axis = 0> (v, v) e = Shape (w) }>
    }"""
    text = text.replace("int64[j] seen", "int64[j, 1] seen")
    session = occ.compile(model_of(text), "cpu-jit", threads=1)
    for trips in (0, 1, 6):
        found = session.run({"x": np.array([1, 2], np.float32), "m": np.array(trips)})
        np.testing.assert_array_equal(found["y"], np.tile(np.array([1, 2], np.float32), 2**trips))
        np.testing.assert_array_equal(found["seen"].ravel(), 2 ** np.arange(2, trips + 2))


def test_texts_through_branches() -> None:
    text = """g (string[n] a, string[n] b, bool c) => (string[n] y, string[n] same) {
        y = If (c) <then_branch = t () => (string[n] p) { p = StringConcat (a, b) },
                    else_branch = e () => (string[n] p) { p = Identity (b) }>
        same = Identity (a)
    }"""
    session = occ.compile(model_of(text), "cpu-jit")
    a, b = np.array(["x", "y"], object), np.array(["1", "2"], object)
    assert list(session.run({"a": a, "b": b, "c": np.array(True)})["y"]) == ["x1", "y2"]
    found = session.run({"a": a, "b": b, "c": np.array(False)})
    assert list(found["y"]) == ["1", "2"]
    assert list(found["same"]) == ["x", "y"]
    found["same"][0] = "changed"
    assert a[0] == "x"


def test_runs_side_by_side_keep_their_values_apart() -> None:
    session = occ.compile(model_of(LOOP), "cpu-jit", threads=1)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(session.run, {"x": np.full(3, k, np.float32), "m": np.array(k)}) for k in range(40)]
    for k, run in enumerate(runs):
        rows = run.result()["rows"]
        assert [float(r[0]) for r in rows] == [k * 2.0**i for i in range(k)]


def test_what_a_routine_raises_comes_out() -> None:
    session = occ.compile(model_of(LOOP), "cpu-jit")
    run = session.engine._native.host._run_step

    def interrupted(*given):
        raise KeyboardInterrupt

    session.engine._native.host._run_step = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.run({"x": np.zeros(2, np.float32), "m": np.array(2)})
    session.engine._native.host._run_step = run
    assert len(session.run({"x": np.zeros(2, np.float32), "m": np.array(2)})["rows"]) == 2


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_an_observer_sees_the_kernels_that_run(target: str) -> None:
    """In functions too, in order, with their times, operations and bytes; and nothing once it has gone."""
    text = """g (float[n, 8] x, int64 m) => (float[n, 8] y) {
        a = Exp (x)
        y = Loop (m, , a) <body = b (int64 i, bool c, float[n, 8] v) => (bool d, float[n, 8] w) { d = Identity (c) w = Sin (v) }>
    }"""
    session = occ.compile(model_of(text), target, threads=1)
    seen: list[tuple[KernelRun, int, int]] = []
    feeds = {"x": np.zeros((4, 8), np.float32), "m": np.array(3)}
    assert isinstance(session.engine, NativeEngine)
    session.run(feeds)
    session.engine.observer = lambda *row: seen.append(row)
    session.run(feeds)
    session.engine.observer = None
    session.run(feeds)
    kernels = [run.step.nodes for run, _, _ in seen]
    assert [n[0].split("#")[0] for n in kernels if n[0].split("#")[0] in ("Exp", "Sin")] == ["Exp", "Sin", "Sin", "Sin"]
    times = [t for _, start, end in seen for t in (start, end)]
    assert times == sorted(times)
    exp = next(run for run, _, _ in seen if run.step.nodes[0].startswith("Exp"))
    assert exp.traffic == 2 * 4 * 8 * 4
    assert exp.operations >= 4 * 8


def test_what_an_observer_raises_comes_out() -> None:
    session = occ.compile(model_of("g (float[n] x) => (float[n] y) { y = Exp (x) }"), "cpu-jit")

    def interrupted(*row) -> None:
        raise KeyboardInterrupt

    assert isinstance(session.engine, NativeEngine)
    session.engine.observer = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.run({"x": ROWS[0]})
