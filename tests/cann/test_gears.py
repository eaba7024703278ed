"""Gears: one graph for a few sets of extents."""

from __future__ import annotations

import re

import numpy as np
import pytest
from building import model_of, reference
from simulating import built, worst

from occ.compiler.codegen_cann.graph.ranges import around
from occ.compiler.codegen_cann.options import GEARS
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.compiler.frontend.signature import Overrides
from occ.compiler.ge_simulator.reader import read
from occ.runtime.errors import RunError

RNG = np.random.default_rng(5)
BATCH = """g (float[n, 8] x) => (float[n, 2, 4] y) {
    h = MatMul(x, w)
    r = Relu(h)
    y = Reshape(r, shape)
}"""
BATCH_WEIGHTS = {"w": RNG.standard_normal((8, 8), dtype=np.float32), "shape": np.array([-1, 2, 4], np.int64)}
IMAGE = """g (float[1, 3, h, w] x) => (float[1, 2, h2, w2] y) {
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)
    y = Sigmoid(c)
}"""
DIMS = """g (float[b, s, 4] x, float[b, s, 4] z) => (float[b, s, 4] y) {
    a = Softmax <axis = -1> (x)
    y = Add(a, z)
}"""


def run_each(model, options: dict[str, str], inputs: list[dict[str, np.ndarray]]) -> None:
    session = open_session(built(model, **options), 1, simulate=True)
    for x in inputs:
        assert worst(list(session.run(x).values()), reference(model, x)) < 1e-6


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_a_batch_of_several_sizes():
    model = model_of(BATCH, BATCH_WEIGHTS)
    made = built(model, dynamic_batch_size="1,2,5")
    (part,) = made.manifest.parts
    assert part.gears == [{"n": 1}, {"n": 2}, {"n": 5}]
    assert part.inputs[0].shape == ["n", 8]
    assert "--input_shape=x:-1,8" in part.command
    assert "--dynamic_batch_size=1,2,5" in part.command
    graph = next(iter(read(made.files[part.air]).values()))
    assert graph.data[0].output_descs[0].shape == (-1, 8)
    run_each(model, {"dynamic_batch_size": "1,2,5"}, [{"x": random(n, 8)} for n in (1, 2, 5)])


def test_an_image_of_several_sizes():
    model = model_of(IMAGE, {"k": random(2, 3, 3, 3)})
    run_each(model, {"dynamic_image_size": "8,8;16,12"}, [{"x": random(1, 3, 8, 8)}, {"x": random(1, 3, 16, 12)}])


def test_all_dims_of_several_sizes():
    sizes = [{"x": random(b, s, 4), "z": random(b, s, 4)} for b, s in ((1, 3), (2, 7))]
    run_each(model_of(DIMS), {"dynamic_dims": "1,3,1,3;2,7,2,7"}, sizes)


CACHE = """g (float[b, 1, 4] q, float[b, past, 4] k, float[m, total] mask) => (float[b, 1, t] y, float[b, t, 4] present) {
    present = Concat <axis = 1> (k, q)
    turned = Transpose <perm = [0, 2, 1]> (present)
    scores = MatMul(q, turned)
    shown = Add(scores, mask)
    y = Softmax <axis = -1> (shown)
}"""


def test_gears_by_the_names_of_dims():
    gears = "past=4;past=9"  # what `total` is follows from it
    options = {"dynamic_dims": gears}
    model = model_of(CACHE)
    made = Compilation(model, Settings("ascend910b", Overrides(dims={"b": 1, "m": 1}), options)).artifact()
    (part,) = made.manifest.parts
    assert "--dynamic_dims=4,5;9,10" in part.command
    session = open_session(made, 1, simulate=True)
    for past in (4, 9):
        x = {"q": random(1, 1, 4), "k": random(1, past, 4), "mask": random(1, past + 1)}
        assert worst(list(session.run(x).values()), reference(model, x)) < 1e-6


def test_dims_that_turn_out_to_be_equal_have_one_size():
    """Adding makes one symbol of `n` and `k`: a gear names one of them, and fixes both."""
    model = model_of("g (float[n, 4] x, float[k, 4] z) => (float[n, 4] y) { a = Softmax <axis = 0> (x) y = Sub(a, z) }")
    shown = {str(d) for d in Compilation(model, Settings("ascend910b")).advance("inferred").main.args[0].tensor.dims}
    name = (shown & {"n", "k"}).pop()
    run_each(model, {"dynamic_dims": f"{name}=3;{name}=5"}, [{"x": random(n, 4), "z": random(n, 4)} for n in (3, 5)])


