"""Reshape to sizes found in the run, of which a 0 copies the extent of the operand, against onnxruntime."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from building import TARGETS, model_of, onnxruntime_of
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

import occ

CONSTANTS = {"rest": np.array([-1]), "four": np.array([4]), "one": np.array(1, np.float32)}
FOUND = "w = NonZero(b)  n = Shape<start = 1>(w)"  # as many as elements of b are not 0
CASES = {
    "first": f"g (float[p,q] x, int64[k] b, int64[1] s) => (float[u,v] y) {{ {FOUND} t = Concat<axis=0>(n, s) z = Reshape(x, t) y = Neg(z) }}",
    "last": f"g (float[p,q] x, int64[k] b, int64[1] s) => (float[u,v] y) {{ {FOUND} t = Concat<axis=0>(s, n) z = Reshape(x, t) y = Neg(z) }}",
    "with a rest": f"g (float[p,q] x, int64[k] b) => (float[u,v] y) {{ {FOUND} t = Concat<axis=0>(n, rest) z = Reshape(x, t) y = Neg(z) }}",
    "after a rest": f"g (float[p,q] x, int64[k] b) => (float[u,v] y) {{ {FOUND} t = Concat<axis=0>(rest, n) z = Reshape(x, t) y = Neg(z) }}",
    "of all": f"g (float[p,q] x, int64[k] b) => (float[u,v,w] y) {{ {FOUND} t = Concat<axis=0>(n, n, n) z = Reshape(x, t) y = Neg(z) }}",
    "a part": f"g (float[p,q] xx, int64[k] b, int64[1] s) => (float[u,v] y) {{ {FOUND} x = Slice(xx, s, n) t = Shape(x) z = Reshape(xx, t) y = Neg(z) }}",
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_a_size_of_nothing_copies(case: str, target: str) -> None:
    model = model_of(CASES[case], {k: v for k, v in CONSTANTS.items() if k in CASES[case]}, opset=19)
    runtime = onnxruntime_of(model)
    session = occ.compile(model, target)
    names = [i.name for i in model.graph.input]
    taken = 0
    for shape, count, s in product(
        ((2, 3), (6, 1), (1, 6), (1, 1), (0, 3), (5, 0), (0, 0)), (0, 1, 2, 3, 6), (-1, 0, 1, 3)
    ):
        if "s" not in names and s:
            continue
        feeds = dict(zip(names, (np.ones(shape, np.float32), np.array([1] * count + [0]), np.array([s])), strict=False))
        try:
            want = runtime.run(None, feeds)[0]
        except (Fail, RuntimeException):
            with pytest.raises(occ.RunError):
                session.run(feeds)
            continue
        np.testing.assert_array_equal(session.run(feeds)["y"], want, strict=True, err_msg=f"{shape} {count} {s}")
        taken += 1
    assert taken


TWO_FOUND = """v = NonZero(b)  n = Shape<start = 1>(v)  w = NonZero(c)  m = Shape<start = 1>(w)  nm = Mul(n, m)
    split = Concat<axis = 0>(n, m, four)  merged = Concat<axis = 0>(nm, four)  rest_last = Concat<axis = 0>(nm, rest)"""
DETECTORS = {
    "merged": ("float[u,v]", "split", "merged"),
    "merged with a rest": ("float[u,v]", "split", "rest_last"),
    "split": ("float[u,v,w]", "merged", "split"),
}  # boxes of each picture and class, both of which the run counts


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", DETECTORS)
def test_two_found_extents_are_merged(case: str, target: str) -> None:
    result, before, after = DETECTORS[case]
    text = f"g (int64[k] b, int64[l] c) => ({result} y) {{ {TWO_FOUND} x = Expand(one, {before}) z = Reshape(x, {after}) y = Neg(z) }}"
    model = model_of(text, CONSTANTS, opset=19)
    runtime = onnxruntime_of(model, optimized=False)  # its optimizer drops the copy of an extent
    session = occ.compile(model, target)
    taken = 0
    for n, m in product((0, 1, 2, 3), (0, 1, 2)):
        feeds = {"b": np.array([1] * n + [0]), "c": np.array([0] + [1] * m)}
        try:
            want = runtime.run(None, feeds)[0]
        except (Fail, RuntimeException):
            with pytest.raises(occ.RunError):
                session.run(feeds)
            continue
        np.testing.assert_array_equal(session.run(feeds)["y"], want, strict=True, err_msg=f"{n} {m}")
        taken += 1
    assert taken >= 6


@pytest.mark.parametrize("target", TARGETS)
def test_a_zero_past_the_last_extent_copies_nothing(target: str) -> None:
    """Also of an operand without elements, whose number of elements any such shape has."""
    model = model_of("g (float[p,q] x, int64[3] s) => (float[u,v,w] y) { y = Reshape(x, s) }", opset=19)
    session = occ.compile(model, target)
    runtime = onnxruntime_of(model)
    for shape, asked in product([(0, 3), (2, 0), (2, 3)], [(0, 4, 0), (0, 0, 0), (5, 0, 0)]):
        feeds = {"x": np.ones(shape, np.float32), "s": np.array(asked)}
        with pytest.raises((Fail, RuntimeException)):
            runtime.run(None, feeds)
        with pytest.raises(occ.RunError, match="OCC0504"):
            session.run(feeds)
