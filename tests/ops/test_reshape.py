"""Reshape to symbolic extents that are 0 in a run: ONNX's shape or an error, never another shape."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from building import model_of, reference

import occ
from occ.compiler.driver.compilation import Compilation, Settings

TARGETS = ("interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain))
Shapes = dict[str, tuple[int, ...]]
CONSTANTS = {"rest": np.array([-1]), "two": np.array([2])}
BY_ANOTHER = "g (float[a,b] x, float[c] z) => (float[p,q] y) { s = Shape(z)  t = Concat<axis=0>(s, rest)  [culprit] y = Reshape(x, t) }"
MERGED = """g (float[b,s,4] x) => (float[p,q] y) {
    m = Shape<end=1>(x)  n = Shape<start=1, end=2>(x)  k = Mul(m, n)  t = Concat<axis=0>(k, rest)  [culprit] y = Reshape(x, t)
}"""
SPLIT = "g (float[a] x, float[b,c] z) => (float[p,q] y) { s = Shape(z)  [culprit] y = Reshape(x, s) }"
ITS_OWN = "g (float[n,4] x) => (float[p,q] y) { s = Shape<end=1>(x)  t = Concat<axis=0>(s, rest)  [culprit] y = Reshape(x, t) }"
TWICE = """g (float[n,2] x) => (float[p,q] y) {
    s = Shape<end=1>(x)  k = Mul(s, two)  t = Concat<axis=0>(k, rest)  [culprit] y = Reshape(x, t)
}"""


def compiled(text: str, target: str) -> occ.Session:
    return occ.compile(model(text), target)


def model(text: str) -> onnx.ModelProto:
    return model_of(text, {k: v for k, v in CONSTANTS.items() if f"{k})" in text}, opset=19)


def nothing(shapes: Shapes) -> Mapping[str, np.ndarray]:
    return {k: np.ones(v, np.float32) for k, v in shapes.items()}


# A 0 copies an extent that is not 0, stands where the operand has no extent, or divides the remainder.
REFUSED: dict[str, tuple[str, list[Shapes]]] = {
    "another": (BY_ANOTHER, [{"x": (5, 0), "z": (0,)}, {"x": (0, 3), "z": (0,)}]),
    "merged": (MERGED, [{"x": (2, 0, 4)}]),
    "split": (SPLIT, [{"x": (0,), "z": (2, 0)}]),
}
# Where every 0 of the shape stands for a 0, and where there is none.
TAKEN: dict[str, tuple[str, list[tuple[Shapes, tuple[int, ...]]]]] = {
    "another": (BY_ANOTHER, [({"x": (0, 3), "z": (1,)}, (1, 0)), ({"x": (6, 3), "z": (2,)}, (2, 9))]),
    "merged": (MERGED, [({"x": (0, 2, 4)}, (0, 4)), ({"x": (2, 3, 4)}, (6, 4))]),
    "split": (SPLIT, [({"x": (0,), "z": (0, 2)}, (0, 2)), ({"x": (6,), "z": (2, 3)}, (2, 3))]),
    "its own": (ITS_OWN, [({"x": (0, 4)}, (0, 4)), ({"x": (2, 4)}, (2, 4))]),
    "twice its own": (TWICE, [({"x": (0, 2)}, (0, 1)), ({"x": (3, 2)}, (6, 1))]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_nothing_that_would_copy_is_refused(case: str, target: str) -> None:
    text, runs = REFUSED[case]
    session = compiled(text, target)
    for shapes in runs:
        with pytest.raises(occ.RunError, match=r"OCC0503.*`culprit` needs .* to be at least 1"):
            session.run(nothing(shapes))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", TAKEN)
def test_a_nothing_that_copies_nothing(case: str, target: str) -> None:
    text, runs = TAKEN[case]
    session = compiled(text, target)
    for shapes, wanted in runs:
        assert session.run(nothing(shapes))["y"].shape == wanted
        if 0 not in wanted[:1]:  # it would put a 0 next to a -1, which leaves the result open in ONNX
            assert reference(model(text), nothing(shapes))[0].shape == wanted


@pytest.mark.parametrize("text", [ITS_OWN, TWICE])
def test_what_copies_its_own_extent_needs_nothing_of_inputs(text: str) -> None:
    assert not Compilation(model(text), Settings("cpu-jit")).advance("inferred").constraints


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("extents", ["2,n,4,k", "2,3,0,0"])
def test_softmax_of_old_operator_sets_of_nothing(extents: str, target: str) -> None:
    """Its Reshape back to the extents of the operand copies none."""
    text = f"g (float[{extents}] x) => (float[{extents}] y) {{ y = Softmax<axis = 2>(x) }}"
    session = occ.compile(model_of(text, opset=11), target)
    for shape in [(2, 0, 4, 0), (2, 1, 4, 0), (2, 3, 4, 2)] if "n" in extents else [(2, 3, 0, 0)]:
        assert session.run(nothing({"x": shape}))["y"].shape == shape
