"""Slice with steps longer than any axis, and from before an axis backwards."""

import numpy as np
import onnxruntime
import pytest
from building import model_of
from onnx.reference import ReferenceEvaluator

import occ

ENDS = 2**63 - 1
CASES = {
    "back": (ENDS, -ENDS - 1, -(2**62)),
    "back, the least number": (ENDS, -ENDS - 1, -(2**63)),
    "back, from before the axis": (-(2**63), -ENDS - 1, -(2**62)),
    "on": (0, ENDS, 2**62),
    "on, the greatest number": (1, ENDS, 2**63 - 1),
    "by one, from before the axis": (-5, -ENDS - 1, -1),
    "by two, from before the axis": (-4, -ENDS - 1, -2),
    "as long as 31 bits": (-1, -ENDS - 1, -(2**31)),
}


@pytest.mark.parametrize("extent", ["n", "3"])
@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_steps_beyond_the_axis(target: str, extent: str) -> None:
    constants = ", ".join(
        f"int64[1] {letter}{k} = {{{value}}}"
        for k, case in enumerate(CASES.values())
        for letter, value in zip("bes", case, strict=True)
    )
    nodes = " ".join(f"y{k} = Slice(x, b{k}, e{k}, a, s{k})" for k in range(len(CASES)))
    results = ", ".join(f"float[m{k}, 2] y{k}" for k in range(len(CASES)))
    model = model_of(f"g (float[{extent}, 2] x) => ({results}) <int64[1] a = {{0}}, {constants}> {{ {nodes} }}")
    session, compiled = onnxruntime.InferenceSession(model.SerializeToString()), occ.compile(model, target)
    for size in (3,) if extent == "3" else (3, 1, 0, 4):
        x = np.arange(2 * size, dtype=np.float32).reshape(size, 2)
        want, got = session.run(None, {"x": x}), compiled.run({"x": x})
        for k, name in enumerate(CASES):
            np.testing.assert_array_equal(got[f"y{k}"], want[k], err_msg=f"{name}, of {size}", strict=True)


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("step", [-1, -2])
@pytest.mark.parametrize("end", [ENDS, 2**31 - 1])
def test_greatest_number_does_not_end_a_slice_backwards(end: int, step: int, target: str) -> None:
    """It is a place past the end, as in numpy; onnxruntime takes it for the beginning (docs/numerics.md)."""
    model = model_of(
        "g (float[n] x, int64[1] b) => (float[m] y, float[k] z)"
        f" <int64[1] a = {{0}}, int64[1] e = {{{end}}}, int64[1] s = {{{step}}}, int64[1] first = {{-1}}>"
        " { y = Slice(x, b, e, a, s) z = Slice(x, first, e, a, s) }"
    )
    compiled, reference = occ.compile(model, target), ReferenceEvaluator(model)
    for size, begin in ((3, ENDS), (4, 2), (1, -1), (0, 0)):
        feed = {"x": np.arange(size, dtype=np.float32), "b": np.array([begin])}
        for got, want in zip(compiled.run(feed).values(), reference.run(None, feed), strict=True):
            np.testing.assert_array_equal(got, want, strict=True)
            assert got.shape == (0,)
