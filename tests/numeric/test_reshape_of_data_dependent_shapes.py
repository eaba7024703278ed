"""Reshapes of data-dependent tensors to shapes computed in the run; the oracle is onnx.reference.

The size of a Compress was put in terms of those of the Reshape after it, which are known later: a KeyError, or a step that
waited for itself.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from building import model_of, reference

import occ

# `c` has a size that the data decide.
MADE = {
    "compress": "c = Compress(x, b)",
    "compress along an axis": "cc = Compress<axis=1>(x2, b)  c = Reshape(cc, open)",
    "nonzero": "nz = NonZero(x)  nf = Cast<to=1>(nz)  c = Reshape(nf, open)",
    "unique": "c = Unique(x)",
    "gathered": "nz = NonZero(b)  nt = Transpose(nz)  c = GatherND(x, nt)",
    "reshaped": "c = Reshape(x, s)",
    "tiled": "c = Tile(x, times)",
    "selected": "sel = NonMaxSuppression(boxes, scores, most, iou)  sf = Cast<to=1>(sel)  c = Reshape(sf, open)",
}
USED = {
    "reshape": "y = Reshape(c, s2)",
    "reshape and zero": "y = Reshape(c, s0)",
    "reshape and sum": "t = Reshape(c, s2)  u = ReduceSum(t, one)  y = Relu(u)",
    "two reshapes": "t = Reshape(c, s2)  y = Reshape(t, s)",
    "reshape and multiply": "t = Reshape(c, s2)  y = Mul(t, t)",
    "slice and reshape": "t = Slice(c, first, last)  y = Reshape(t, s2)",
    "compress and reshape": "q = Greater(c, zero)  t = Compress(c, q)  y = Reshape(t, s2)",
    "expand": "sh = Shape(c)  e = Concat<axis=0>(two, sh)  y = Expand(c, e)",
    "slice by size": "sh = Shape(c)  h = Div(sh, two)  y = Slice(c, first, h)",
    "range": "n = Size(c)  y = Range(start, n, step)",
    "filled": "sh = Shape(c)  sm = Concat<axis=0>(sh, last)  y = ConstantOfShape(sm)",
    "pad": "y = Pad(c, s2p)",
}
INPUTS = {
    "x": ("float[8]", [3, 1, -2, 3, 0, 5, 1, 7]), "b": ("bool[8]", [1, 0, 1, 1, 1, 0, 1, 1]),
    "x2": ("float[2,8]", np.arange(16).reshape(2, 8)), "s": ("int64[1]", [-1]), "s2": ("int64[2]", [1, -1]),
    "s0": ("int64[2]", [0, 1]), "first": ("int64[1]", [1]), "last": ("int64[1]", [3]), "times": ("int64[1]", [2]),
    "s2p": ("int64[2]", [1, 2]), "scores": ("float[1,1,4]", [[[0.9, 0.8, 0.7, 0.6]]]), "most": ("int64[1]", [3]),
    "boxes": ("float[1,4,4]", [[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3], [5, 5, 6, 7]]]),
}  # fmt: skip
WEIGHTS = {
    "open": np.array([-1]), "one": np.array([1]), "two": np.array([2]), "start": np.array(0), "step": np.array(1),
    "iou": np.array([0.5], np.float32), "zero": np.array(0, np.float32),
}  # fmt: skip
NUMPY = {"float": np.float32, "bool": np.bool_, "int64": np.int64}
CASES = [("interp", made, used) for made in MADE for used in USED] + [("cpu-jit", made, "reshape") for made in MADE]


@pytest.mark.parametrize(("target", "made", "used"), CASES)
def test_shapes_that_a_run_gives(target: str, made: str, used: str) -> None:
    text = f"{MADE[made]}  {USED[used]}"
    words = set(re.findall(r"\w+", text))
    given = {name: kind for name, (kind, _) in INPUTS.items() if name in words}
    feeds = {name: np.array(INPUTS[name][1], NUMPY[kind.split("[")[0]]) for name, kind in given.items()}
    inputs = ", ".join(f"{kind} {name}" for name, kind in given.items())
    model = model_of(f"g ({inputs}) => (y) {{ {text} }}", {k: v for k, v in WEIGHTS.items() if k in words})
    (want,) = reference(model, feeds)
    (got,) = occ.compile(model, target).run(feeds).values()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)
