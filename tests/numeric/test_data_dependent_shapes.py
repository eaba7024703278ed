"""Shapes that values of a run decide: steps make sizes of them, and all that follows is kernels over those."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, on_threads, reference

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.native_entry.read_routines import host_steps
from occ.runtime.errors import RunError

RNG = np.random.default_rng(0)
ENDS = (-9, -3, -1, 0, 1, 2, 4, 7, 2**62, -(2**62))
SLICE = """g (float[2, n, 5] x, int64[1] b, int64[1] e) => (float[2, k, 5] y, float[2, 5] z) {{
    s = Slice(x, b, e, axis, step)
    y = Exp(s)
    z = ReduceSum <keepdims = 0> (s, axis)
}}"""
SLICES = """g (float[4, 5] x, int32[2] b, int32[2] e) => (float[k, l] y) {
    s = Slice(x, b, e)
    y = Neg(s)
}"""
# As exporters of PaddlePaddle write rows of a table that an iteration computes.
ROWS = """g (int64 n, float[b, 6, 3] x, float[b, 3] r) => (float[b, 6, 3] y, float[b] sums) {
    on = Constant <value = bool {1}> ()
    start = ReduceMax <keepdims = 0> (r, one)
    y, sums = Loop <body = step (int64 i, bool going, float[b, 6, 3] s, float[b] before)
            => (bool still, float[b, 6, 3] q, float[b] sum) {
        still = Identity(going)
        first = Reshape(i, one)
        next = Add(first, one)
        last = Min(next, most)
        old = Slice(s, first, last, one, one)
        shape = Shape(old)
        row = Unsqueeze(r, one)
        wide = Expand(row, shape)
        end = Squeeze(last)
        at = Range(i, end, unit)
        at3 = Reshape(at, three)
        batch = Gather(shape, zero)
        width = Gather(shape, two)
        times = Concat <axis = 0> (batch, one, width)
        index = Tile(at3, times)
        q = ScatterElements <axis = 1> (s, index, wide)
        more = ReduceSum <keepdims = 0> (old, axes)
        sum = Add(before, more)
    }> (n, on, x, start)
}"""
NUMBERS = {
    "one": np.int64([1]), "two": np.int64([2]), "zero": np.int64([0]), "unit": np.int64(1), "most": np.int64([5]),
    "three": np.int64([1, -1, 1]), "axes": np.int64([1, 2]),
}  # fmt: skip


def lowered(model: onnx.ModelProto, target: str = "cpu-jit") -> str:
    m = Compilation(model, Settings(target, verify=True)).advance("lowered")
    return " ".join(op.attrs.get("routine", op.name) for op in m.walk())


@pytest.mark.thinned
@pytest.mark.parametrize("step", [1, -1, 2, -3])
@pytest.mark.parametrize("target", TARGETS)
def test_slice(target: str, step: int) -> None:
    model = model_of(SLICE.format(), {"axis": np.int64([1]), "step": np.int64([step])})
    session, x = occ.compile(model, target), RNG.standard_normal((2, 4, 5), dtype=np.float32)
    for begin, end in product(ENDS, ENDS):
        got = session(x, np.int64([begin]), np.int64([end]))
        wanted = x[:, slice(begin, end, step)]
        np.testing.assert_allclose(got[0], np.exp(wanted), rtol=1e-5, err_msg=f"{begin}:{end}")
        np.testing.assert_allclose(got[1], wanted.sum(1), rtol=1e-4, atol=1e-5)
    assert "deferred" not in lowered(model)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", [1, -1, -3])
def test_slice_of_nothing(target: str, step: int) -> None:
    """From the end on it was to start at a position of an axis that has none."""
    model = model_of("g (float[3, 0] x, int64[2] b, int64[2] e) => (float[k, l] y) { y = Slice(x, b, e, axes, steps) }",
                     {"axes": np.int64([-2, -1]), "steps": np.int64([step, step])})  # fmt: skip
    session = occ.compile(model, target=target)
    for first, last in product((0, -1, 5), (1, -9)):
        feeds = {"x": np.zeros((3, 0), np.float32), "b": np.int64([first, first]), "e": np.int64([last, last])}
        np.testing.assert_array_equal(session.run(feeds)["y"], reference(model, feeds)[0], strict=True)


@pytest.mark.parametrize("target", TARGETS)
def test_slice_of_all_axes(target: str) -> None:
    session, x = occ.compile(model_of(SLICES), target), RNG.standard_normal((4, 5), dtype=np.float32)
    for b, c, e, f in product((-2, 0, 3), (1, -9), (-1, 4), (2, 5, 0)):
        assert np.array_equal(session(x, np.int32([b, c]), np.int32([e, f]))[0], -x[b:e, c:f])


@pytest.mark.thinned
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("target", TARGETS)
def test_range(target: str, kind: type) -> None:
    name = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))).lower()
    text = f"g ({name} s, {name} e, {name} d) => ({name}[n] y) {{ r = Range(s, e, d)  y = Mul(r, r) }}"
    model = model_of(text)
    session = occ.compile(model, target)
    for s, e, d in product((-3, 0, 5), (-2, 0, 4, 7), (-2, 1, 3)):
        given = [np.array(x, kind) for x in (s, e, d)]
        (wanted,) = reference(model, dict(zip("sed", given, strict=True)))
        assert np.array_equal(session(*given)[0], wanted), (s, e, d)
    assert "deferred" not in lowered(model)
    with pytest.raises(RunError, match="OCC0504"):
        session(*(np.array(x, kind) for x in (0, 3, 0)))


SHAPED = {
    "expand": ("float[1, 3, 1] x, int64[k] i", "Expand(x, i)", (1, 3, 1), [[2, 3, 4], [2, 1, 1], [1, 1, 1], [5, 0, 3, 2], [4, 3, 0]]),
    "expand symbolic": ("float[n, m] x, int64[3] i", "Expand(x, i)", (2, 1), [[3, 1, 1], [1, 2, 4], [0, 1, 0]]),
    "reshape": ("float[n, m] x, int64[3] i", "Reshape(x, i)", (4, 6), [[2, 3, 4], [0, -1, 2], [-1, 1, 24], [0, 0, -1], [24, 1, 1]]),
    "reshape of nothing": ("float[n, m] x, int64[2] i", "Reshape<allowzero = 1>(x, i)", (0, 6), [[0, 9], [3, 0], [0, 0]]),
    "tile": ("float[n, m] x, int64[2] i", "Tile(x, i)", (2, 3), [[1, 1], [2, 3], [0, 2], [1, 4]]),
    "constant": ("float[n, m] x, int64[2] i", "ConstantOfShape<value = float[1] {2.5}>(i)", (2, 3), [[2, 3], [0, 5], [1, 1]]),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("case", SHAPED)
@pytest.mark.parametrize("target", TARGETS)
def test_shapes_that_are_inputs(target: str, case: str) -> None:
    inputs, made, shape, asked = SHAPED[case]
    lengths = {len(i) for i in asked}
    x = RNG.standard_normal(shape, dtype=np.float32)
    for n in lengths:
        ranks = ", ".join("abcdef"[: max(n, len(shape)) if "expand" in case else n])
        used = "s = ReduceSum<keepdims = 0>(x)" if case == "constant" else "s = Identity(x)"
        text = f"g ({inputs.replace('[k]', f'[{n}]')}) => (float[{ranks}] y, float z) {{ r = {made}  y = Exp(r)  {used}  z = ReduceMax<keepdims = 0>(s) }}"
        if not x.size:
            text = text.replace(", float z", "").replace(f"{used}  z = ReduceMax<keepdims = 0>(s)", "")
        model = model_of(text)
        session = occ.compile(model, target)
        for i in (i for i in asked if len(i) == n):
            wanted = reference(model, {"x": x, "i": np.int64(i)})[0]
            got = session(x, np.int64(i))[0]
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
        assert "deferred" not in lowered(model)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_loop(target: str) -> None:
    model = model_of(ROWS, NUMBERS)
    session = occ.compile(model, target)
    for n, b in ((3, 2), (0, 2), (1, 1), (5, 3)):
        feed = {
            "n": np.array(n), "x": RNG.standard_normal((b, 6, 3), dtype=np.float32),
            "r": RNG.standard_normal((b, 3), dtype=np.float32),
        }  # fmt: skip
        y, sums = session.run(feed).values()
        wanted = feed["x"].copy()
        wanted[:, :n] = feed["r"][:, None]
        np.testing.assert_array_equal(y, wanted)
        exact = feed["r"].max(1) + feed["x"][:, :n].sum((1, 2))
        np.testing.assert_allclose(sums, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_in_native_code(target: str) -> None:
    x, r = RNG.standard_normal((2, 6, 3), dtype=np.float32), RNG.standard_normal((2, 3), dtype=np.float32)
    _same_as_interp(model_of(ROWS, NUMBERS), target, *([np.array(n), x, r] for n in (0, 1, 5)))
    sliced = model_of(SLICE.format(), {"axis": np.int64([1]), "step": np.int64([-2])})
    x = RNG.standard_normal((2, 4, 5), dtype=np.float32)
    ranges = ((-1, -9), (1, 0), (3, 3), (0, 5))
    _same_as_interp(sliced, target, *([x, np.int64([b]), np.int64([e])] for b, e in ranges))


def _same_as_interp(model: onnx.ModelProto, target: str, *feeds: list[np.ndarray]) -> None:
    artifact, interp = occ.build(model, target), occ.compile(model, "interp")
    assert not host_steps(artifact.manifest)
    for feed, session in product(feeds, on_threads(artifact)):
        for a, b in zip(session(*feed), interp(*feed), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_a_shape_that_is_known_after_the_data(target: str) -> None:
    """The bytes of the output are there before its extents are: a Reshape is a view."""
    text = """g (float[n] x, int64[2] i) => (float[a, b] y) {
        e = Exp(x)  j = Abs(i)  k = Sub(j, one)  y = Reshape(e, k)
    }"""
    x = RNG.standard_normal(6, dtype=np.float32)
    (y,) = occ.compile(model_of(text, {"one": np.int64([1])}), target)(x, np.int64([-4, 3]))
    np.testing.assert_allclose(y, np.exp(x).reshape(3, 2), rtol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_a_range_of_floats_up_to_a_size(target: str) -> None:
    """As detectors make the centres of their cells; nothing is left to the run."""
    text = """g (float[n, m] x) => (float[k] y, float[l] z) {
        s = Shape(x)  p = Gather(s, first)  q = Gather(s, second)  a = Cast <to = 1> (p)  b = Cast <to = 1> (q)
        r = Range(zero, a, one)  y = Add(r, half)  w = Range(b, zero, back)  z = Mul(w, half)
    }"""
    numbers = {"zero": np.float32(0), "one": np.float32(1), "half": np.float32(0.5), "back": np.float32(-2)}
    model = model_of(text, numbers | {"first": np.int64(0), "second": np.int64(1)})
    session = occ.compile(model, target)
    for shape in ((3, 4), (1, 7), (0, 0)):
        y, z = session(np.zeros(shape, np.float32))
        assert np.array_equal(y, np.arange(shape[0], dtype=np.float32) + 0.5)
        assert np.array_equal(z, np.arange(shape[1], 0, -2, dtype=np.float32) / 2)
    assert "deferred" not in lowered(model)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_quotients_of_sizes_that_may_be_negative(target: str) -> None:
    """Lengths after strided convolutions, as torch.export writes them; Div rounds towards zero. They are sizes of the
    build: nothing is computed to find them.
    """
    text = """g (float[n, 4] x, float[m] w) => (int64[2] q, float[k] y) {
        s = Shape <end = 1> (x)  less = Sub(s, three)  four = Div(less, by)
        l = Shape(w)  divisor = Add(l, one)  other = Div(less, divisor)
        q = Concat <axis = 0> (four, other)  more = Add(four, one)  y = ConstantOfShape(more)
    }"""
    model = model_of(text, {"three": np.int64([3]), "by": np.int64([4]), "one": np.int64([1])})
    session = occ.compile(model, target)
    for n, m in product((0, 1, 2, 3, 4, 6, 7, 11), (0, 1, 2)):
        feed = {"x": np.zeros((n, 4), np.float32), "w": np.zeros(m, np.float32)}
        for got, wanted in zip(session.run(feed).values(), reference(model, feed), strict=True):
            assert np.array_equal(got, wanted), (n, m)
    assert "sizes" not in lowered(model)


PAIRS = {
    "nonzero": "(float[n] x, float[m] y) => (int64[2, k] z) { p = NonZero(x)  q = NonZero(y)",
    "compress": "(float[2, n] x, float[2, m] y, bool[n] c, bool[m] d) => (float[4, k] z)"
    " { p = Compress <axis = 1> (x, c)  q = Compress <axis = 1> (y, d)",
}


@pytest.mark.thinned
@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_two_counts_that_have_to_agree(target: str, case: str) -> None:
    """The second has the extent of the first, so there is no size left for it to find."""
    model = model_of(f"g {PAIRS[case]}  b = Concat <axis = 0> (p, q)  z = Mul(b, b) }}")
    c, d, e = (np.array(v, bool) for v in ([0, 1, 1, 0, 1], [1, 1, 1], [1, 1, 1, 1]))

    def feed(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
        if case == "nonzero":
            return {"x": first.astype(np.float32), "y": second.astype(np.float32)}
        x, y = (RNG.standard_normal((2, len(v)), dtype=np.float32) for v in (first, second))
        return {"x": x, "y": y, "c": first, "d": second}

    right = feed(c, d)
    for session in on_threads(occ.build(model, target)):
        np.testing.assert_allclose(session.run(right)["z"], reference(model, right)[0], rtol=1e-6)
        with pytest.raises(RunError, match="OCC050"):
            session.run(feed(c, e))


ROUNDED = {
    "frames": "d = Sub(a, two)  q = Div(d, two)  r = Add(q, one)  z = Ceil(r)",
    "thirds": "q = Div(a, three)  r = Neg(q)  f = Floor(r)  z = Neg(f)",
    "half": "q = Mul(a, half)  z = Floor(q)",
    "truncated": "d = Sub(a, three)  z = Div(d, two)",
    "quotient of quotients": "q = Div(a, three)  r = Div(q, two)  p = Sub(r, half)  t = Mul(p, two)  z = Ceil(t)",
    "three thirds": "q = Div(a, two)  r = Div(q, three)  p = Sub(q, r)  t = Mul(p, three)  z = Ceil(t)",
    "greater of two": "q = Div(a, two)  r = Div(b, three)  p = Max(q, r)  z = Ceil(p)",
    "of two sizes": "c = Add(b, one)  q = Div(a, c)  z = Ceil(q)",
    "chosen": "q = Div(a, two)  f = Floor(q)  c = Less(f, q)  g = Add(f, one)  z = Where(c, g, f)",
}


@pytest.mark.thinned
@pytest.mark.parametrize("case", ROUNDED)
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_rounded_quotients_of_sizes(target: str, case: str) -> None:
    """Shapes pass through floats where exporters write `math.ceil(length / stride)`."""
    text = f"""g (float[n, 4] x, float[m] w) => (int64[1] v, float[k] y) {{
        s = Shape <end = 1> (x)  a = Cast <to = 1> (s)  l = Shape(w)  b = Cast <to = 1> (l)
        {ROUNDED[case]}
        v = Cast <to = 7> (z)  more = Add(v, ten)  y = ConstantOfShape(more)
    }}"""
    numbers = {"half": 0.5, "one": 1, "two": 2, "three": 3}
    used = {k: np.float32([v]) for k, v in numbers.items() if f"{k})" in text}
    model = model_of(text, used | {"ten": np.int64([10])})
    session = occ.compile(model, target)
    for n, m in product((0, 1, 2, 3, 4, 5, 9, 100), (0, 1, 2, 6)):
        feed = {"x": np.zeros((n, 4), np.float32), "w": np.zeros(m, np.float32)}
        for got, wanted in zip(session.run(feed).values(), reference(model, feed), strict=True):
            assert np.array_equal(got, wanted), (n, m)
    assert ("sizes" in lowered(model)) == (case in ("three thirds", "of two sizes", "chosen"))


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_a_branch_that_does_not_fit(target: str) -> None:
    """A Slice along an axis that is not there is an error only where it is taken."""
    text = """g (bool c, float[n, 5] x, int64[1] e) => (float[p, q] y) {
        y = If (c) <then_branch = t () => (float[a, b] u) { u = Slice(x, zero, e, one) },
                    else_branch = f () => (float[a, b] v) { v = Slice(x, zero, e, seven) }>
    }"""
    session = occ.compile(model_of(text, {"zero": np.int64([0]), "one": np.int64([1]), "seven": np.int64([7])}), target)
    x = RNG.standard_normal((2, 5), dtype=np.float32)
    assert np.array_equal(session(np.array(True), x, np.int64([3]))[0], x[:, :3])
    with pytest.raises(occ.CompileError, match=r"OCC0107.*axis 7"):
        session(np.array(False), x, np.int64([3]))


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize(
    "shapes",
    [
        """c = Slice(x, zero, a, zero)
           r = Shape <start = 0, end = 1> (c)
           s = Concat <axis = 0> (r, b)""",
        """k = NonZero(x)
           count = Shape <start = 1, end = 2> (k)
           most = Min(count, sixty)
           c = Slice(x, zero, most, zero)
           r = Shape <start = 0, end = 1> (c)
           s = Concat <axis = 0> (b, r, a)""",
    ],
    ids=["of a slice", "of a count"],
)
def test_sizes_that_follow_from_others(shapes: str, target: str) -> None:
    """What is decided first has another name for its size than the inference that found what comes after it."""
    text = f"g (float[n, 4] x, int64[1] a, int64[1] b) => (float y) {{ {shapes} y = ConstantOfShape(s) }}"
    model = model_of(text, {"zero": np.int64([0]), "sixty": np.int64([60])})
    session = occ.compile(model, target)
    for a, b in ((2, 3), (3, 1), (5, 0), (5, 5)):
        feed = {"x": np.ones((5, 4), np.float32), "a": np.int64([a]), "b": np.int64([b])}
        (y,) = session.run(feed).values()
        np.testing.assert_array_equal(y, reference(model, feed)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_several_sizes_of_a_reshape(target: str) -> None:
    """Each is at most the number of elements: memory for all of them at their upper bounds was requested, 0.4 TB of a few hundred."""
    text = """g (float[n, 24] x, int64[3] s) => (float[a, b, c] y, float[p, q] z) {
        y = Reshape(x, s)
        two = Constant<value_ints = [0, -1]>()
        shape = Shape(y)
        pair = Gather(shape, two)
        z = ConstantOfShape(pair)
    }"""
    session = occ.compile(model_of(text), target)
    x = np.arange(2400, dtype=np.float32).reshape(100, 24)
    for shape in ([8, -1, 3], [100, 24, 1], [0, 4, -1]):
        got = session.run({"x": x, "s": np.array(shape)})
        want = x.reshape([100 if n == 0 else n for n in shape])
        np.testing.assert_array_equal(got["y"], want)
        assert got["z"].shape == (want.shape[0], want.shape[-1])
