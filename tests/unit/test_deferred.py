"""What the data decide: sizes, shapes, branches, trip counts; compared with onnxruntime or the ONNX reference."""

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import occ
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.open import open_artifact

TARGETS = ["interp", "cpu-jit"]
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def agree(text: str, target: str, *feeds: dict[str, np.ndarray]) -> None:
    """One build agrees with the reference for all feeds."""
    model = onnx.parser.parse_model(HEAD + text)
    built = occ.compile(model, target)
    reference = onnx.reference.ReferenceEvaluator(model)
    for feed in feeds:
        for got, want in zip(built.run(feed).values(), reference.run(None, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.dtype == want.dtype


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_reshape_by_an_input(target: str) -> None:
    text = "g (float[n, m] x, int64[3] s) => (float[a, b, c] y) { r = Reshape(x, s)  y = Relu(r) }"
    agree(text, target, {"x": f32(4, 6), "s": i64(2, -1, 3)}, {"x": f32(2, 2), "s": i64(1, 0, 2)})


@pytest.mark.parametrize("target", TARGETS)
def test_what_follows_a_deferred_op_is_compiled_for_its_extents(target: str) -> None:
    text = """g (float[n] x, int64[1] start, int64[1] end) => (float[k] y) {
        s = Slice(x, start, end)  e = Exp(s)  t = Sum(e, e)  y = Neg(t)
    }"""
    agree(text, target, {"x": f32(9), "start": i64(1), "end": i64(-2)}, {"x": f32(5), "start": i64(4), "end": i64(2)})


@pytest.mark.parametrize("target", TARGETS)
def test_number_of_non_zeros(target: str) -> None:
    text = "g (float[n, m] x) => (float[k, 2] y) { z = NonZero(x)  t = Transpose(z)  y = Cast<to = 1>(t) }"
    agree(text, target, {"x": np.eye(3, dtype=np.float32)}, {"x": np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize("target", TARGETS)
def test_branches_of_unlike_shapes(target: str) -> None:
    text = """g (bool c, float[n] x) => (float[k] y) {
        y = If (c) <then_branch = a () => (float[p] t) { t = Concat<axis = 0>(x, x) },
                    else_branch = b () => (float[q] t) { t = Abs(x) }>
    }"""
    agree(text, target, {"c": np.array(True), "x": f32(3)}, {"c": np.array(False), "x": f32(3)})


@pytest.mark.parametrize("target", TARGETS)
def test_loop_that_grows_what_it_carries(target: str) -> None:
    text = """g (int64 trips, bool on, float[2] x) => (float[n] y, float[m, 2] s) {
        start = Identity(x)
        y, s = Loop (trips, on, start) <body = b (int64 i, bool c, float[k] v) => (bool go, float[l] w, float[2] z) {
            go = Identity(c)  z = Neg(x)  w = Concat<axis = 0>(v, z)
        }>
    }"""
    agree(text, target, *({"trips": np.array(n, np.int64), "on": np.array(True), "x": f32(2)} for n in (3, 1)))


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_sequence_outlives_the_buffers_of_its_elements(target: str) -> None:
    """The elements are intermediate values, whose memory the next kernel takes over."""
    text = """g (float[n] x) => (float[m] y) {
        a = Exp(x)  s = SequenceConstruct(a)  b = Neg(a)  c = Abs(b)  t = SequenceInsert(s, c)
        d = Sin(c)  e = Cos(d)  u = SequenceInsert(t, e)  y = ConcatFromSequence<axis = 0>(u)
    }"""
    agree(text, target, {"x": f32(5)}, {"x": f32(70)})


def test_runtime_alone_says_that_the_compiler_is_missing(tmp_path) -> None:
    """OCC0507."""
    text = "g (float[n] x, int64[1] s) => (float[a, b] y) { y = Unsqueeze(x, s) }"
    path = tmp_path / "model.occ"
    occ.build(onnx.parser.parse_model(HEAD + text), "cpu-jit", path)
    session = open_artifact(Artifact.load(path))
    with pytest.raises(RunError, match="OCC0507"):
        session.run({"x": f32(4), "s": i64(1)})
    assert occ.load(path).run({"x": f32(4), "s": i64(1)})["y"].shape == (4, 1)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_with_sequence_lengths_over_two_lengths(target: str, direction: str) -> None:
    """Against onnxruntime; the reference does not know `sequence_lens`."""
    import onnxruntime

    n = 2 if direction == "bidirectional" else 1
    text = f"""g (float[t, b, 3] x, float[{n}, 16, 3] w, float[{n}, 16, 4] r, float[{n}, 32] bias, int32[b] lens)
        => (float[t, {n}, b, 4] y, float[{n}, b, 4] h, float[{n}, b, 4] c) {{
        y, h, c = LSTM<hidden_size = 4, direction = "{direction}">(x, w, r, bias, lens)
    }}"""
    model = onnx.parser.parse_model(HEAD + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    built = occ.compile(model, target)
    weights = {"w": f32(n, 16, 3), "r": f32(n, 16, 4), "bias": f32(n, 32)}
    for steps, lens in ((5, [5, 2]), (2, [1, 2]), (1, [1, 1])):
        feed = {"x": f32(steps, 2, 3), "lens": np.array(lens, np.int32), **weights}
        for got, want in zip(built.run(feed).values(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_assumption_of_a_branch_holds_for_the_branch_alone(target: str) -> None:
    text = """g (bool c, float[n] x, float[m] y) => (float[k] z) {
        z = If (c) <then_branch = a () => (float[p] s) { s = Add(x, y) },
                   else_branch = b () => (float[q] t) { t = Concat<axis = 0>(x, y) }>
    }"""
    feeds = [{"c": np.array(False), "x": f32(3), "y": f32(2)}, {"c": np.array(True), "x": f32(3), "y": f32(3)}]
    agree(text, target, *feeds)
    built = occ.compile(onnx.parser.parse_model(HEAD + text), target)
    with pytest.raises(RunError, match="OCC0503"):
        built.run({"c": np.array(True), "x": f32(3), "y": f32(2)})


def test_values_that_are_always_others_are_not_compiled_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of a loop: a Slice that starts at the number of an iteration took a compilation in each."""
    from occ.compiler.driver import deferred, sessions

    monkeypatch.setattr(deferred, "_VARIED", 2)
    made: list[object] = []
    compile_one = sessions._compile_deferred
    monkeypatch.setattr(sessions, "_compile_deferred", lambda *a: made.append(a) or compile_one(*a))
    text = """g (float[n] x, int64[1] start, int64 many, int64[1] shape) => (float[l] y, int64[m] z, float[p] w) {
        one = Constant<value_int = 1>()  end = Add(start, one)
        s = Slice(x, start, end)  e = Expand(s, shape)  y = Neg(e)  zero = Constant<value_int = 0>()
        z = Range(zero, many, one)  r = Constant<value_ints = [-1]>()  t = Reshape(shape, r)  w = Tile(s, t)
    }"""
    x = f32(64)
    feeds = [{"x": x, "start": i64(k), "many": np.array(k, np.int64), "shape": i64(2 + k)} for k in range(8)]
    agree(text, "cpu-jit", *feeds)
    assert len(made) <= 4 * 2
    built = occ.compile(onnx.parser.parse_model(HEAD + text), "cpu-jit")
    for feed in feeds:
        built.run(feed)
    with pytest.raises(RunError, match="Expand"):
        built.run({"x": f32(64), "start": i64(3), "many": np.array(2), "shape": i64(-5)})
