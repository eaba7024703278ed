"""Faults that random graphs found, each as small as it can be; the oracle is onnx.reference."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from building import TARGETS, model_of, reference

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.interp.graph import Interpreter

NATIVE = ("interp", "cpu-jit")


def check(text: str, feeds: dict[str, np.ndarray], target: str, weights: dict[str, np.ndarray] | None = None) -> None:
    model = model_of(text, weights)
    for got, want in zip(occ.compile(model, target).run(feeds).values(), reference(model, feeds), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_whose_stride_is_longer_than_its_kernel(auto: str, target: str) -> None:
    """Pads below 0 were taken for 0, which moved the result by a row."""
    text = f"""g (float[1,1,3,2] x) => (float[a,b,c,d] y) {{
        y = ConvTranspose<auto_pad="{auto}", kernel_shape=[1,2], strides=[4,3]>(x, w)
    }}"""
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2) + 1
    check(text, {"x": x}, target, {"w": np.array([[[[1.0, 10.0]]]], np.float32)})


@pytest.mark.parametrize("target", NATIVE)
def test_loop_that_changes_nothing(target: str) -> None:
    """Once its state was found to be invariant it had no results, and was kept as if it had an effect."""
    body = "(int64 i, bool c, float s) => (bool d, float t) { d = Identity(c) t = Identity(s) }"
    text = f'g (float x, int64 n) => (float y) {{ y = Loop(n, "", x) <body = body {body}> }}'
    check(text, {"x": np.array(3.0, np.float32), "n": np.array(2)}, target)


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("ConstantOfShape", "y0 = ConstantOfShape(s)  y = Expand(y0, s)"),
        ("QuantizeLinear", "t = Reshape(x, s)  u = Squeeze(t)  y = QuantizeLinear(u, scale)"),
    ],
)
def test_deferred_result_has_the_default_type(node: str, text: str, target: str) -> None:
    """It had the type of the first operand, which is that of no result."""
    feeds = {"x": np.array([1.0, 2.0], np.float32), "s": np.array([1, 2])}
    check(f"g (float[2] x, int64[2] s) => (y) {{ {text} }}", feeds, target, {"scale": np.array(0.5, np.float32)})


def test_value_of_known_shape_made_with_one_of_unknown_extent_verifies() -> None:
    text = "g (float[2,n] x, bool[2] c) => (float[a,b] y) { v = Compress<axis=0>(x, c)  y = Sub(x, v) }"
    assert Compilation(model_of(text), Settings("cpu-jit", cache=False, verify=True)).advance("canonical").main.results
    check(text, {"x": np.ones((2, 3), np.float32), "c": np.array([True, False])}, "cpu-jit")


@pytest.mark.parametrize("target", NATIVE)
def test_gemm_of_integers_with_half_of_a_product(target: str) -> None:
    """`alpha` became an integer: 0."""
    text = "g (int32[2,3] x) => (int32[2,1] y) { y = Gemm<alpha=0.5, beta=1.5>(x, w, c) }"
    x = np.array([[7, 1, 3], [-5, 0, 2]], np.int32)
    check(text, {"x": x}, target, {"w": np.array([[-9], [-3], [2]], np.int32), "c": np.array([3], np.int32)})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_shrink_of_integers(target: str) -> None:
    """`bias` and `lambd` became integers: 0."""
    text = "g (int64[5] x) => (int64[5] y) { y = Shrink<bias=0.78, lambd=1.5>(x) }"
    check(text, {"x": np.array([-5, -1, 0, 2, 9])}, target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_integer_to_a_negative_power(target: str) -> None:
    text = "g (int64[6] x, int32[6] n) => (int64[6] y) { y = Pow(x, n) }"
    x, n = np.array([1, -1, -1, 5, -2, 3]), np.array([-3, -3, -2, -1, -2, 2], np.int32)
    got = occ.compile(model_of(text), target).run({"x": x, "n": n})["y"]
    np.testing.assert_array_equal(got, [1, -1, 1, 0, 0, 9])  # truncated; numpy, and so onnx.reference, refuses


@pytest.mark.parametrize("target", NATIVE)
def test_known_small_integers_wrap(target: str) -> None:
    """123 + 136 is 3 in uint8, also where it decides a shape; it was 259, which uint8 does not hold."""
    text = "g (float[3] x) => (uint8 y, float[a,b] z) { y = Add(a, b)  s = Cast<to=7>(y)  t = Unsqueeze(s, i)  u = Concat<axis=0>(i, t)  v = Sub(u, j)  z = Reshape(x, v) }"
    weights = {"a": np.array(123, np.uint8), "b": np.array(136, np.uint8), "i": np.array([0]), "j": np.array([-1, 0])}
    check(text, {"x": np.ones(3, np.float32)}, target, weights)


@pytest.mark.parametrize("target", NATIVE)
def test_bits_of_a_known_integer_are_inverted(target: str) -> None:
    """It was taken for a truth value: 1 instead of -1."""
    check(
        "g (float x) => (int64[2] y) { y = BitwiseNot(w) }",
        {"x": np.zeros((), np.float32)},
        target,
        {"w": np.array([0, 5])},
    )


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("expression", ["Not(w)", "Not(v)", "And(w, v)", "Xor(w, v)", "Or(w, v)"])
def test_truth_values_that_are_known(expression: str, target: str) -> None:
    """Those of a constant are 0 and 1 here, whose bits inverted are not truth values."""
    weights = {"w": np.array([True, False, True, False]), "v": np.array([True, True, False, False])}
    check(f"g (float x) => (bool[4] y) {{ y = {expression} }}", {"x": np.zeros((), np.float32)}, target, weights)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 3, 5), (561, 0, 5), (561, 3, 0), (0, 300, 500)])
def test_products_of_nothing(rows: int, depth: int, columns: int, target: str) -> None:
    """The blocks of their rows on `cpu` divided by the depth, and by the rows of a tile."""
    text = f"g (float[{rows}, {depth}] a, float[{depth}, {columns}] b) => (float[{rows}, {columns}] y) {{ y = MatMul(a, b) }}"
    check(text, {"a": np.ones((rows, depth), np.float32), "b": np.ones((depth, columns), np.float32)}, target)


@pytest.mark.parametrize("target", NATIVE)
def test_input_as_long_as_the_data_say(target: str) -> None:
    """The extent of the input was put in terms of one that is known only later, and nothing bound that."""
    text = """g (int64[1] s, float[n] x) => (float[a,b] y, float[c] z) {
        v = ConstantOfShape(s)  k = Shape(v)  t = Concat<axis=0>(two, k)  y = Reshape(x, t)  z = Neg(v)
    }"""
    feeds = {"s": np.array([3]), "x": np.arange(6, dtype=np.float32)}
    check(text, feeds, target, {"two": np.array([2])})
    with pytest.raises(occ.RunError, match=r"OCC050"):
        occ.compile(model_of(text, {"two": np.array([2])}), target).run(feeds | {"s": np.array([2])})


def test_artifact_with_a_scalar_that_waits_for_its_operands(tmp_path: Path) -> None:
    """The text of its module was no module: no extent of a scalar shows that the op is deferred."""
    text = "g (float16[n] x, int64[1] s) => (float16 y) { y = ReduceProd<keepdims=0>(x, s) }"
    occ.build(model_of(text), "interp", out=str(tmp_path / "m.occ"))
    got = occ.load(tmp_path / "m.occ").run({"x": np.array([2, 3], np.float16), "s": np.array([0])})
    assert got["y"] == 6


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("node", ["Loop", "Scan"])
def test_loop_without_iterations_leaves_sizes_alone(node: str, target: str) -> None:
    """On `interp` the empty result of no iteration bound `n` to 0, and all of that size that came later was empty."""
    if node == "Loop":
        body = "(int64 i, bool c, float[k] s) => (bool d, float[k] t, float[k] u) { d = Identity(c) t = Neg(s) u = Exp(s) }"
        loop = f'Loop(m, "", x) <body = body {body}>'
    else:
        body = "(float[k] s, float e) => (float[k] t, float[k] u) { t = Neg(s) u = Add(s, e) }"
        loop = f"Scan(x, m) <num_scan_inputs = 1, body = body {body}>"
    kind, m = ("int64", np.array(0)) if node == "Loop" else ("float[l]", np.zeros(0, np.float32))
    text = f"g (float[n] x, {kind} m) => (float[n] y, float[a,b] z, float[n] w) {{ y, z = {loop} w = Neg(y) }}"
    got = occ.compile(model_of(text), target).run({"x": np.ones(3, np.float32), "m": m})
    assert [x.shape for x in got.values()] == [(3,), (0, 3), (3,)]
    np.testing.assert_array_equal(got["w"], [-1, -1, -1])


def test_input_at_the_start_of_an_output() -> None:
    """All of the output was taken for the part that the input is copied to."""
    text = "g (float[1,8] x, float[2,8] y) => (float[3,8] z) { t = Tanh(y)  z = Concat<axis=0>(x, t) }"
    check(text, {"x": np.ones((1, 8), np.float32), "y": np.zeros((2, 8), np.float32)}, "cpu-jit")


def test_copy_of_an_input_is_interpreted() -> None:
    """As `--validate` does after each pass; the interpreter did not know the op."""
    text = "g (float[1,8] x, float[2,8] y) => (float[3,8] z) { t = Tanh(y)  z = Concat<axis=0>(x, t) }"
    m = Compilation(model_of(text), Settings("cpu-jit", cache=False)).advance("scheduled")
    assert "copy" in {op.name for op in m.walk()}
    (got,) = Interpreter(m).run([np.ones((1, 8), np.float32), np.zeros((2, 8), np.float32)], {})
    np.testing.assert_array_equal(got, [[1] * 8, [0] * 8, [0] * 8])


@pytest.mark.parametrize("target", NATIVE)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(5, 1, 3), (7, 2, 5), (8, 2, 4)])
def test_pool_whose_stride_is_longer_than_its_kernel(
    size: int, kernel: int, stride: int, auto: str, target: str
) -> None:
    """A mean is a convolution with equal weights, on whose windows all runtimes agree; on those of pools none does."""
    attrs = f'auto_pad="{auto}", kernel_shape=[{kernel}], strides=[{stride}]'
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
    conv = model_of(
        f"g (float[1,1,{size}] x) => (float[a,b,c] y) {{ y = Conv<{attrs}>(x, w) }}",
        {"w": np.full((1, 1, kernel), 1 / kernel, np.float32)},
    )
    (want,) = reference(conv, {"x": x})
    pools = f"g (float[1,1,{size}] x) => (float[a,b,c] y, float[a,b,c] z) {{ y = AveragePool<{attrs}>(x)  z = MaxPool<{attrs}>(x) }}"
    got = occ.compile(model_of(pools), target).run({"x": x})
    np.testing.assert_allclose(got["y"], want)
    np.testing.assert_allclose(got["z"], want + (kernel - 1) / 2)


@pytest.mark.parametrize("target", NATIVE)
def test_size_that_is_divided_by_an_extent_of_nothing(target: str) -> None:
    """It ended in a ZeroDivisionError."""
    text = "g (float[a,b] x, float[c] y) => (float[d,e] z, float[f] w) { s = Shape(y)  k = Concat<axis=0>(s, m)  z = Reshape(x, k)  w = Neg(y) }"
    session = occ.compile(model_of(text, {"m": np.array([-1])}), target)
    with pytest.raises(occ.RunError, match="OCC0503"):
        session.run({"x": np.ones((2, 3), np.float32), "y": np.ones(0, np.float32)})


def test_strings_out_of_a_pickle() -> None:
    """Their type is equal to that of other strings, but not the same object, and was taken for one that numpy does not have."""
    session = occ.compile(model_of("g (string[n] x, string[1] y) => (bool[n] z) { z = Equal(x, y) }"), "interp")
    x, y = pickle.loads(pickle.dumps((np.array(["a", "b"], object), np.array(["b"], object))))
    np.testing.assert_array_equal(session.run({"x": x, "y": y})["z"], [False, True])


def test_constant_that_is_a_result_of_an_artifact(tmp_path: Path) -> None:
    """Weights of an artifact are bytes, and were given a shape before a type."""
    wanted = np.arange(16).reshape(2, 8)
    occ.build(
        model_of("g () => (int64[2, 8] y) { y = Identity (w) }", {"w": wanted}), "cpu-jit", out=tmp_path / "a.occ"
    )
    np.testing.assert_array_equal(occ.load(tmp_path / "a.occ").run({})["y"], wanted)


@pytest.mark.parametrize("target", NATIVE)
def test_loop_whose_body_needs_sizes_of_what_nothing_else_reads(target: str) -> None:
    """The build ended in a KeyError: nothing but the constraint of a node that is not needed mentions the size."""
    body = "(int64 i, bool c, float s) => (bool d, float t) { u = BatchNormalization(x, w, w, w, w)  d = Identity(c)  t = Neg(s) }"
    text = f"g (float[3,b] x, float z, int64 n) => (float y) {{ y = Loop(n, yes, z) <body = body {body}> }}"
    feeds = {"x": np.ones((3, 5), np.float32), "z": np.array(3.0, np.float32), "n": np.array(3)}
    check(text, feeds, target, {"w": np.ones(5, np.float32), "yes": np.array(True)})


@pytest.mark.parametrize("target", NATIVE)
def test_state_of_a_loop_that_does_not_fit_after_its_extent_was_let_go(target: str) -> None:
    """What the body needs of the extent of its state was dropped: a state that is too long read past the end of `w`."""
    body = "(int64 i, bool c, float[p,q] s) => (bool d, float[p,r] t) { d = Identity(c)  t = MatMul(s, w) }"
    text = f"g (float[3,a] x, float[b,e] w, int64 n) => (float[f,h] y) {{ y = Loop(n, yes, x) <body = body {body}> }}"
    session = occ.compile(model_of(text, {"yes": np.array(True)}), target)
    w, n = np.ones((4, 4), np.float32), np.array(2)
    np.testing.assert_array_equal(
        session.run({"x": np.ones((3, 4), np.float32), "w": w, "n": n})["y"], np.full((3, 4), 16)
    )
    for extent in (1, 3, 9):
        with pytest.raises(occ.RunError, match=r"OCC0503.*MatMul"):
            session.run({"x": np.ones((3, extent), np.float32), "w": w, "n": n})


@pytest.mark.parametrize(("dtype", "number"), [(1, np.float32(0.7)), (10, np.float16(0.7)), (11, np.float64(0.7))])
def test_sizes_by_products_that_are_rounded(dtype: int, number: np.floating) -> None:
    """10 times 0.7 is 7 in f32 and was computed in f64, where f32's 0.7 times 10 is less."""
    text = f"g (float[10] x) => (float[m] y) {{ s = Shape(x)  f = Cast<to={dtype}>(s)  p = Mul(f, k)  q = Floor(p)  z = Cast<to=7>(q)  y = Expand(one, z) }}"
    weights = {"k": np.array([number]), "one": np.array(1, np.float32)}
    check(text, {"x": np.ones(10, np.float32)}, "interp", weights)