ORDERS = {
    "inputs read in another order": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { r = Relu(b) y = Sub(r, a) }",
    "inputs read as they come": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { r = Relu(a) y = Sub(r, b) }",
    "outputs made in another order": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y, float[n, 3] z) { z = Relu(b) y = Sub(z, a) }",
    "outputs made as they come": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y, float[n, 3] z) { y = Neg(b) z = Sub(y, a) }",
    "an output that is given twice": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y, float[n, 3] z, float[n, 3] w) { w = Relu(b) y = Sub(w, a) z = Identity(w) }",
    "an output that is an input": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y, float[n, 3] z) { z = Identity(a) y = Relu(b) }",
    "an input that is not read": "(float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { y = Relu(b) }",
    "outputs of one value at some extents": "(float[n, 3] a, float[n, 3] b) => (float[m, 3] y, float[k, 3] z) { r = Relu(b) y = Reshape(r, rows) z = Reshape(r, flat) }",
}  # fmt: skip


@pytest.mark.parametrize("text", ORDERS.values(), ids=ORDERS)
def test_values_are_bound_by_what_the_model_declares(text: str):
    """All tensors are of one shape, so that a wrong binding is a wrong number and nothing else."""
    weights = {"rows": np.array([0, 3], np.int64), "flat": np.array([-1, 3], np.int64)}
    model = model_of(f"g {text}", {k: v for k, v in weights.items() if k in text})
    run_each(model, {"dynamic_batch_size": "1,2"}, [{"a": random(n, 3), "b": random(n, 3)} for n in (1, 2)])


def test_other_extents_are_refused_at_run_time():
    session = open_session(built(model_of(BATCH, BATCH_WEIGHTS), dynamic_batch_size="1,2"), 1, simulate=True)
    with pytest.raises(RunError, match="gears: n=1; n=2"):
        session.run({"x": random(3, 8)})


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (BATCH, {"dynamic_batch_size": "4"}, "2 to 100 gears"),
        (BATCH, {"dynamic_batch_size": "1,many"}, "numbers from 1"),
        (BATCH, {"dynamic_dims": "1,2;3,4"}, "does not fit the symbolic extents"),
        (IMAGE, {"dynamic_batch_size": "1,2"}, "symbolic too"),
        (DIMS, {"dynamic_dims": "1,3,2,3;2,7,2,7"}, "two values"),
        (DIMS, {"dynamic_dims": "b=1,s=2;b=2"}, "leaves s open"),
        (DIMS, {"dynamic_dims": "b=1,s=2;b=2,height=3"}, "names `height`, which is not a symbolic dim"),
        (DIMS, {"dynamic_dims": "b=1,s=2;s=2,b=1"}, "has the same gear twice"),
        (BATCH, {"dynamic_batch_size": "1,2", "dynamic_dims": "1;2"}, "exclude each other"),
    ],
)
def test_gears_that_do_not_fit_are_refused(text: str, options: dict[str, str], said: str):
    weights = BATCH_WEIGHTS if text is BATCH else {"k": random(2, 3, 3, 3)} if text is IMAGE else {}
    with pytest.raises(CompileError, match=said):
        built(model_of(text, weights), **options)
    assert set(options) <= set(GEARS)


