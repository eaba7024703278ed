"""What the graph fuzzer allows follows from the arithmetic of both runtimes: it is enough, and not more than that."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ
from tools.fuzz import judge
from tools.fuzz.generate import Case
from tools.fuzz.oracle import run_onnxruntime, run_reference

HOT = np.eye(8, dtype=np.float32)[np.random.default_rng(7).integers(0, 8, (40, 16, 16))]
NEAR = np.float32([[[33.371], [33.796]], [[33.35], [33.79]]])
CASES = {  # text, inputs, results that the allowance must not cover
    "a sum of equal terms, one after the other": (
        "g (float[40,16,16,8] x) => (float y) { y = ReduceLogSumExp <keepdims = 0> (x) }",
        {"x": HOT},
        1e-2,
    ),
    "a variance far from zero": (
        "g (float[2,2,1] x) => (float[2,2,1] y) <float[2] s = {0.7, 0.9}, float[2] b = {0.5, -2.9}>"
        " { y = GroupNormalization <num_groups = 1, epsilon = 0.01> (x, s, b) }",
        {"x": NEAR},
        3e-2,
    ),
    "positions far into a row": (
        "g (float[1,2,10,30] x) => (float[1,2,8,4] y)"
        " <float[8] r = {0, 0, 0.07, 0.33, 1, 1, 1.16, 1.06}, float[0] f = {}, int64[4] n = {1, 2, 8, 4}>"
        ' { y = Resize <coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear"> (x, r, f, n) }',
        {"x": np.random.default_rng(3).uniform(-9, 9, (1, 2, 10, 30)).astype(np.float32)},
        2e-2,
    ),
    "a difference added to one of its terms": (
        "g (int64[5] x) => (double[5, 5] y) <int64 d = {5}, double[2] v = {-1.27553566358267, 0.009015210021869053}>"
        " { y = OneHot(x, d, v) }",
        {"x": np.arange(5)},
        1e-12,
    ),
}


def _case(name: str) -> tuple[Case, dict[str, np.ndarray], float]:
    text, feeds, wrong = CASES[name]
    model = model_of(text)
    oracle = run_reference if "OneHot" in text else run_onnxruntime
    return Case(0, "", model, feeds, oracle(model, feeds)), occ.compile(model, "interp").run(feeds), wrong


@pytest.mark.parametrize("name", CASES)
def test_what_both_runtimes_round_is_allowed(name: str) -> None:
    case, found, _ = _case(name)
    assert not judge.near(found["y"], case.known["y"]), "the case shows nothing"
    assert judge.verdict(found, judge.analyse(case), case.known) == ""


@pytest.mark.parametrize("name", CASES)
def test_what_rounding_does_not_do_is_a_difference(name: str) -> None:
    case, found, wrong = _case(name)
    moved = {n: (x + np.asarray(wrong, x.dtype)) for n, x in found.items()}
    assert judge.verdict(moved, judge.analyse(case), case.known)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceLogSum", "ReduceL2"])
def test_axes_from_the_end_are_no_reason_to_allow_less(op: str) -> None:
    """The sums of sizes are taken along the same axes, which are negative numbers."""
    x = np.random.default_rng(2).uniform(1, 2, (400, 3)).astype(np.float32)
    allowed = []
    for axis in (0, -2):
        model = model_of(f"g (float[400,3] x, int64[1] a) => (float[k] y) {{ y = {op} <keepdims = 0> (x, a) }}")
        feeds = {"x": x, "a": np.int64([axis])}
        allowed.append(judge.analyse(Case(0, "", model, feeds, run_onnxruntime(model, feeds))).allowed["y"])
    np.testing.assert_allclose(*allowed, rtol=1)  # of one random disturbance each
    assert allowed[1].min() > 0


def test_winograd_takes_16_channels_of_a_group() -> None:
    """Whose transforms mix all elements of a tile, so the largest decide the error."""
    rng = np.random.default_rng(1)
    w = rng.uniform(-0.06, 0.06, (48, 16, 3, 3)).astype(np.float32)
    model = model_of("g (float[2,32,9,9] x) => (float[2,48,7,7] y) { y = Conv <group = 2> (x, w) }", {"w": w})
    x = rng.uniform(-2, 2, (2, 32, 9, 9)).astype(np.float32)
    known = run_onnxruntime(model, {"x": x})
    analysis = judge.analyse(Case(0, "", model, {"x": x}, known))
    while analysis.more():
        pass
    sums = np.einsum("bgchwij,gfcij->bgfhw", np.lib.stride_tricks.sliding_window_view(abs(x).reshape(2, 2, 16, 9, 9), (3, 3), (3, 4)),
                     abs(w).reshape(2, 24, 16, 3, 3), optimize=True)  # fmt: skip
    assert analysis.allowed["y"].min() > sums.max() * 2.0**-20, "16 units of the largest sum of sizes"
    assert analysis.allowed["y"].max() < sums.max() * 2.0**-17
