"""Values of which only the shape is read: the step that defines it must still run."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings

PRODUCERS = {
    "nonzero": "v = NonZero(x)",
    "after others": "o = NonZero(x)  w = Cast<to = 1>(o)  v = Exp(w)",
    "unique": "v = Unique(x)",
    "compress": "c = Cast<to = 9>(i)  v = Compress<axis = 1>(x, c)",
    "range": "s = ReduceSum<keepdims = 0>(x)  v = Range(zero, s, one)",
    "boxes": "v = NonMaxSuppression(boxes, scores, three)",
    "deferred slice": "v = Slice(x, i1, i2)",
    "deferred reshape": "v = Reshape(x, i)",
    "second result": "t, u, w, n = Unique(x)  v = Identity(n)",
    "two": "o = NonZero(x)  u = Unique(x)  a = Shape(o)  b = Shape(u)  ab = Concat<axis = 0>(a, b)  c = ReduceMax<keepdims = 0>(ab)"
    "  v = Range(z0, c, step)",
}
READERS = {
    "shape": "y = Shape(v)",
    "size": "y = Size(v)",
    "expand": "dims = Shape(v)  e = Expand(three, dims)  f = Flatten<axis = 0>(e)  y = Squeeze(f, zeros)",
    "elsewhere": "dims = Shape(v)  l = Gather(dims, zeros)  y = If(flag) <then_branch = t () => (int64[1] p) { p = Neg(l) },"
    " else_branch = e () => (int64[1] q) { q = Abs(l) }>",
}
CONSTANTS = {
    "zero": np.float32(0), "one": np.float32(1), "three": np.int64([3]), "zeros": np.int64([0]), "z0": np.int64(0),
    "step": np.int64(2), "i1": np.int64([0]),
    "boxes": np.float32([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]]), "scores": np.float32([[[0.9, 0.8, 0.7]]]),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_only_the_shape_is_read(producer: str, reader: str) -> None:
    extents = "" if reader == "size" else "n"
    text = f"""g (float[2, k] x, int64[2] i, int64[1] i2, bool flag) => (int64[{extents}] y) {{
        {PRODUCERS[producer]}  {READERS[reader]}
    }}"""
    used = {k: v for k, v in CONSTANTS.items() if f"{k}," in text or f"{k})" in text}
    model = model_of(text, used)
    feed = {"x": np.float32([[0, 1, 2], [3, 0, 0]]), "i": np.int64([3, 2]), "i2": np.int64([1]), "flag": np.array(True)}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    Compilation(model, Settings("cpu", verify=True)).advance("lowered")
    for target in ("interp", "cpu-jit"):
        assert np.array_equal(occ.compile(model, target).run(feed)["y"], wanted), target


@pytest.mark.thinned
@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_is_computed_twice(producer: str) -> None:
    """One of two equal ops goes: its sizes, of which readers know by another name, are those of the other one."""
    first, made = PRODUCERS[producer], "|".join(re.findall(r"(\w+)(?=(?:, \w+)* = )(?![^<]*>)", PRODUCERS[producer]))
    again = re.sub(rf"\b({made})\b(?=[ ,)])", r"\1_", first)
    text = f"""g (float[2, k] x, int64[2] i, int64[1] i2) => (float[n] y, float[m] z) {{
        {first}  f1 = Cast<to = 1>(v)  f2 = Reshape(f1, flat)  y = Sin(f2)
        {again}  g1 = Cast<to = 1>(v_)  g2 = Reshape(g1, flat)  z = Sinh(g2)
    }}"""
    used = {k: v for k, v in (CONSTANTS | {"flat": np.int64([-1])}).items() if f"{k}," in text or f"{k})" in text}
    model = model_of(text, used)
    feed = {"x": np.float32([[0, 1, 2], [3, 0, 0]]), "i": np.int64([3, 2]), "i2": np.int64([1])}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for target in ("interp", "cpu-jit"):
        got = occ.compile(model, target).run(feed)
        np.testing.assert_allclose(got["y"], wanted[0], rtol=1e-5, err_msg=target)
        np.testing.assert_allclose(got["z"], wanted[1], rtol=1e-5, err_msg=target)
