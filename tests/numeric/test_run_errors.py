"""Data that a node cannot work on: an error that names the node, on every target."""

from collections.abc import Mapping

import numpy as np
import pytest
from building import model_of

import occ

TARGETS = ("interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain))
CASES: dict[str, tuple[str, Mapping[str, np.ndarray]]] = {
    "gather": (
        "g (float[4] x, int64[2] i) => (float[2] y) { [culprit] y = Gather(x, i) }",
        {"x": np.zeros(4, np.float32), "i": np.array([1, 4])},
    ),
    "gather-elements": (
        "g (float[4] x, int64[2] i) => (float[2] y) { [culprit] y = GatherElements(x, i) }",
        {"x": np.zeros(4, np.float32), "i": np.array([-5, 0])},
    ),
    "scatter": (
        "g (float[4] x, int64[1,1] i, float[1] u) => (float[4] y) { [culprit] y = ScatterND(x, i, u) }",
        {"x": np.zeros(4, np.float32), "i": np.array([[9]]), "u": np.ones(1, np.float32)},
    ),
    "divide": (
        "g (int32[3] x, int32[3] d) => (int32[3] y) { [culprit] y = Div(x, d) }",
        {"x": np.arange(3, dtype=np.int32), "d": np.array([1, 0, 2], np.int32)},
    ),
    "modulo": (
        "g (int64[3] x, int64[1] d) => (int64[3] y) { [culprit] y = Mod(x, d) }",
        {"x": np.arange(3), "d": np.array([0])},
    ),
    "loss": (
        "g (float[2,3] x, int64[2] t) => (float y) { [culprit] y = NegativeLogLikelihoodLoss(x, t) }",
        {"x": np.zeros((2, 3), np.float32), "t": np.array([0, 3])},
    ),
    "top-k": (
        "g (float[n] x) => (float[k] y, int64[k] i) { [culprit] y, i = TopK(x, three) }",
        {"x": np.zeros(2, np.float32)},
    ),
    "top-k-of-an-input": (
        "g (float[2,3] x, int64[1] k) => (float[a,b] y, int64[a,b] i) { [culprit] y, i = TopK(x, k) }",
        {"x": np.zeros((2, 3), np.float32), "k": np.array([4])},
    ),
    "reshape-negative": (
        "g (float[6] x, int64[2] s) => (float[a,b] y) { [culprit] y = Reshape(x, s) }",
        {"x": np.zeros(6, np.float32), "s": np.array([-2, -3])},
    ),
    "reshape-two-unknown": (
        "g (float[6] x, int64[2] s) => (float[a,b] y) { [culprit] y = Reshape(x, s) }",
        {"x": np.zeros(6, np.float32), "s": np.array([-1, -1])},
    ),
    "reshape-other-size": (
        "g (float[6] x, int64[2] s) => (float[a,b] y) { [culprit] y = Reshape(x, s) }",
        {"x": np.zeros(6, np.float32), "s": np.array([2, 2])},
    ),
    "reshape-not-divisible": (
        "g (float[n] x, int64[2] s) => (float[a,b] y) { [culprit] y = Reshape(x, s) }",
        {"x": np.zeros(6, np.float32), "s": np.array([4, -1])},
    ),
    "reverse": (
        "g (float[3,2] x, int64[2] l) => (float[3,2] y) { [culprit] y = ReverseSequence(x, l) }",
        {"x": np.zeros((3, 2), np.float32), "l": np.array([4, 1])},
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_error_names_the_node(case: str, target: str) -> None:
    text, feed = CASES[case]
    model = model_of(text, {"three": np.array([3])} if case == "top-k" else None, opset=22)
    compiled = occ.compile(model, target)
    with pytest.raises(occ.RunError, match="culprit") as raised:
        compiled.run(feed)
    assert raised.value.code == "OCC0504"


# Results that would have less than no elements: the sizes of inputs decide, or their data.
NEGATIVE: dict[str, tuple[str, Mapping[str, np.ndarray]]] = {
    "conv": (
        "g (float[1,1,t] x) => (float[1,1,u] y) { [culprit] y = Conv(x, w) }",
        {"x": np.zeros((1, 1, 2), np.float32)},
    ),
    "pool": (
        "g (float[1,1,t] x) => (float[1,1,u] y) { [culprit] y = MaxPool<kernel_shape = [5]>(x) }",
        {"x": np.zeros((1, 1, 2), np.float32)},
    ),
    "conv-transpose": (
        "g (float[1,1,t] x) => (float[1,1,u] y) { [culprit] y = ConvTranspose<pads = [3, 3]>(x, w) }",
        {"x": np.zeros((1, 1, 1), np.float32)},
    ),
    "pad": ("g (float[n] x) => (float[m] y) { [culprit] y = Pad(x, pads) }", {"x": np.zeros(2, np.float32)}),
    "pad-by-data": (
        "g (float[2] x, int64[2] p) => (float[m] y) { [culprit] y = Pad(x, p) }",
        {"x": np.zeros(2, np.float32), "p": np.array([-3, 0])},
    ),
    "one-hot": (
        "g (int64[3] x, int64 d) => (float[3,m] y) { [culprit] y = OneHot(x, d, values) }",
        {"x": np.arange(3), "d": np.array(-1)},
    ),
    "dft": (
        "g (float[1,4,1] x, int64 n) => (float[1,m,2] y) { [culprit] y = DFT(x, n) }",
        {"x": np.zeros((1, 4, 1), np.float32), "n": np.array(-1)},
    ),
    "expand": (
        "g (float[1] x, int64[1] s) => (float[m] y) { [culprit] y = Expand(x, s) }",
        {"x": np.zeros(1, np.float32), "s": np.array([-2])},
    ),
    "reshape": (  # three elements do not make two rows
        "g (float[n] x) => (float[2,m] y) { [culprit] y = Reshape(x, rows) }",
        {"x": np.zeros(3, np.float32)},
    ),
}


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("case", NEGATIVE)
def test_sizes_that_no_result_can_have(case: str, target: str) -> None:
    text, feed = NEGATIVE[case]
    weights = {"w": np.ones((1, 1, 5), np.float32), "pads": np.array([-3, 0]), "values": np.float32([0, 1])}
    weights["rows"] = np.array([2, -1])
    compiled = occ.compile(model_of(text, {k: v for k, v in weights.items() if k in text}, opset=20), target)
    with pytest.raises(occ.RunError, match="culprit"):
        compiled.run(feed)


# Counts that a run computes, and what refuses them.
COUNTS: dict[str, tuple[str, Mapping[str, np.ndarray], str]] = {
    "top-k": (
        "g (float[3] x, int64[1] k) => (float[m] y, int64[m] i) { [culprit] y, i = TopK(x, k) }",
        {"x": np.zeros(3, np.float32), "k": np.array([-1])},
        "the operands of `TopK` require an extent of -1, but the least is 0",
    ),
    "one-hot": (*NEGATIVE["one-hot"], "the operands of `OneHot` require an extent of -1, but the least is 0"),
    "tile": (
        "g (float[3] x, int64[1] k) => (float[m] y) { [culprit] y = Tile(x, k) }",
        {"x": np.zeros(3, np.float32), "k": np.array([-2])},
        "the operands of `Tile` require an extent of -2, but the least is 0",
    ),
    "window": (
        "g (int64 n) => (float[m] y) { [culprit] y = HannWindow(n) }",
        {"n": np.array(-3)},
        "the operands of `HannWindow` require an extent of -3, but the least is 0",
    ),
    "range": (
        "g (int64 n) => (int64[m] y) { [culprit] y = Range(zero, n, one) }",
        {"n": np.array(2**40)},
        "the operands of `Range` require an extent of 1099511627776, but the most is 2147483647",
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", COUNTS)
def test_count_that_is_no_extent_is_told_with_its_operator(case: str, target: str) -> None:
    text, feed, said = COUNTS[case]
    weights = {"values": np.float32([0, 1]), "zero": np.array(0), "one": np.array(1)}
    compiled = occ.compile(model_of(text, {k: v for k, v in weights.items() if k in text}, opset=20), target)
    with pytest.raises(occ.RunError, match=f"node `culprit`: {said}") as raised:
        compiled.run(feed)
    assert raised.value.code == "OCC0504"


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_least_integer_divided_by_minus_one_wraps(dtype: str, target: str) -> None:
    model = model_of(
        f"g ({dtype}[17] x, {dtype}[17] d) => ({dtype}[17] q, {dtype}[17] r) {{ q = Div(x, d) r = Mod(x, d) }}"
    )
    least = np.full(17, np.iinfo(dtype).min, dtype)
    got = occ.compile(model, target).run({"x": least, "d": np.full(17, -1, dtype)})
    assert np.array_equal(got["q"], least)
    assert not got["r"].any()


@pytest.mark.parametrize("target", TARGETS[:2])
def test_value_that_no_memory_holds(target: str) -> None:
    model = model_of("g (float[1] x) => (float[n] y) { y = Expand (x, s) }", {"s": np.array([1 << 44])})
    with pytest.raises(occ.RunError, match="cannot be allocated") as e:
        occ.compile(model, target).run({"x": np.zeros(1, np.float32)})
    assert e.value.code == "OCC0505"
