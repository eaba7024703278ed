"""Counts and extents that a run computes: such ops are compiled once, and agree with onnxruntime for every value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, onnxruntime_of

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.deferred import DeferredCompiler
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.module import Module
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.plan.plan import defer_text

RNG = np.random.default_rng(0)
X, PICTURE = RNG.standard_normal((3, 20)).astype(np.float32), RNG.standard_normal((1, 1, 9, 8)).astype(np.float32)
INDICES, THETA = RNG.integers(-5, 5, (2, 3)), RNG.standard_normal((1, 2, 3)).astype(np.float32)
WINDOW, SIGNAL = RNG.standard_normal(16).astype(np.float32), RNG.standard_normal((1, 90, 1)).astype(np.float32)
# Inputs but `k` as text and by name, the type of `k` and of the results, the nodes, and values of `k`.
CASES = {
    "TopK": ("float[3, 20] x", {"x": X}, "int64[1]", "float y, int64 i", "y, i = TopK(x, k)", ([3], [0], [20], [9])),
    "TopK of columns": (
        "float[3, 20] x", {"x": X}, "int64[1]", "float y, int64 i", "y, i = TopK <axis = 0, largest = 0> (x, k)",
        ([3], [1]),
    ),
    "TopK of a count": (
        "float[3, 20] x", {"x": X}, "int64", "float y, int64 i",
        "one = Constant <value = int64[1] {1}> ()  n = Reshape(k, one)  m = Abs(n)  y, i = TopK(x, m)", (3, -7),
    ),
    "OneHot": (
        "int64[2, 3] x, float[2] v", {"x": INDICES, "v": np.array([2, 7], np.float32)}, "int64", "float y",
        "y = OneHot <axis = 1> (x, k, v)", (5, 1, 9),
    ),
    "OneHot by a float": (
        "int64[2, 3] x, float[2] v", {"x": INDICES, "v": np.array([2, 7], np.float32)}, "float[1]", "float y",
        "y = OneHot(x, k, v)", ([5.0], [1.0]),
    ),
    "HannWindow": ("", {}, "int64", "float y", "y = HannWindow(k)", (1, 2, 9)),
    "HammingWindow": ("", {}, "int64", "float y", "y = HammingWindow <periodic = 0> (k)", (2, 9)),
    "BlackmanWindow": ("", {}, "int32", "float y", "y = BlackmanWindow(k)", (2, 9)),
    "AffineGrid": (
        "float[1, 2, 3] t", {"t": THETA}, "int64[4]", "float y", "y = AffineGrid(t, k)", ([1, 1, 2, 5], [1, 3, 4, 1])
    ),
    "CenterCropPad": (
        "float[1, 1, 9, 8] x", {"x": PICTURE}, "int64[2]", "float y", "y = CenterCropPad <axes = [2, 3]> (x, k)",
        ([3, 12], [9, 8], [1, 0]),
    ),
    "STFT": (
        "float[1, 90, 1] x, float[16] w", {"x": SIGNAL, "w": WINDOW}, "int64", "float y", "y = STFT(x, k, w)", (1, 7, 90)
    ),
    "Split": (
        "float[3, 20] x", {"x": X}, "int64[3]", "float y, float z, float w", "y, z, w = Split <axis = 1> (x, k)",
        ([3, 7, 10], [0, 20, 0], [19, 0, 1]),
    ),
    "Tile": (
        "float[3, 20] x", {"x": X}, "int64[2]", "float y", "y = Tile(x, k)", ([1, 1], [3, 40], [0, 2], [2, 0], [70, 1]),
    ),
    "Tile of an axis of one": (
        "float[1, 1, 9, 8] x", {"x": PICTURE}, "int64[4]", "float y", "y = Tile(x, k)",
        ([1, 1, 1, 1], [5, 2, 1, 3], [1, 0, 2, 2], [4, 1, 5, 1]),
    ),
    "Tile of truths": (
        "float[3, 20] x", {"x": X}, "int64[2]", "bool y", "z = Constant <value = float {0}> ()  t = Less(x, z)  y = Tile(t, k)",
        ([2, 3], [1, 17]),
    ),
    **{
        f"Pad by {mode}": (
            "float[1, 1, 9, 8] x", {"x": PICTURE}, "int64[8]", "float y", f'y = Pad <mode = "{mode}"> (x, k)',
            ([0] * 8, [0, 0, 1, 2, 0, 0, 3, 4], [0, 0, -1, 2, 0, 0, 3, -4], [0, 0, -3, -3, 0, 0, -3, -3],
             [0, 0, 0, 0, 0, 0, 8, 7]),
        ) for mode in ("constant", "edge", "reflect", "wrap")
    },
    "Pad of axes": (
        "float[1, 1, 9, 8] x, float v", {"x": PICTURE, "v": np.array(2.5, np.float32)}, "int64[2]", "float y",
        "on = Constant <value = int64[1] {-2}> ()  y = Pad (x, k, v, on)",
        ([1, 2], [-20, 25], [25, -20], [-9, 1], [-9, 0], [12, -10]),
    ),
    "Resize": (
        "float[1, 1, 9, 8] x", {"x": PICTURE}, "int64[4]", "float y", 'y = Resize <mode = "linear"> (x, , , k)',
        ([1, 1, 5, 17], [1, 1, 9, 8], [1, 1, 1, 1]),
    ),
    "Resize to the nearest": (
        "float[1, 1, 9, 8] x", {"x": PICTURE}, "int64[2]", "float y",
        'y = Resize <axes = [2, 3], nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"> (x, , , k)',
        ([5, 17], [18, 16], [3, 2], [1, 40]),
    ),
    "Resize by a cubic": (
        "float[1, 1, 9, 8] x", {"x": PICTURE}, "int64[4]", "float y",
        'y = Resize <mode = "cubic", coordinate_transformation_mode = "align_corners"> (x, , , k)',
        ([1, 1, 5, 17], [1, 1, 30, 1]),
    ),
    "DFT": ("float[1, 90, 1] x", {"x": SIGNAL[:, :90]}, "int64", "float y", "y = DFT(x, k)", (1, 64, 16, 128)),
    "MelWeightMatrix": (
        "", {}, "int64", "float y",
        """n = Constant <value = int64 {32}> ()  rate = Constant <value = int64 {8000}> ()
        low = Constant <value = float {0}> ()  high = Constant <value = float {4000}> ()
        y = MelWeightMatrix(k, n, rate, low, high)""", (4, 1, 9),
    ),
    "MelWeightMatrix of a length": (
        "int64 n", {"n": np.array(12)}, "int64", "float y",
        """rate = Constant <value = int64 {8000}> ()
        low = Constant <value = float {20}> ()  high = Constant <value = float {4000}> ()
        y = MelWeightMatrix(n, k, rate, low, high)""", (64, 400, 32),
    ),
    "MelWeightMatrix of numbers in 32 bits": (
        "int32 n, int32 rate", {"n": np.array(4, np.int32), "rate": np.array(8000, np.int32)}, "int32", "float y",
        """low = Constant <value = float {20}> ()  high = Constant <value = float {4000}> ()
        y = MelWeightMatrix(n, k, rate, low, high)""", (64, 32),
    ),
    "STFT of a length": (
        "float[1, 90, 1] x, int64 n", {"x": SIGNAL, "n": np.array(7)}, "int64", "float y", "y = STFT(x, n, , k)",
        (16, 2, 64),
    ),
    "Col2Im": (
        "float[1, 9, 12] x", {"x": RNG.standard_normal((1, 9, 12)).astype(np.float32)}, "int64[2]", "float y",
        "three = Constant <value = int64[2] {3, 3}> ()  y = Col2Im(x, k, three)", ([5, 6], [6, 5], [3, 14]),
    ),
}  # fmt: skip
REFUSED = {
    "Pad by edge": ([0, 0, -9, 0, 0, 0, 2, 0], [2**40, *[0] * 7], [0, 0, 0, -9, 0, 0, 0, 0]),
    "Pad of axes": ([-9, -1], [2**40, 0], [-(2**63), 2**62], [-12, 1]),
    "Split": ([3, 7, 11], [-1, 11, 10], [2**40, 0, 0]),
    "Tile": ([-1, 2], [2**40, 1]),
    "Resize": ([1, 1, -2, 5], [1, 1, 2**40, 5]),
    "DFT": (0, -4),
    "MelWeightMatrix": (-4,),
    "Col2Im": ([5, 5], [-3, 6]),
    "TopK": ([21], [-1], [2**40]),
    "OneHot": (0, -3),
    "AffineGrid": ([1, 1, -2, 5],),
    "CenterCropPad": ([-1, 3],),
}


def model_of_case(name: str) -> onnx.ModelProto:
    inputs, _, kind, results, nodes, _ = CASES[name]
    made = model_of(f"g ({inputs + ', ' if inputs else ''}{kind} k) => ({results}) {{ {nodes} }}", opset=20)
    for r in made.graph.output:
        r.type.tensor_type.ClearField("shape")
    return made


def given(name: str, value: object) -> dict[str, np.ndarray]:
    kind = CASES[name][2]
    return CASES[name][1] | {"k": np.array(value, np.float32 if "float" in kind else kind.partition("[")[0])}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, target: str) -> None:
    model = model_of_case(name)
    theirs, session = onnxruntime_of(model), occ.compile(model, target)
    compilation = Compilation(model, Settings("cpu-jit"))
    assert "deferred" not in {op.name for op in compilation.advance("fused").walk()}
    for value in CASES[name][-1]:
        wanted = theirs.run(None, given(name, value))
        for found, one in zip(session.run(given(name, value)).values(), wanted, strict=True):
            np.testing.assert_allclose(found, np.asarray(one), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_counts_of_an_iteration(target: str) -> None:
    """A loop that keeps one element less each time, in a branch."""
    model = model_of("""g (float[3, 20] x, int64 n, bool c) => (float[a, b] y) {
        y = If (c) <then_branch = kept () => (float[p, q] u) {
            on = Constant <value = bool {1}> ()
            all = Identity(x)
            u = Loop (n, on, all) <body = b (int64 i, bool go, float[r, s] v) => (bool again, float[r, t] w) {
                again = Identity(go)
                most = Constant <value = int64[1] {19}> ()
                k = Sub(most, i)
                w, at = TopK(v, k)
            }>
        }, else_branch = left () => (float[p, q] u) { u = Neg(x) }>
    }""")
    theirs, session = onnxruntime_of(model), occ.compile(model, target)
    for n, c in ((4, True), (1, True), (2, False)):
        feed = {"x": X, "n": np.array(n), "c": np.array(c)}
        np.testing.assert_array_equal(session.run(feed)["y"], np.asarray(theirs.run(None, feed)[0]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_no_run_can_have(name: str, target: str) -> None:
    session = occ.compile(model_of_case(name), target)
    for value in REFUSED[name]:
        with pytest.raises(occ.RunError, match=r"OCC0503|OCC0504"):
            session.run(given(name, value))


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_factors_that_always_differ(target: str) -> None:
    """Results are of one kind, however many sets of values there were: ONNX's reference has other extents."""
    model = model_of(
        'g (float[1, 1, 20, 20] x, float[4] s) => (float[a, b, c, d] y) { y = Resize <mode = "linear"> (x, , s) }'
    )
    theirs, session = onnxruntime_of(model), occ.compile(model, target)
    x = RNG.standard_normal((1, 1, 20, 20)).astype(np.float32)
    for k in range(40):
        feed = {"x": x, "s": np.array([1, 1, 1 + k / 10, 1 + k / 20], np.float32)}
        np.testing.assert_allclose(session.run(feed)["y"], np.asarray(theirs.run(None, feed)[0]), rtol=1e-4, atol=1e-5)


