"""One graph for several sizes of models whose ops, once extents are constants, are other ones at each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import TARGET, built, worst

from occ.compiler.driver.sessions import open_session

RNG = np.random.default_rng(12)
# The places of the cells of a picture at two scales, as detectors have them: ranges of rows and of columns.
ANCHORS = """g (float[b, 3, h, w] x) => (float[b, 2, cells] y) {
    a = MaxPool <kernel_shape = [8, 8], strides = [8, 8]> (x)
    hs = Shape <start = 2, end = 3> (a)
    ws = Shape <start = 3, end = 4> (a)
    h1 = Squeeze (hs)
    w1 = Squeeze (ws)
    rows = Range (zero, h1, one)
    columns = Range (zero, w1, one)
    shape = Concat <axis = 0> (hs, ws)
    tall = Unsqueeze (rows, last)
    r = Expand (tall, shape)
    c = Expand (columns, shape)
    rc = Reshape (r, flat)
    cc = Reshape (c, flat)
    at = Concat <axis = 0> (rc, cc)
    places = Cast <to = 1> (at)
    s = ReduceMax <axes = [1], keepdims = 1> (a)
    scores = Reshape (s, lines)
    y = Mul (scores, places)
}"""
CONSTANTS = {
    "zero": np.array(0), "one": np.array(1), "last": np.array([1]), "flat": np.array([1, -1]), "lines": np.array([0, 1, -1]),
}  # fmt: skip
LSTM = """g (float[n, 1, 4] x) => (float[n, 1, 1, 8] y) { y, h, c = LSTM <hidden_size = 8> (x, w, r) }"""
POOL = (
    """g (float[1, 2, t, 6] x) => (float[1, 2, u, 3] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }"""
)

Occ = Callable[..., Any]  # the fixture `occ_cli`


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def anchors() -> onnx.ModelProto:
    return model_of(ANCHORS, CONSTANTS, opset=17)  # in which the axes of ReduceMax are an attribute


def check(model: onnx.ModelProto, shapes: list[tuple[int, ...]], **options: Any) -> None:
    session = open_session(built(model, cpu_fallback="off", **options), 1, simulate=True)
    for shape in shapes:
        x = {"x": f(*shape)}
        assert worst(list(session.run(x).values()), reference(model, x)) < 2e-6


def test_places_in_squares_as_gears():
    check(anchors(), [(1, 3, 64, 64), (2, 3, 320, 320)], dynamic_dims="1,64,64;2,320,320")


def test_places_in_pictures_of_any_size():
    shapes = [(1, 3, 64, 64), (2, 3, 160, 96), (4, 3, 640, 640)]
    check(anchors(), shapes, dynamic_ranges="b=1..4,h=64..640:32,w=64..640:32")


@pytest.mark.thinned
@pytest.mark.parametrize("n", ["1..2", "1..3", "1..40", "2..40", "?"])
def test_sequences_of_one_step_and_of_two(n: str):
    """Of so few the steps are written out, of more they are rounds of a loop."""
    model, (least, _, most) = model_of(LSTM, {"w": f(1, 32, 4), "r": f(1, 32, 8)}), n.partition("..")
    shapes = [(k, 1, 4) for k in (1, 2, 3, 17) if n == "?" or int(least) <= k <= int(most)]
    check(model, shapes, dynamic_ranges=f"n={n}")


def test_windows_over_odd_numbers_of_rows():
    """The last row that they have follows from the number of windows."""
    check(model_of(POOL, {}), [(1, 2, t, 6) for t in (20, 21, 64, 99)], dynamic_ranges="t=20..99")


def test_a_name_with_a_colon():
    """As TensorFlow has them; atc parts the name from the extents at the last colon."""
    model = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }", {})
    model.graph.input[0].name = model.graph.node[0].input[0] = "input:0"
    made = built(model, dynamic_batch_size="1,2")
    assert "--input_shape=input:0:-1,4" in made.files["device/compile.sh"].decode()
    session = open_session(made, 1, simulate=True)
    assert np.array_equal(session.run({"input:0": -np.ones((2, 4), np.float32)})["y"], np.zeros((2, 4)))


def test_the_command_of_ranges(tmp_path: Path, occ_cli: Occ):
    """`--stage atc` says the same as the artifact."""
    path = tmp_path / "m.onnx"
    onnx.save(model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), path)
    done = occ_cli("dump", path, "-t", TARGET, "--stage", "atc", "-C", "dynamic_ranges=n=2..8")
    assert "'--input_shape=x:2~8,4'" in done.out
