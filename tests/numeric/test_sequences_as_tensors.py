"""Sequences that are tensors in disguise, and those whose elements have ranks: what reads them is compiled before the run."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, on_threads, onnxruntime_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.native_entry.read_routines import host_steps
from occ.runtime.errors import RunError

RNG = np.random.default_rng(0)
SEQUENCES = ("SequenceInsert", "SequenceAt", "SplitToSequence", "SequenceEmpty", "ConcatFromSequence")
# As torch writes `for row in x: h = tanh(h + row); out.append(h)` and `stack(out, axis)` or `cat(out, axis)`.
APPENDS = """g (float[t, b, 3] x) => ({result} y, int64 count, float[b, 3] last) {{
    on = Constant <value = bool {{1}}> ()
    shape = Shape(x)
    trips = Gather(shape, zero)
    start = Gather(x, zero)
    empty = SequenceEmpty()
    h, out = Loop <body = step (int64 i, bool going, float[b, 3] before, seq(float) s) => (bool still, float[b, 3] h, seq(float) o) {{
        still = Identity(going)
        row = Gather(x, i)
        sum = Add(before, row)
        h = Tanh(sum)
        o = SequenceInsert(s, h)
    }}> (trips, on, start, empty)
    y = ConcatFromSequence <axis = {axis}, new_axis = {new}> (out)
    count = SequenceLength(out)
    last = SequenceAt(out, end)
}}"""
ZERO = {"zero": np.int64(0), "end": np.int64(-1)}
# As torch writes `for row in x.split(1): out.append(f(row))`.
PIECES = """g (float[n, 3] x, int64[k] at) => (float[k, m] y, int64 count) {{
    on = Constant <value = bool {{1}}> ()
    shape = Shape(x)
    length = Gather(shape, axes)
    ones = ConstantOfShape <value = int64[1] {{1}}> (length)
    pieces = SplitToSequence <axis = {axis}{keepdims}> (x{sizes})
    count = SequenceLength(pieces)
    trips = Size(at)
    y = Loop <body = step (int64 i, bool going) => (bool still, float[m] row) {{
        still = Identity(going)
        place = Gather(at, i)
        piece = SequenceAt(pieces, place)
        twice = Add(piece, piece)
        row = Reshape(twice, flat)
    }}> (trips, on)
}}"""
# As torch writes repeat_interleave with as many times as the data say.
REPEATS = """g (float[n, 3] x, int64[n] times) => (float[m, 3] y, float[3] sums) {
    on = Constant <value = bool {1}> ()
    shape = Shape(x)
    trips = Gather(shape, zero)
    length = Gather(shape, first)
    ones = ConstantOfShape <value = int64[1] {1}> (length)
    counts = SplitToSequence <axis = 0> (times, ones)
    rows = SplitToSequence <axis = 0> (x, ones)
    empty = SequenceEmpty()
    all = Loop <body = step (int64 i, bool going, seq(float) s) => (bool still, seq(float) o) {
        still = Identity(going)
        count = SequenceAt(counts, i)
        row = SequenceAt(rows, i)
        upright = Unsqueeze(row, one)
        asked = Concat <axis = 0> (one, count, one)
        wide = Expand(upright, asked)
        flat = Reshape(wide, back)
        o = SequenceInsert(s, flat)
    }> (trips, on, empty)
    whole = ConcatFromSequence <axis = 0> (all)
    total = ReduceSum <keepdims = 1> (times, first)
    wanted = Concat <axis = 0> (total, three)
    zeros = ConstantOfShape(wanted)
    sum = Add(zeros, whole)
    y = Exp(sum)
    sums = ReduceSum <keepdims = 0> (whole, first)
}"""
FIRST = {
    "zero": np.int64(0),
    "first": np.int64([0]),
    "one": np.int64([1]),
    "back": np.int64([-1, 3]),
    "three": np.int64([3]),
}


def lowered(model: onnx.ModelProto) -> set[str]:
    m = Compilation(model, Settings("cpu-jit", verify=True)).advance("lowered")
    return {op.attrs.get("routine", op.name) for op in m.walk()}


@pytest.mark.thinned
@pytest.mark.parametrize(("axis", "new"), [(0, 1), (1, 1), (-1, 1), (0, 0), (1, 0), (-1, 0)])
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_loop_appends(target: str, axis: int, new: int) -> None:
    result = "float[p, q, r]" if new else "float[p, q]"
    model = model_of(APPENDS.format(result=result, axis=axis, new=new), ZERO)
    session, peer = occ.compile(model, target), onnxruntime_of(model)
    for t, b in product((1, 2, 5), (1, 4, 0)):
        x = RNG.standard_normal((t, b, 3), dtype=np.float32)
        for got, wanted in zip(session(x), peer.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(RunError):  # onnxruntime refuses to join nothing, too
        session(np.zeros((0, 2, 3), np.float32))
    assert not lowered(model).intersection(SEQUENCES)


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_appending_has_an_entry(target: str) -> None:
    model = model_of(APPENDS.format(result="float[p, q, r]", axis=1, new=1), ZERO)
    artifact = occ.build(model, target)
    assert not host_steps(artifact.manifest)
    x = RNG.standard_normal((4, 2, 3), dtype=np.float32)
    for session in on_threads(artifact):
        for a, b in zip(session(x), occ.compile(model, "interp")(x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("how", ["keepdims = 0", "keepdims = 1", "ones", "one"])
@pytest.mark.parametrize("target", TARGETS)
def test_pieces_of_one(target: str, how: str, axis: int) -> None:
    keepdims, sizes = (f", {how}", "") if "keepdims" in how else ("", ", " + {"ones": "ones", "one": "unit"}[how])
    weights = {"axes": np.int64([axis]), "flat": np.int64([-1]), "unit": np.int64(1)}
    model = model_of(PIECES.format(axis=axis, keepdims=keepdims, sizes=sizes), weights)
    session, peer = occ.compile(model, target), onnxruntime_of(model)
    for n, at in ((4, [0, 2, -1]), (3, [-3]), (1, [0])):
        given = {"x": RNG.standard_normal((n, 3), dtype=np.float32), "at": np.int64(at) // (1 + axis)}
        for got, wanted in zip(session.run(given).values(), peer.run(None, given), strict=True):
            assert np.array_equal(got, wanted)
    with pytest.raises(RunError):
        session(np.ones((3, 3), np.float32), np.int64([3]))
    assert not lowered(model).intersection(SEQUENCES)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_rows_repeated_as_the_data_say(target: str) -> None:
    model = model_of(REPEATS, FIRST)
    session, peer = occ.compile(model, target), onnxruntime_of(model)
    for times in ([2, 0, 3, 1], [1], [5], [0, 0, 2], [7, 1, 1, 0, 4]):
        given = {"x": RNG.standard_normal((len(times), 3), dtype=np.float32), "times": np.int64(times)}
        for got, wanted in zip(session.run(given).values(), peer.run(None, given), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert "deferred" not in lowered(model)


UNLIKE = """g (float[n, 4] x, float[m, 4] y, int64[1] a, int64[1] b) => (float[p, 4] sum, float[q, 4] chosen, float[r, 4] wide) {
    from = Slice(x, a, b, zero)
    to = Slice(y, a, b, zero)
    sum = Add(from, to)
    less = Less(from, to)
    chosen = Where(less, from, to)
    shape = Shape(to)
    spread = Expand(from, shape)
    wide = Neg(spread)
}"""


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_extents_that_may_be_one(target: str) -> None:
    model = model_of(UNLIKE, {"zero": np.int64([0])})
    session, peer = occ.compile(model, target), onnxruntime_of(model)
    sizes = [(4, 4, 0, 3), (1, 5, 0, 4), (6, 1, 0, 9), (1, 1, 0, 1), (3, 3, 2, 2), (1, 4, 0, 0)]
    for n, m, a, b in sizes:
        x, y = (RNG.standard_normal((k, 4), dtype=np.float32) for k in (n, m))
        given = {"x": x, "y": y, "a": np.int64([a]), "b": np.int64([b])}
        for got, wanted in zip(session.run(given).values(), peer.run(None, given), strict=True):
            assert got.shape == wanted.shape
            assert np.array_equal(got, wanted), (n, m, a, b)
    with pytest.raises(RunError, match="OCC0504"):
        session(np.ones((3, 4), np.float32), np.ones((5, 4), np.float32), np.int64([0]), np.int64([9]))
    assert "deferred" not in lowered(model)


# Elements that a model takes, of a known rank and of extents that may differ.
TAKEN = """g (seq(float[rows, 3]) s) => (float[k, 3] y, float total) {
    on = Constant <value = bool {1}> ()
    zero = Constant <value = float {0}> ()
    trips = SequenceLength(s)
    total = Loop <body = step (int64 i, bool going, float before) => (bool still, float sum) {
        still = Identity(going)
        rows = SequenceAt(s, i)
        part = ReduceSum <keepdims = 0> (rows)
        sum = Add(before, part)
    }> (trips, on, zero)
    y = ConcatFromSequence <axis = 0> (s)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_elements_of_an_input_have_a_rank(target: str) -> None:
    """So nothing that reads them waits for the run."""
    model = model_of(TAKEN)
    assert "deferred" not in lowered(model)
    elements = [RNG.normal(size=(n, 3)).astype(np.float32) for n in (2, 0, 5, 1)]
    want = dict(zip(("y", "total"), onnxruntime_of(model).run(None, {"s": elements}), strict=True))
    m = occ.compile(model, target)
    got = m.run({"s": elements})
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-6)
    for wrong in (np.zeros((2, 4), np.float32), np.zeros(3, np.float32), np.zeros((1, 2, 3), np.float32)):
        with pytest.raises(RunError, match=r"the model takes \[\?,3\] there"):
            m.run({"s": [elements[0], wrong]})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ends", [(), (3,), (2, 3)])