def test_zero_point_of_constants_is_rounded_as_that_of_inputs() -> None:
    text = "g (float[2] a) => (uint8[3] y, float s, uint8 z, float[2] b) { y, s, z = DynamicQuantizeLinear(x)  b = Neg(a) }"
    x = np.array([-0.5294118, 0.5294118, 0.1], np.float32)
    check(text, {"a": np.ones(2, np.float32)}, "interp", {"x": x})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("node", ["ScatterND", "ScatterElements"])
def test_sums_of_truth_values(node: str, target: str) -> None:
    """True and True was false in native code, where a bit wrapped."""
    at = np.array([[0], [1]]) if node == "ScatterND" else np.array([0, 1])
    text = f'g (bool[4] x, bool[2] u) => (bool[4] y) {{ y = {node}<reduction="add">(x, at, u) }}'
    check(text, {"x": np.array([True, False, True, False]), "u": np.array([True, True])}, target, {"at": at})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kind", "lowest"), [("uint8", 0), ("float", -np.inf)])
def test_places_of_the_least_elements_that_there_are(kind: str, lowest: float, target: str) -> None:
    """They were those of pads, which are no less, before the input."""
    attributes = "kernel_shape=[2,3], pads=[2,3,0,0], dilations=[2,2]"
    text = f"g ({kind}[1,2,4,4] x) => ({kind}[1,2,a,b] y, int64[1,2,a,b] z) {{ y, z = MaxPool<{attributes}>(x) }}"
    x = np.full((1, 2, 4, 4), lowest, np.uint8 if kind == "uint8" else np.float32)
    found = occ.compile(model_of(text), target).run({"x": x})["z"]
    rows = np.array([0, 1, 0, 1]) * 4  # the first taps that are not pads
    np.testing.assert_array_equal(found[0, 0, :, 0] // 4 * 4, rows[: found.shape[2]])
    assert (found[0, 1] - found[0, 0] == 16).all()
    np.testing.assert_array_equal(found[0, 0, 0], np.array([1, 0, 1, 0])[: found.shape[3]])


@pytest.mark.parametrize("target", NATIVE)
def test_batch_norm_of_channels_that_the_data_decide(target: str) -> None:
    """It became a product, whose operands might have been broadcast to each other."""
    text = """g (float[n] x, int64[3] s) => (float[a, b, c] y) {
        z = Reshape(x, s)
        y = BatchNormalization(z, scale, bias, mean, var)
    }"""
    weights = {k: np.arange(1, 5, dtype=np.float32) for k in ("scale", "bias", "var")}
    weights["mean"] = -weights["var"]
    x = np.arange(24, dtype=np.float32)
    check(text, {"x": x, "s": np.array([2, 4, -1])}, target, weights)