SIZES = {
    "a target of Expand": "(float[n, 4] x, float[m, 1] z) => (float[n, 4] y) { s = Shape(x) e = Expand(one, s) y = Mul(x, e) }",
    "a range": "(float[n, 4] x, float[m, 1] z) => (float[k, 4] y) { s = Shape(x) d = Gather(s, zero) r = Range(zero, d, step) y = Gather(x, r) }",
    "a slice to the middle": "(float[n, 4] x, float[m, 1] z) => (float[k, 4] y) { s = Shape(x) d = Gather(s, zeros) h = Div(d, two) y = Slice(x, zeros, h) }",
    "a reshape in two places": "(float[n, 4] x, float[m, 1] z) => (float[k, 2, l] y) { t = Transpose(z) b = MatMul(x, ones4) c = MatMul(b, t) s = Shape(c) p = Concat <axis = 0> (s, unit) y = Reshape(c, p) }",
    "the first rows of a table": "(float[n, 4] x, float[m, 1] z) => (float[n, 4] y) { s = Shape(x) d = Gather(s, zeros) r = Slice(table, zeros, d) y = Add(x, r) }",
    "a size of two extents": "(float[n, 4] x, float[m, 1] z) => (float[k] y) { a = MatMul(z, ones) t = Transpose(x) b = MatMul(a, t) y = Reshape(b, whole) }",
    "a product as a shape": "(float[n, 4] x, float[m, 1] z) => (float[k, 1] y) { t = Transpose(x) b = MatMul(z, row) c = Concat <axis = 0> (b, x) s = Shape(c) d = Gather(s, zeros) e = Concat <axis = 0> (d, d) y0 = Expand(one, e) y = Reshape(y0, column) }",
    "a resized image": "(float[n, 4] x, float[m, 1] z) => (float[1, 1, k, l] y) { v = Reshape(x, image) y = Resize <mode = \"nearest\"> (v, , scales) }",
}  # fmt: skip
CONSTANTS = {
    "one": random(1, 1), "zero": np.array(0), "step": np.array(1), "zeros": np.array([0]), "two": np.array([2]),
    "times": np.array([1, 2]), "table": random(9, 4), "ones": random(1, 4), "unit": np.array([1]), "ones4": random(4, 1), "whole": np.array([-1]), "row": random(1, 4),
    "column": np.array([-1, 1]), "image": np.array([1, 1, -1, 4]), "scales": np.array([1, 1, 2, 3], np.float32),
    "batch": np.array([1]), "wx": random(1, 12, 4), "wh": random(1, 12, 4), "four": np.array([4]),
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES.values(), ids=SIZES)
def test_sizes_are_computed_from_the_shapes_of_inputs(text: str):
    used = set(re.findall(r"\w+", text))
    model = model_of(f"g {text}", {k: v for k, v in CONSTANTS.items() if k in used})
    inputs = [{"x": random(n, 4), "z": random(m, 1)} for n, m in ((2, 3), (5, 4), (8, 7))]
    run_each(model, {"dynamic_dims": "2,3;5,4;8,7"}, inputs)


def test_loops_run_as_often_as_there_are_rows():
    text = """g (float[n, 1, 4] x) => (float[n, 4] y) {
        w, h = GRU <hidden_size = 4> (x, wx, wh)
        y = Reshape(w, rows)
    }"""
    weights = {"wx": random(1, 12, 4), "wh": random(1, 12, 4), "rows": np.array([-1, 4])}
    run_each(model_of(text, weights), {"dynamic_dims": "20;33"}, [{"x": random(n, 1, 4)} for n in (20, 33)])


def test_a_graph_that_depends_on_extents_otherwise_is_refused():
    text = (
        "g (float[n, 4] x) => (float[n, 4] y) { s = Shape(x) d = Gather(s, zero) f = Cast <to = 1> (d) y = Div(x, f) }"
    )
    with pytest.raises(CompileError, match="in a way that one graph cannot express"):
        built(model_of(text, {"zero": np.array(0)}), dynamic_batch_size="1,2")


def test_outputs_whose_rank_depends_on_extents_are_refused():
    model = model_of("g (float[n, 4] x) => (float y) { y = Squeeze(x) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(CompileError, match="the rank of the output `y` depends on the symbolic extents"):
        built(model, dynamic_batch_size="2,3")


def test_gears_of_one_and_two_steps_share_a_graph_with_longer_ones():
    """Recurrences of one and two steps are written out, and are a loop in the graph of all."""
    text = """g (float[t, b, 3] x) => (float[t, 2, b, 4] y, float[2, b, 4] h) {
        y, h = GRU <hidden_size = 4, direction = "bidirectional"> (x, w, r)
    }"""
    weights = {
        "w": RNG.standard_normal((2, 12, 3)).astype(np.float32),
        "r": RNG.standard_normal((2, 12, 4)).astype(np.float32),
    }
    model = model_of(text, weights)
    session = open_session(built(model, dynamic_dims="t=1,b=1;t=2,b=1;t=6,b=2", cpu_fallback="off"), 1, simulate=True)
    for t, b in ((1, 1), (2, 1), (6, 2)):
        x = {"x": RNG.standard_normal((t, b, 3)).astype(np.float32)}
        assert worst(list(session.run(x).values()), reference(model, x)) < 1e-6


def test_general_sizes_around_gears_keep_what_follows_from_another():
    sizes = around([{"past": 1, "total": 2, "batch": 4}, {"past": 16, "total": 17, "batch": 4}])
    assert len(sizes) > 2
    assert all(s["total"] == s["past"] + 1 and s["past"] >= 3 and s["batch"] == 4 for s in sizes)
    assert max(s["past"] for s in sizes) >= 16
    assert around([{"n": 3}, {"n": 8}]) == []
    assert {s["height"] % 32 for s in around([{"n": 1, "height": 32}, {"n": 2, "height": 96}])} == {0}
