"""Sizes that a plan takes for equal, and are not: an extent of 1 that broadcasts, and axes that share no more than a name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from building import TARGETS, model_of, on_threads

import occ

RNG = np.random.default_rng(0)
INTEGERS = {"s", "ids"}


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def wanted(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(inputs))[0]


# Nodes that broadcast, their inputs, and extents of those of which some are 1.
BROADCASTS = {
    "Add": ("y = Add (a, b)", "float[n, 4] a, float[m, 4] b", [((1, 4), (3, 4)), ((3, 4), (1, 4)), ((2, 4), (2, 4))]),
    "Add of a constant": ("y = Add (a, two)", "float[n, 4] a", [((1, 4),), ((2, 4),)]),
    "Mul of rows and columns": ("y = Mul (a, b)", "float[n, m] a, float[p, q] b", [((1, 5), (4, 1)), ((4, 5), (1, 5))]),
    "Where": ("c = Greater (a, b)  y = Where (c, a, d)", "float[n] a, float[m] b, float[k] d", [((1,), (3,), (1,)), ((3,), (1,), (3,))]),
    "Max of three": ("y = Max (a, b, d)", "float[n, 2] a, float[m, 2] b, float[k, 2] d", [((1, 2), (3, 2), (1, 2))]),
    "Expand": ("y = Expand (a, five)", "float[n, d] a", [((1, 1),), ((5, 1),), ((1, 4),), ((5, 4),)]),
    "Expand by a size": ("s = Shape <end = 1> (b)  y = Expand (a, s)", "float[n] a, float[m, 2] b", [((1,), (3, 2)), ((3,), (3, 2))]),
    "MatMul": ("y = MatMul (a, b)", "float[n, 2, 3] a, float[m, 3, 2] b", [((1, 2, 3), (5, 3, 2)), ((5, 2, 3), (1, 3, 2))]),
    "Gemm": ("y = Gemm (a, w, c)", "float[n, 3] a, float[m, 2] c", [((4, 3), (1, 2)), ((4, 3), (4, 2))]),
    "PRelu": ("y = PRelu (a, b)", "float[n, k, 4] a, float[m, 1] b", [((2, 3, 4), (1, 1)), ((2, 3, 4), (3, 1))]),
    "a mask": (
        "z = MatMul (q, k)  x = Add (z, mask)  y = Softmax (x)",
        "float[b, h, s, 4] q, float[b, h, 4, t] k, float[c, g, u, v] mask",
        [((2, 2, 3, 4), (2, 2, 4, 5), (1, 1, 3, 5)), ((2, 2, 3, 4), (2, 2, 4, 5), (2, 1, 1, 5))],
    ),
    "LayerNormalization": ("y = LayerNormalization <axis = 1> (a, b)", "float[n, h, 4] a, float[m, 4] b", [((2, 3, 4), (3, 4))]),
}  # fmt: skip
WEIGHTS = {"two": f(2, 4), "five": np.array([5, 4]), "w": f(3, 2)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", BROADCASTS)
def test_extents_of_one(target: str, case: str) -> None:
    nodes, inputs, given = BROADCASTS[case]
    weights = {k: v for k, v in WEIGHTS.items() if f", {k}" in nodes}
    model = model_of(f"g ({inputs}) => (float y) {{ {nodes} }}", weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if target == "cpu":
        given = given[:1]  # a build of C++ for each
    session = occ.compile(model, target=target)
    for shapes in given:
        feeds = dict(zip([i.name for i in model.graph.input], (f(*s) for s in shapes), strict=True))
        exact = wanted(model, feeds)
        made = session.run(feeds)["y"]
        assert made.shape == exact.shape
        np.testing.assert_allclose(made, exact, atol=1e-5)
        out = np.empty(exact.shape, np.float32)
        session.run(feeds, {"y": out})
        np.testing.assert_array_equal(out, made)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("name", ["steps", "batch"])
def test_one_step_for_two_samples(target: str, name: str) -> None:
    """A diffusion network as exporters write it: the step has an axis of its own, which is even called `batch`."""
    text = f"""g (float[batch, 4, h, w] x, int64[{name}] t) => (float[batch, 4, h, w] y) {{
        s = Shape (x)  b = Gather (s, first)  bs = Unsqueeze (b, axis)  e = Expand (t, bs)  c = Cast <to = 1> (e)
        u = Unsqueeze (c, last)  arg = Mul (u, freq)  sin = Sin (arg)  g = Gemm (sin, wide)  k = Unsqueeze (g, planes)
        y = Add (x, k)
    }}"""
    weights = {
        "first": np.int64(0), "axis": np.array([0]), "last": np.array([1]), "planes": np.array([2, 3]), "freq": f(1, 4),
        "wide": f(4, 4),
    }  # fmt: skip
    model = model_of(text, weights)
    session = occ.compile(model, target=target)
    for rows, steps in ((2, 1), (2, 2), (1, 1), (3, 1)):
        feeds = {"x": f(rows, 4, 5, 6), "t": np.arange(1, steps + 1)}
        np.testing.assert_allclose(session.run(feeds)["y"], wanted(model, feeds), atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("names", ["None, 3, None", "unk, 3, unk", "H, 3, H", "?, 3, -1"])
def test_names_that_axes_share(target: str, names: str) -> None:
    """onnxruntime warns of unlike extents under one name, and runs."""
    shown = [n.strip() for n in names.split(",")]
    model = model_of("g (float[a, 3, b] x, float[c] z) => (float y) { r = Relu (x)  y = Add (r, z) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, dim in zip(shown, model.graph.input[0].type.tensor_type.shape.dim, strict=True):
        if name != "3":
            dim.dim_param = name
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = shown[-1]
    session = occ.compile(model, target=target)
    for n, m in ((2, 2), (2, 5)):
        feeds = {"x": f(n, 3, m), "z": f(m)}
        np.testing.assert_array_equal(session.run(feeds)["y"], wanted(model, feeds))


def test_what_no_case_takes_names_the_node_and_the_remedy(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of("g (float[n, 3] x, float[m, 3] y) => (float[a, b] z) { z = Add (x, y) }"), path)
    session = occ.compile(path, target="interp")
    path.unlink()  # the model is gone when a run needs it again
    with pytest.raises(occ.RunError, match=r"(?s)node `Add#1` broadcasts `m` and `n`.*--dim m=1"):
        session(f(1, 3), f(2, 3))
    with pytest.raises(occ.RunError, match="OCC0501"):
        session(f(3, 3), f(2, 3))
    with pytest.raises(occ.RunError, match="OCC0501"):
        session([[1.0], [2.0, 3.0]], f(2, 3))
    with pytest.raises(occ.RunError, match="OCC0501"):
        session.run({"x": {"a": 1}, "y": f(2, 3)})
    square = occ.compile(model_of("g (float[n, 3, H, H] x) => (float[n, 3, H, H] y) { y = Relu (x) }"), target="interp")
    square.otherwise = None
    with pytest.raises(occ.RunError, match="--shape x=n_0,-1,H_2,H_3"):
        square(f(1, 3, 4, 5))


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_artifacts_have_a_plan_for_each_case(target: str) -> None:
    model = model_of("g (float[n, 3] x, float[m, 3] y) => (float[a, b] z) { s = Add (x, y)  z = Relu (s) }")
    artifact = occ.build(model, target)
    assert [[i.shape[0] for i in s.inputs] for s in artifact.manifest.special] == [[1, "m"], ["n", 1]]
    for session in on_threads(artifact):
        for n, m in ((1, 4), (4, 1), (4, 4), (1, 1)):
            feeds = {"x": f(n, 3), "y": f(m, 3)}
            exact = wanted(model, feeds)
            np.testing.assert_array_equal(session.run(feeds)["z"], exact)
            out = np.empty_like(exact)
            session.run(feeds, {"z": out})
            np.testing.assert_array_equal(out, exact)
        with pytest.raises(occ.RunError, match="node `Add#1` broadcasts"):
            session.run({"x": f(2, 3), "y": f(4, 3)})


def test_artifacts_have_plans_for_cases_that_come_together() -> None:
    model = model_of("g (float[n, d] a) => (float[5, 4] y) { y = Expand (a, five) }", {"five": np.array([5, 4])})
    artifact = occ.build(model, "cpu-jit")
    assert [s.inputs[0].shape for s in artifact.manifest.special] == [[1, 4], [5, 1], [1, 1]]
    same = model_of("g (float[n, 3] x, float[n, 3] y) => (float[n, 3] z) { z = Add (x, y) }")
    assert occ.build(same, "cpu-jit").manifest.special == []
