"""Graphs whose formulas, expressions or kernels would grow without bound: builds end soon, and compute what onnxruntime does."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from building import TARGETS
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings

_SECONDS = 60  # of CPU; each took minutes, or did not end, and takes less than five now


def model(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Sequence[int | str]], outputs: Sequence[str], **weights: object
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "g", given, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def check(m: onnx.ModelProto, target: str, *feeds: dict[str, np.ndarray]) -> None:
    start = time.process_time()
    made = occ.compile(m, target)
    assert time.process_time() - start < _SECONDS
    session = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        for got, want in zip(made.run(feed).values(), session.run(None, feed), strict=True):
            np.testing.assert_array_equal(got, want)


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, 2), np.float32)}


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("first", [1, -5])
def test_sizes_that_double(first: int, target: str) -> None:
    """A clamped Slice mentions the extent of its operand twice: after 16 of them formulas had 2^16 terms."""
    nodes, x = [], "x"
    for k in range(16):
        nodes.append(helper.make_node("Concat", [x, "x"], [f"c{k}"], axis=0))
        nodes.append(helper.make_node("Slice", [f"c{k}", "first", "last", "axis"], [x := f"s{k}"]))
    m = model(nodes, {"x": ["n", 2]}, [x], first=np.array([first]), last=np.array([2**40]), axis=np.array([0]))
    check(m, target, rows(1), rows(3), rows(9))


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_sizes_that_are_multiplied(target: str) -> None:
    """The 20th square of a size is a power of 2^20."""
    nodes = [helper.make_node("Shape", ["x"], ["s"], end=1)]
    for k in range(20):
        nodes.append(helper.make_node("Mul", [f"s{k - 1}" if k else "s"] * 2, [f"s{k}"]))
    nodes += [helper.make_node("Expand", ["one", "s19"], ["y"])]
    check(model(nodes, {"x": ["n", 2]}, ["y"], one=np.float32([1])), target, rows(1))


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_positions_that_are_looked_up_again_and_again(target: str) -> None:
    """Each Gather mentions its position once for each constant, and was substituted into the next."""
    nodes = [helper.make_node("Gather", [f"g{k - 1}" if k else "x", "table"], [f"g{k}"]) for k in range(20)]
    check(model(nodes, {"x": ["n", 2]}, ["g19"], table=np.array([2, 1, 0, 1])), target, rows(3), rows(7))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "target"), [*((n, "interp") for n in ("Concat", "Sum", "Max", "Mean")), ("Sum", "cpu-jit")]
)
def test_many_operands(name: str, target: str) -> None:
    """One kernel had an expression as deep as there are operands, and as many parameters."""
    names = [f"x{k}" for k in range(1200)]
    attributes = {"axis": 0} if name == "Concat" else {}
    m = model([helper.make_node(name, names, ["y"], **attributes)], {n: [1, 2] for n in names}, ["y"])
    check(m, target, {n: np.full((1, 2), k, np.float32) for k, n in enumerate(names)})


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_many_results(target: str) -> None:
    """The rules of schedules compared each result with each and with each again."""
    names = [f"y{k}" for k in range(110)]
    node = helper.make_node("Split", ["x"], names, axis=0, num_outputs=110)
    check(model([node], {"x": [219, 2]}, names), target, rows(219))


@pytest.mark.parametrize("border", [False, True])
def test_functions_of_functions(border: bool) -> None:
    """The argument of a function that chooses between formulas was computed for the choice and for each of them again."""

    def length(count: int) -> int:
        nodes = [helper.make_node("Pad", ["x", "pads"], ["t0"])] if border else [helper.make_node("Neg", ["x"], ["t0"])]
        nodes += [helper.make_node("Tanh", [f"t{k}"], [f"t{k + 1}"]) for k in range(count)]
        m = model(nodes, {"x": [3, 64]}, [f"t{count}"], pads=np.array([1, 0, 1, 0]))
        return len(str(occ.dump(m, "llvm", target="cpu-jit")))

    assert length(4) < 2.5 * length(2)


def test_constants_that_take_many_sweeps_are_left_to_the_run() -> None:
    """A CumSum of ten million constants took 40 seconds to fold."""
    size = (1 << 22) + 1
    nodes = [helper.make_node("CumSum", ["w", "axis"], ["c"]), helper.make_node("Add", ["c", "x"], ["y"])]
    m = model(nodes, {"x": [1]}, ["y"], w=np.zeros(size, np.float32), axis=np.array(0))
    canonical = Compilation(m, Settings("interp")).advance("canonical")
    assert [op.name for op in canonical.walk() if op.name != "yield"] == ["CumSum", "Add"]


@pytest.mark.toolchain
@pytest.mark.parametrize("activations", [6, 7, 12])
def test_epilogues_that_are_too_long_for_one_stage(activations: int) -> None:
    """Each `x * sigmoid(x)` doubles the epilogue of a product; where it was cut, two stages computed the product."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y0"])]
    for k in range(activations):
        nodes.append(helper.make_node("Sigmoid", [f"y{k}"], [f"s{k}"]))
        nodes.append(helper.make_node("Mul", [f"y{k}", f"s{k}"], [f"y{k + 1}"]))
    rng = np.random.default_rng(activations)
    m = model(nodes, {"x": ["n", 48]}, [f"y{activations}"], w=rng.standard_normal((48, 80), np.float32))
    peer = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    session = occ.compile(m, "cpu")
    for n in (0, 1, 19):
        x = rng.standard_normal((n, 48), np.float32)
        (got,), (want,) = session.run({"x": x}).values(), peer.run(None, {"x": x})
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-6)
