"""Kernels of the first rows of a symbolic axis: as many as there are, at most some."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of, onnxruntime_of

import occ

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        ("y = ReduceSum <keepdims = 0> (z, one)", [(1, 6, 16), (9, 6, 16), (50, 6, 16)]),
        ("y = LRN <size = 3> (z)", [(1, 8, 3, 3), (3, 8, 9, 50), (50, 8, 5, 16)]),
    ],
    ids=["sum", "window across channels"],
)
@pytest.mark.parametrize("step", [1, -1])
def test_rows_that_are_cut(body: str, shapes: list[tuple[int, ...]], step: int) -> None:
    """Halide saw no full tile in the smaller of two extents, and a border stayed behind when its operand was copied."""
    start, end = (0, 40) if step > 0 else (-1, -41)
    constants = {"start": start, "end": end, "zero": 0, "step": step} | ({"one": 1} if "one" in body else {})
    extents = ",".join(["n", str(shapes[0][1]), "h", "w"][: len(shapes[0])])
    model = model_of(
        f"g (float[{extents}] x) => (float y) {{ z = Slice(x, start, end, zero, step)  {body} }}",
        {k: np.array([v]) for k, v in constants.items()},
        opset=18,
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    theirs, session = onnxruntime_of(model), occ.compile(model, "cpu", threads=1)
    for shape in shapes:
        given = {"x": RNG.random(shape, np.float32)}
        (wanted,), (found,) = theirs.run(None, given), session.run(given).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
