"""Pad with pads below 0, which cut, against onnxruntime: the remainder is repeated."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

PADS = [[-1, 2], [-2, 3], [2, -1], [-1, -1], [-3, 2], [-5, 1], [0, -4], [-2, 0]]
MODES = ("wrap", "edge", "reflect", "constant")
X = np.arange(1, 7, dtype=np.float32)


def padded(mode: str, pads: list[int]):
    node = f'y = Pad <mode = "{mode}"> (x, p)'
    return model_of(f"g (float[6] x) => (float[n] y) {{ p = Constant <value_ints = {pads}> () {node} }}")


def both(model, target: str):
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return occ.compile(model, target=target), runtime


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_pads_that_are_known(mode: str, target: str) -> None:
    for pads in PADS:
        if mode == "reflect" and max(pads) >= len(X) + min(min(pads), 0):
            continue  # onnxruntime reflects at most what there is
        model = padded(mode, pads)
        session, runtime = both(model, target)
        np.testing.assert_array_equal(
            session.run({"x": X})["y"], runtime.run(None, {"x": X})[0], str(pads), strict=True
        )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_pads_of_a_run_and_a_symbolic_size(mode: str, target: str) -> None:
    model = model_of(f'g (float[m, n] x, int64[4] p) => (float[a, b] y) {{ y = Pad <mode = "{mode}"> (x, p) }}')
    session, runtime = both(model, target)
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    for pads in ([-1, 2, 2, -3], [0, -2, -1, 2], [1, 1, 1, 1]):
        feeds = {"x": x, "p": np.array(pads)}
        np.testing.assert_array_equal(session.run(feeds)["y"], runtime.run(None, feeds)[0], str(pads), strict=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["wrap", "edge", "reflect"])
def test_nothing_is_left_to_repeat(mode: str, target: str) -> None:
    model = padded(mode, [-6, 2])
    with pytest.raises(occ.CompileError, match=r"OCC0202.*nothing is left to repeat"):
        occ.compile(model, target=target)
    model = model_of(f'g (float[n] x, int64[2] p) => (float[m] y) {{ y = Pad <mode = "{mode}"> (x, p) }}')
    session = occ.compile(model, target=target)
    said = "needs a computed size to be at least 1, but .* it is 0" if target != "interp" else "a computed size = "
    with pytest.raises(occ.RunError, match=f"OCC0503.*{said}"):
        session.run({"x": X, "p": np.array([-7, 9])})


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_tensor_is_padded_along_its_other_axes(target: str) -> None:
    """The border of an empty axis is at position -1, which nothing reads where no pads are along it."""
    model = model_of('g (float[m, n] x, int64[4] p) => (float[a, b] y) { y = Pad <mode = "edge"> (x, p) }')
    session, runtime = both(model, target)
    for shape, pads in ((3, 0), [1, 0, 0, 0]), ((0, 4), [0, 2, 0, 0]), ((0, 0), [0, 0, 0, 0]), ((2, 3), [1, 0, 0, 2]):
        feeds = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape), "p": np.array(pads)}
        np.testing.assert_array_equal(session.run(feeds)["y"], runtime.run(None, feeds)[0], str(pads), strict=True)
    with pytest.raises(occ.RunError, match="OCC0503"):
        session.run({"x": np.empty((3, 0), np.float32), "p": np.array([0, 2, 0, 0])})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_has_to_be_left_where_no_element_is_made(mode: str, target: str) -> None:
    """Another axis of the result is empty, or this one is."""
    of_run = model_of(f'g (float[m, n] x, int64[4] p) => (float[a, b] y) {{ y = Pad <mode = "{mode}"> (x, p) }}')
    for shape, pads in (
        ((0, 3), [0, -3, 0, 2]),
        ((3, 0), [-3, 0, 2, 0]),
        ((3, 0), [0, -2, 2, 2]),
        ((3, 0), [0, 2, 0, -2]),
    ):
        known = f"float[{shape[0]}, {shape[1]}] x"
        node = f'p = Constant <value_ints = {pads}> () y = Pad <mode = "{mode}"> (x, p)'
        x, rows = np.empty(shape, np.float32), shape[0] + pads[0] + pads[2]
        (y,) = occ.compile(model_of(f"g ({known}) => (float[a, b] y) {{ {node} }}"), target=target)(x)
        assert y.shape == (rows, shape[1] + pads[1] + pads[3])
        np.testing.assert_array_equal(occ.compile(of_run, target=target).run({"x": x, "p": np.array(pads)})["y"], y)
