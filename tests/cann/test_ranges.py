"""Ranges: one dynamic graph for all sizes between bounds."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of, reference
from simulating import built, worst

from occ.compiler.codegen_cann.graph.ranges import Range, samples
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.sessions import open_session
from occ.compiler.ge_simulator.reader import read
from occ.runtime.errors import RunError

RNG = np.random.default_rng(8)
PYRAMID = """g (float[b, 3, h, w] x) => (float[b, 6, h2, w2] y) {
    a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    r = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (p, , scales)
    y = Concat <axis = 1> (a, r)
}"""
ATTENTION = """g (float[b, s, 8] x) => (float[b, s, 8] y) {
    q = Reshape (x, heads)
    t = Transpose <perm = [0, 2, 1, 3]> (q)
    u = Transpose <perm = [0, 2, 3, 1]> (q)
    scores = MatMul (t, u)
    p = Softmax (scores)
    c = MatMul (p, t)
    d = Transpose <perm = [0, 2, 1, 3]> (c)
    shape = Shape (x)
    y = Reshape (d, shape)
}"""
POSITIONS = """g (float[1, s, 4] x) => (float[1, s, 4] y) {
    shape = Shape (x)
    one = Constant <value_int = 1> ()
    s = Gather (shape, one)
    zero = Constant <value_int = 0> ()
    at = Range (zero, s, one)
    p = Gather (table, at)
    y = Add (x, p)
}"""


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def check(model, ranges: str, shapes: list[tuple[int, ...]]) -> None:
    session = open_session(built(model, dynamic_ranges=ranges), 1, simulate=True)
    for shape in shapes:
        x = {"x": random(*shape)}
        assert worst(list(session.run(x).values()), reference(model, x)) < 2e-6


def test_images_of_any_size_between_bounds():
    model = model_of(PYRAMID, {"k": random(3, 3, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)})
    shapes = [(1, 3, 32, 64), (2, 3, 68, 36), (3, 3, 128, 128), (1, 3, 100, 44)]
    check(model, "b=1..4,h=32..128:4,w=32..128:4", shapes)


def test_texts_of_any_length():
    model = model_of(ATTENTION, {"heads": np.array([0, 0, 2, 4], np.int64)})
    check(model, "b=1..2,s=1..3", [(1, 1, 8), (2, 3, 8), (1, 3, 8)])
    check(model, "b=?,s=1..200", [(1, 1, 8), (5, 7, 8), (2, 200, 8), (300, 3, 8)])


def test_tables_are_as_long_as_the_upper_bound():
    model = model_of(POSITIONS, {"table": random(64, 4)})
    check(model, "s=1..64", [(1, 1, 4), (1, 33, 4), (1, 64, 4)])


def test_the_command_has_the_bounds_and_the_graph_unknown_extents():
    model = model_of(ATTENTION, {"heads": np.array([0, 0, 2, 4], np.int64)})
    (part,) = (made := built(model, dynamic_ranges="b=1..8,s=?")).manifest.parts
    assert "--input_shape=x:1~8,-1,8" in part.command
    assert not any(a.startswith("--dynamic") for a in part.command)
    assert part.ranges == {"b": [1, 8, 1], "s": [1, -1, 1]}
    assert next(iter(read(made.files[part.air]).values())).data[0].output_descs[0].shape == (-1, -1, 8)


def test_sizes_outside_of_the_bounds_are_refused():
    model = model_of(ATTENTION, {"heads": np.array([0, 0, 2, 4], np.int64)})
    session = open_session(built(model, dynamic_ranges="b=1..8,s=4..64:4"), 1, simulate=True)
    for shape, said in (((9, 8, 8), "1 to 8"), ((1, 6, 8), "4 to 64 in steps of 4"), ((1, 68, 8), "4 to 64")):
        with pytest.raises(RunError, match=said):
            session.run({"x": random(*shape)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("b=1..8", "leaves s open"), ("b=1..8,s=many", "has `s=many`"), ("b=1..8,s=4..4", "has no two sizes"),
        ("b=1..8,s=?,height=1..2", "names `height`"), ("b=1..8,s=4..64:0", "has no two sizes"), ("", "needs constant extents"),
    ],
)  # fmt: skip
def test_what_fits_no_dim_is_refused(given: str, said: str):
    with pytest.raises(CompileError, match=said):
        built(model_of(ATTENTION, {"heads": np.array([0, 0, 2, 4], np.int64)}), dynamic_ranges=given)


def test_a_model_that_fails_at_some_size_says_at_which():
    text = "g (float[n, 4] x) => (float[n, 4] y) { y = Add(x, table) }"
    with pytest.raises(CompileError):
        built(model_of(text, {"table": random(3, 4)}), dynamic_ranges="n=1..8")


def test_samples_have_the_bounds_and_move_each_dim():
    found = samples({"a": Range(1, 9), "b": Range(32, 320, 32)})
    assert found[0] == {"a": 3, "b": 32}
    assert found[-1] == {"a": 9, "b": 320}
    assert {s["a"] for s in found if s["b"] == 32} >= {3, 5}
    assert all((s["b"] - 32) % 32 == 0 and 1 <= s["a"] <= 9 for s in found)
