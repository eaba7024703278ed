"""Indices of an axis without elements, and constant ones beyond an axis, are errors before anything is read or written there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import occ
from occ.runtime.errors import RunError

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
WIDE = 1 << 22  # what kernels would touch in the row of a tensor without rows


def model(
    op: str, inputs: dict[str, tuple[int, list]], constant: list[int] | None = None, **attrs: int
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    weights = [] if constant is None else [helper.make_tensor("i", INT, [], constant)]
    names = [*inputs] if constant is None else ["x", "i"]
    results = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", ports, results, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


OPERATORS = {
    "Gather": {"x": (FLOAT, ["n", "m"]), "i": (INT, ["q"])},
    "GatherElements": {"x": (FLOAT, ["n", "m"]), "i": (INT, ["q", "m"])},
    "GatherND": {"x": (FLOAT, ["n", "m"]), "i": (INT, ["q", 1])},
    "ScatterElements": {"x": (FLOAT, ["n", "m"]), "i": (INT, ["q", "m"]), "u": (FLOAT, ["q", "m"])},
    "ScatterND": {"x": (FLOAT, ["n", "m"]), "i": (INT, ["q", 1]), "u": (FLOAT, ["q", "m"])},
}


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_axis_without_elements(op: str, target: str) -> None:
    inputs = OPERATORS[op]
    session = occ.compile(model(op, inputs), target)
    for rows, indices in ((0, 2), (0, 0), (3, 2)):
        size = {"n": rows, "m": 5 if rows or not indices else WIDE, "q": indices, 1: 1}
        feed = {
            k: np.zeros([size[d] for d in shape], np.float32 if kind == FLOAT else np.int64)
            for k, (kind, shape) in inputs.items()
        }
        if rows or not indices:
            session.run(feed)
        else:
            with pytest.raises(RunError, match="OCC0503"):
                session.run(feed)


@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("index", [200_000_000, -100_000_000])
def test_a_constant_beyond_an_axis(index: int, target: str) -> None:
    session = occ.compile(model("Gather", {"x": (FLOAT, ["n", "k"])}, [index], axis=1), target)
    with pytest.raises(RunError, match="OCC0504"):
        session.run({"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(RunError, match="OCC0501"):
        session.run({"x": np.zeros((2, 0), np.float32)})


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_axis_that_never_has_elements(op: str, target: str) -> None:
    sizes = {"n": 0, "m": WIDE}
    inputs = {k: (kind, [sizes.get(d, d) for d in shape]) for k, (kind, shape) in OPERATORS[op].items()}
    session = occ.compile(model(op, inputs), target)
    feed = {
        k: np.zeros([2 if d == "q" else d for d in shape], np.float32 if kind == FLOAT else np.int64)
        for k, (kind, shape) in inputs.items()
    }
    with pytest.raises(RunError, match=r"OCC050[34]"):
        session.run(feed)
