"""NonMaxSuppression in the native entry: the boxes that onnxruntime chooses, in their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of, on_threads

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.runtime.errors import RunError
from occ.runtime.session import Session

BOXES = "float[batch, n, 4] boxes, float[batch, classes, n] scores"
THREE = "int64 limit, float overlap, float least"
CHOOSE = "int64[k, 3] y) {{ y = NonMaxSuppression{} (boxes, scores{}) }}"


def model(given: str = THREE, names: str = ", limit, overlap, least", how: str = "") -> onnx.ModelProto:
    return model_of(f"g ({BOXES}{', ' if given else ''}{given}) => ({CHOOSE.format(how, names)}")


Pair = list[Session]  # on one thread, and on two


@pytest.fixture
def sessions() -> Callable[[onnx.ModelProto], Pair]:
    return lambda m: on_threads(Compilation(m, Settings("cpu-jit")).artifact())


def boxes(rng: np.random.Generator, batch: int, classes: int, n: int, centred: bool = False) -> dict[str, np.ndarray]:
    """Boxes of a few sizes around few places, so that many overlap and some are equal; scores with many that are equal."""
    at = rng.integers(0, 12, (batch, n, 2)) / np.float32(4)
    size = rng.integers(1, 5, (batch, n, 2)) / np.float32(3)
    pair = (at, size) if centred else (at + size, at)  # the corners in either order
    scores = (rng.integers(0, 9, (batch, classes, n)) / 8).astype(np.float32)
    return {"boxes": np.concatenate(pair, -1).astype(np.float32), "scores": scores}


def same_as_onnxruntime(m: onnx.ModelProto, pair: Pair, feed: dict[str, np.ndarray]) -> np.ndarray:
    (expected,) = onnxruntime.InferenceSession(m.SerializeToString()).run(None, feed)
    for session in pair:
        np.testing.assert_array_equal(session.run(feed)["y"], expected)
    return expected


@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize(("batch", "classes", "n"), [(1, 1, 1), (1, 1, 40), (2, 3, 25), (3, 1, 2)])
def test_boxes_in_order_of_their_scores(batch: int, classes: int, n: int, overlap: float, sessions):
    m, rng = model(), np.random.default_rng(n)
    pair = sessions(m)
    for limit in (0, 1, 3, 1 << 62):
        for least in (0.0, 0.4, 2.0):
            rest = {"limit": np.array(limit), "overlap": np.float32(overlap), "least": np.float32(least)}
            same_as_onnxruntime(m, pair, boxes(rng, batch, classes, n) | {k: np.array(v) for k, v in rest.items()})


@pytest.mark.parametrize("how", ["", " <center_point_box = 1>"])
@pytest.mark.parametrize(("given", "names"), [("", ""), ("int64[1] limit", ", limit"), ("int64[1] limit, float[1] least", ", limit,, least")])  # fmt: skip
def test_operands_that_are_left_out(given: str, names: str, how: str, sessions):
    feed = boxes(np.random.default_rng(1), 2, 2, 30, centred=bool(how))
    rest = {"limit": np.array([5]), "least": np.array([0.3], np.float32)}
    feed |= {k: v for k, v in rest.items() if k in given}
    m = model(given, names, how)
    found = same_as_onnxruntime(m, sessions(m), feed)
    assert bool(len(found)) == bool(given)


@pytest.mark.parametrize(("batch", "classes", "n"), [(0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_of_nothing_nothing_is_chosen(batch: int, classes: int, n: int, sessions):
    rest = {"limit": np.array(9), "overlap": np.array(0.5, np.float32), "least": np.array(0, np.float32)}
    for s in sessions(model()):
        assert s.run(boxes(np.random.default_rng(0), batch, classes, n) | rest)["y"].shape == (0, 3)


def test_corners_and_scores_that_are_no_numbers(sessions):
    """Nothing says what they mean; compiled code takes the boxes that `interp` takes."""
    rng = np.random.default_rng(5)
    m = model("int64 limit, float overlap", ", limit, overlap")
    pair, interp = sessions(m), occ.compile(m, "interp")
    for _ in range(20):
        feed = boxes(rng, 1, 2, 12)
        for x in feed.values():
            x[rng.random(x.shape) < 0.1] = np.nan
            x[rng.random(x.shape) < 0.1] = np.inf
        feed |= {"limit": np.array(20), "overlap": np.array(0.2, np.float32)}
        for session in pair:
            np.testing.assert_array_equal(session.run(feed)["y"], interp.run(feed)["y"])


def test_kernels_take_what_was_chosen(sessions):
    m = model_of(f"""g ({BOXES}, int64 limit) => (float[k, 4] y) {{
        half = Constant <value = float {{0.5}}> ()
        chosen = NonMaxSuppression (boxes, scores, limit, half)
        column = Constant <value = int64 {{2}}> ()
        zero = Constant <value = int64 {{0}}> ()
        k = Gather <axis = 1> (chosen, column)
        first = Gather <axis = 0> (boxes, zero)
        found = Gather <axis = 0> (first, k)
        y = Neg (found)
    }}""")
    pair = sessions(m)
    for n in (1, 17, 60):
        feed = boxes(np.random.default_rng(n), 1, 2, n) | {"limit": np.array(7)}
        same_as_onnxruntime(m, pair, feed)


def test_boxes_and_scores_of_unlike_numbers_are_refused(sessions):
    feed = boxes(np.random.default_rng(0), 1, 1, 6) | {"limit": np.array(3), "overlap": np.array(0, np.float32)}
    feed |= {"least": np.array(0, np.float32), "scores": np.zeros((1, 1, 7), np.float32)}
    for s in sessions(model()):
        with pytest.raises(RunError):
            s.run(feed)


def test_few_of_many_boxes_are_compared() -> None:
    """A pass over all that are left for each box that is chosen would take minutes."""
    n, limit = 1_000_000, 20_000
    at = np.stack([np.arange(n) % 1000, np.arange(n) // 1000], -1).astype(np.float32) * 2
    scores = np.random.default_rng(0).permutation(n).astype(np.float32)
    feed = {"boxes": np.concatenate([at, at + 1], -1)[None], "scores": scores[None, None], "limit": np.array(limit)}
    feed |= {"overlap": np.array(0.5, np.float32), "least": np.array(0, np.float32)}
    session = open_session(Compilation(model(), Settings("cpu-jit")).artifact(), 1)
    np.testing.assert_array_equal(session.run(feed)["y"][:, 2], np.argsort(-scores)[:limit])
