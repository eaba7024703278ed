"""Operators that take a list of axes: out of order, negative, and named twice."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, reference

import occ

X = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)
REDUCTIONS = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
    "ReduceSumSquare",
]  # fmt: skip
# An operator with {}, one of the lists of axes, as the nodes of a graph from `x` to `y`.
BY_ATTRIBUTE = {
    "MeanVarianceNormalization": "y = MeanVarianceNormalization <axes = {}> (x)",
    "Resize": 'y = Resize <axes = {}, mode = "linear"> (x, , scales)',
    "CenterCropPad": "y = CenterCropPad <axes = {}> (x, extents)",
}
BY_OPERAND = {
    **{name: f"y = {name} (x, axes)" for name in REDUCTIONS},
    "ReduceSum without": "y = ReduceSum <keepdims = 0> (x, axes)",
    "Squeeze": "one = ReduceMax (x, axes)  y = Squeeze (one, axes)",
    "Unsqueeze": "y = Unsqueeze (x, axes)",
    "Slice": "y = Slice (x, first, last, axes, steps)",
    "Pad": "y = Pad (x, pads, , axes)",
}
WEIGHTS = {
    "scales": np.array([2, 0.5], np.float32),
    "extents": np.array([3, 6]),
    "first": np.array([-1, 0]),
    "last": np.array([-100, 2]),
    "steps": np.array([-1, 1]),
    "pads": np.array([1, 0, 2, 1]),
}


def model(nodes: str, axes: list[int], dims: str = "2, 3, 5, 4"):
    named = {k: v for k, v in WEIGHTS.items() if k in nodes} | ({"axes": np.array(axes)} if ", axes" in nodes else {})
    return model_of(f"g (float[{dims}] x) => (float y) {{ {nodes.replace('{}', str(axes))} }}", named)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axes", [[2, 0], [-1, 1], [3, -4]])
def test_attributes(target: str, axes: list[int]) -> None:
    for name, nodes in BY_ATTRIBUTE.items():
        for dims in ("2, 3, 5, 4", "n, 3, h, 4"):
            made = model(nodes, axes, dims)
            counted = model(nodes, [k % 4 for k in axes], dims)  # onnx.reference takes no negative axes in Resize
            (y,), (exact,) = occ.compile(made, target=target)(X), reference(counted, {"x": X})
            np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axes", [[2, 0], [-1, 1], [3, -4]])
def test_operands(target: str, axes: list[int]) -> None:
    parts = list(BY_OPERAND.values())
    whole = " ".join(n.replace("y =", f"y{k} =").replace("one", f"one{k}") for k, n in enumerate(parts))
    names = {**{k: v for k, v in WEIGHTS.items() if k in whole}, "axes": np.array(axes)}
    outputs = ", ".join(f"float y{k}" for k in range(len(parts)))
    made = model_of(f"g (float[2, 3, 5, 4] x) => ({outputs}) {{ {whole} }}", names)
    for name, y, exact in zip(BY_OPERAND, occ.compile(made, target=target)(X), reference(made, {"x": X}), strict=True):
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-5, err_msg=name)


def test_many_elements_are_read_within_a_tensor() -> None:
    """The axes [2, 0] once read rows of the first as if they were as long as the last: past the end of memory."""
    x = np.random.default_rng(1).standard_normal((2, 1, 400_000), dtype=np.float32)
    made = model("y = MeanVarianceNormalization <axes = {}> (x)", [2, 0], "2, 1, 400000")
    (y,) = occ.compile(made, target="cpu-jit")(x)
    np.testing.assert_allclose(y, (x - x.mean()) / x.std(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("nodes", [*BY_ATTRIBUTE.values(), *BY_OPERAND.values(), "y = Transpose <perm = {}> (x)"])
def test_axes_that_are_named_twice_or_are_outside_are_refused(nodes: str) -> None:
    axes = [1, 1, 2, 3] if "Transpose" in nodes else [1, -3]
    with pytest.raises(occ.CompileError, match=r"is named twice|is outside"):
        occ.compile(model(nodes, axes if "Unsqueeze" not in nodes else [1, -5]), target="interp")
    with pytest.raises(occ.CompileError, match="is outside"):
        occ.compile(model(nodes, [*axes[:-1], 9]), target="interp")