def test_undeclared_ranks_are_compiled_for(ends: tuple[int, ...], target: str) -> None:
    """What reads elements of unknown rank is code once a run shows the rank; other ranks, and mixed ones, still run."""
    model = model_of(TAKEN.replace("seq(float[rows, 3]) s", "seq(float[]) s").replace("float[k, 3] y", "float[] y"))
    assert "deferred" in lowered(model)
    m, peer = occ.compile(model, target), onnxruntime_of(model)
    alike = [RNG.normal(size=(n, *ends)).astype(np.float32) for n in (2, 1, 5, 1)]
    unlike = [*alike, np.ones((2, 2, 2, 2), np.float32)]
    for elements in (alike, [x[:, None] for x in alike], alike, alike[:1]):
        want = dict(zip(("y", "total"), peer.run(None, {"s": elements}), strict=True))
        got = m.run({"s": elements})
        for name, x in want.items():
            np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-6)
    if target != "interp":
        session = m.for_ranks({"s": alike})
        assert session is m.for_ranks({"s": alike[:2]})
        assert not any(s.kind == "deferred" for p in session.artifact.manifest.plans for s in p.steps)
        assert m.for_ranks({"s": unlike}) is None
    with pytest.raises(RunError):  # of unlike ranks, which ConcatFromSequence does not take
        m.run({"s": unlike})
    for wrong in ({}, {"s": alike, "t": alike}, {"s": [alike[0].astype(np.float64)]}, {"s": ["text"]}, {"s": 1}, None):
        with pytest.raises(RunError, match="OCC0501"):
            m.run(wrong)


