"""Loops whose state grows: what the body joins to the end of a tensor is scanned, and not copied in each iteration."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
TARGETS = ("interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain))


def model(axis: int, *, reads: bool) -> onnx.ModelProto:
    """A loop with two states, one of which grows along an axis; where the body `reads` it, it stays a state."""
    value, node = helper.make_tensor_value_info, helper.make_node
    shape = ["k", 3] if axis in (0, -2) else [2, "k"]
    row = [1, 3] if axis in (0, -2) else [2, 2]
    nodes = [node("Identity", ["c"], ["going"]), node("Cast", ["i"], ["f"], to=F), node("Add", ["t", "f"], ["u"]),
             node("Mul", ["row", "u"], ["r"])]  # fmt: skip
    if reads:
        nodes += [node("ReduceSum", ["s"], ["sum"], keepdims=0), node("Add", ["r", "sum"], ["more"])]
    nodes.append(node("Concat", ["s", "more" if reads else "r"], ["grown"], axis=axis))
    body = helper.make_graph(nodes, "body", [value("i", INT, []), value("c", B, []), value("s", F, shape), value("t", F, [])],
                             [value("going", B, []), value("grown", F, None), value("u", F, [])])  # fmt: skip
    loop = node("Loop", ["n", "", "start", "t0"], ["y", "last"], body=body)
    ends = [value("n", INT, []), value("start", F, shape), value("t0", F, []), value("row", F, row)]
    graph = helper.make_graph([loop], "g", ends, [value("y", F, None), value("last", F, [])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_states_that_grow(axis: int, reads: bool, target: str) -> None:
    made = model(axis, reads=reads)
    theirs, session = onnxruntime.InferenceSession(made.SerializeToString()), occ.compile(made, target)
    rng = np.random.default_rng(0)
    for n, before in ((0, 2), (1, 0), (5, 3)):
        start, row = ((before, 3), (1, 3)) if axis == 0 else ((2, before), (2, 2))
        feed = {"n": np.array(n), "t0": np.array(0.5, np.float32)}
        feed |= {k: rng.normal(size=s).astype(np.float32) for k, s in (("start", start), ("row", row))}
        want = theirs.run(None, feed)
        for got, expected in zip(session.run(feed).values(), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("reads", [False, True])
def test_what_is_only_joined_is_no_state(reads: bool) -> None:
    compilation = Compilation(model(0, reads=reads), Settings("cpu-jit"))
    (loop,) = [op for op in compilation.advance("canonical").walk() if op.name == "Loop"]
    assert len(loop.operands) - loop.attrs["captures"] - 2 == 1 + reads


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_loop_that_lacks_its_last_operand(target: str) -> None:
    """A Loop without a condition and without states has one operand and a place for another."""
    value, node = helper.make_tensor_value_info, helper.make_node
    nodes = [node("Identity", ["c"], ["going"]), node("Cast", ["i"], ["f"], to=F), node("Add", ["f", "x"], ["r"])]
    body = helper.make_graph(
        nodes, "body", [value("i", INT, []), value("c", B, [])], [value("going", B, []), value("r", F, [2])]
    )
    loop = node("Loop", ["n", ""], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [value("n", INT, []), value("x", F, [2])], [value("y", F, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = occ.compile(made, target)
    x = np.array([0.5, -1], np.float32)
    for n in (0, 3):
        got = session.run({"n": np.array(n), "x": x})["y"]
        np.testing.assert_array_equal(got, np.arange(n, dtype=np.float32)[:, None] + x)
