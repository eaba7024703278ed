"""Products of a number of rows that a run decides: tiles of two heights, of which the one that wastes less computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from machines import TARGETS, opened
from onnx import numpy_helper

import occ
from occ.compiler.ir.dim import evaluate, symbol
from occ.compiler.passes.schedule.loops import tile_cost

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("kind", "columns"), [("float", 40), ("float", 48), ("float", 520), ("double", 40)])
def test_rows_are_the_same_in_tiles_of_each_height(machine: str, kind: str, columns: int) -> None:
    """To the bit, whatever the number of rows is."""
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({kind}[m, 24] x) => ({kind}[m, {columns}] y) {{ y = MatMul (x, w) }}'
    )
    dtype = np.float32 if kind == "float" else np.float64
    weight, x = RNG.normal(size=(24, columns)).astype(dtype), RNG.normal(size=(41, 24)).astype(dtype)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    session = opened(occ.build(made, "cpu", options={"halide.target": TARGETS[machine]}), 1)
    whole = session.run({"x": x})["y"]
    np.testing.assert_allclose(whole, x.astype(np.float64) @ weight, rtol=1e-4, atol=1e-5)
    for rows in range(len(x)):
        np.testing.assert_array_equal(session.run({"x": x[:rows]})["y"], whole[:rows], strict=True)


@pytest.mark.parametrize(
    ("heights", "rows", "lower"),
    [
        *(((4, 6), rows, lower) for rows, lower in ((6, False), (8, True), (12, False), (16, True), (32, True))),
        *(((3, 4), rows, lower) for rows, lower in ((3, True), (4, False), (6, True), (8, False), (9, True))),
    ],
)
def test_which_tiles_waste_less(heights: tuple[int, int], rows: int, lower: bool) -> None:
    low, high = (evaluate(tile_cost(symbol("N"), n), {"N": rows}) for n in heights)
    assert (low, high) == tuple(tile_cost(rows, n) for n in heights)
    assert (low <= high) == lower