def test_high_ranks_are_not_compiled_for() -> None:
    """The sizes of a broadcast are twice as long with each axis: for 20 axes the first run took more than ten minutes."""
    text = """g (seq(float[]) s, float[3] b) => (float[] y) {
        i = Constant <value = int64 {0}> ()
        a = SequenceAt(s, i)
        d = Neg(a)
        e = Add(d, a)
        y = Add(e, b)
    }"""
    m = occ.compile(model_of(text), "cpu-jit")
    given = {"s": [np.ones((1,) * 20 + (3,), np.float32)], "b": np.arange(3, dtype=np.float32)}
    assert m.for_ranks(given) is None
    assert m.run(given)["y"].shape == (1,) * 20 + (3,)
    assert m.for_ranks({"s": [np.ones((2, 3), np.float32)], "b": given["b"]}) is not None


def test_a_shape_declares_tensors_of_a_sequence() -> None:
    model = model_of(TAKEN.replace("seq(float[rows, 3]) s", "seq(float[]) s"))
    elements = [RNG.normal(size=(n, 3)).astype(np.float32) for n in (2, 0, 5, 1)]
    for shape in ([-1, 3], ["rows", 3], [-1, -1]):
        m = occ.compile(model, "cpu-jit", shapes={"s": shape})
        assert m.for_ranks is None
        np.testing.assert_allclose(
            m.run({"s": elements})["y"], onnxruntime_of(model).run(None, {"s": elements})[0], rtol=1e-6
        )
        with pytest.raises(RunError, match="the model takes"):
            m.run({"s": [np.ones(3, np.float32)]})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["seq(float)", "optional(seq(float))"])
def test_declared_scalars(kind: str, target: str) -> None:
    text = f"""g ({kind} s, int64 k) => (float y) {{ x = {{}} y = Neg(x) }}"""
    taken = "SequenceAt(s, k)" if kind == "seq(float)" else "SequenceAt(t, k)"
    first = "" if kind == "seq(float)" else "t = OptionalGetElement(s) "
    model = model_of(text.replace("x = {}", f"{first}x = {taken}"), opset=18)
    m = occ.compile(model, target)
    assert m.run({"s": [np.float32(2), np.float32(3)], "k": np.int64(1)})["y"] == -3
    with pytest.raises(RunError, match=r"OCC0501.* a tensor of shape \[3\], the model takes \[\] there"):
        m.run({"s": [np.ones(3, np.float32)], "k": np.int64(0)})