def test_values_that_always_differ_are_not_compiled() -> None:
    """Only ops on many elements are, since they take as long to interpret."""
    made: list[str] = []

    def maker(how: str) -> Callable[[Module], Callable[..., list[np.ndarray]]]:
        def make(m: Module) -> Callable[..., list[np.ndarray]]:
            made.append(how)
            return lambda _: [np.zeros(1)]

        return make

    model = model_of("g (float[n] x, int64[m] a) => (float[k] y) { y = ReduceSum <keepdims = 1> (x, a) }")
    m = Compilation(model, Settings("interp")).advance("inferred")
    (op,) = (op for op in m.main.body.body if op.name == "ReduceSum")
    run = DeferredCompiler(maker("compiled"), Registry(), maker("interpreted"))
    for n in (5, 1 << 17):
        text, operands = defer_text(op, [np.zeros(n, np.float32), np.zeros(1, np.int64)])
        made.clear()
        for k in range(60):
            run(text, [operands[0], np.full(1, k)])
        assert made.count("compiled") == (16 if n == 5 else 60)
        assert len(made) == 60


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("computed", [True, False])
def test_resize_of_an_axis_without_elements(target: str, mode: str, computed: bool) -> None:
    given = ", int64[4] k" if computed else ""
    constant = "" if computed else "k = Constant <value = int64[4] {1, 2, 2, 3}> ()"
    resized = f'{constant} y = Resize <mode = "{mode}"> (x, , , k)'
    session = occ.compile(model_of(f"g (float[n, c, h, w] x{given}) => (float[p, q, r, s] y) {{ {resized} }}"), target)
    feed = {"x": np.zeros((1, 2, 0, 7), np.float32)} | ({"k": np.array([1, 2, 2, 3])} if computed else {})
    with pytest.raises(occ.RunError):
        session.run(feed)


@pytest.mark.parametrize("target", TARGETS)
def test_texts_are_padded(target: str) -> None:
    model = model_of("g (string[3] x, int64[2] k, string v) => (string[m] y) { y = Pad(x, k, v) }")
    feed = {"x": np.array(["a", "b", "c"], object), "k": np.array([1, 1]), "v": np.array("q", object)}
    assert occ.compile(model, target).run(feed)["y"].tolist() == ["q", "a", "b", "c", "q"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("parts", [[1, 2, 3], [6]])
def test_a_split_in_more_or_fewer_parts_than_results(target: str, parts: list[int]) -> None:
    """The third part was left out."""
    session = occ.compile(
        model_of("g (float[6] x, int64[m] k) => (float[a] y, float[b] z) { y, z = Split <axis = 0> (x, k) }"), target
    )
    with pytest.raises(occ.RunError, match="results"):
        session.run({"x": np.arange(6, dtype=np.float32), "k": np.array(parts)})
