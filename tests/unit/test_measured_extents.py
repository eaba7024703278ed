"""Extents that kernels for any sizes know all the same, since kernels that do not are slower."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from machines import TARGETS
from onnx import helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings


def of_two_inputs(*shapes: tuple[int, int, int]) -> onnx.ModelProto:
    """Products of two inputs, in batches of 12, of rows, terms and columns."""
    x = [helper.make_tensor_value_info(f"x{i}", 1, [12, m, k]) for i, (m, k, _) in enumerate(shapes)]
    w = [helper.make_tensor_value_info(f"w{i}", 1, [12, k, n]) for i, (_, k, n) in enumerate(shapes)]
    made = [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(len(shapes))]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]) for i in range(len(shapes))]
    graph = helper.make_graph(nodes, "g", [*x, *w], made)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4", "arm-64"])
def test_products_of_two_inputs_know_the_distance_of_the_rows_of_one(machine: str) -> None:
    """The fewer of terms and columns, so that heads of one width share a kernel for any number of words."""

    def kernels(*shapes: tuple[int, int, int]) -> set[tuple[str, str]]:
        options = {"optimize": "2", "halide.target": TARGETS[machine]}
        m = Compilation(of_two_inputs(*shapes), Settings("cpu", options=options)).advance("scheduled")
        return {(str(f.params[0].type.dims[-1]), str(f.params[1].type.dims[-1])) for f in m.te.values()}

    ((terms, columns),) = kernels((128, 64, 128), (192, 64, 192))
    assert (terms, columns.isdecimal()) == ("64", False)
    ((terms, columns),) = kernels((128, 128, 64), (192, 192, 64))
    assert (terms.isdecimal(), columns) == (False, "64")


@pytest.mark.toolchain
def test_products_of_two_inputs_of_any_size() -> None:
    shapes = (128, 64, 128), (192, 64, 192), (72, 64, 100), (192, 192, 64)
    model = of_two_inputs(*shapes)
    rng = np.random.default_rng(0)
    given = {f"x{i}": rng.standard_normal((12, m, k), dtype=np.float32) for i, (m, k, _) in enumerate(shapes)}
    given |= {f"w{i}": rng.standard_normal((12, k, n), dtype=np.float32) for i, (_, k, n) in enumerate(shapes)}
    made = occ.compile(model, "cpu", options={"optimize": "2"}).run(given)
    for name, want in zip(made, onnxruntime.InferenceSession(model.SerializeToString()).run(None, given), strict=True):
        np.testing.assert_allclose(made[name], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_borders_know_the_length_of_short_rows(mode: str) -> None:
    def rows(width: int) -> str:
        pads = numpy_helper.from_array(np.array([0, 0, 3, 3, 0, 0, 3, 3], np.int64), "p")
        x = helper.make_tensor_value_info("x", 1, [1, 64, 56, width])
        nodes = [helper.make_node("Pad", ["x", "p"], ["y"], mode=mode)]
        graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)], [pads])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
        (f,) = Compilation(model, Settings("cpu", options={"optimize": "2"})).advance("scheduled").te.values()
        assert str(f.results[0].type.dims[0]) != "64"
        return str(f.results[0].type.dims[-1])

    assert rows(60) == "66"
    assert not rows(160).isdecimal()


@pytest.mark.parametrize("count", [40, 65536, "n"])
def test_tables_of_all_codes_know_how_many(count: int | str) -> None:
    """A byte is within such a table, whatever it is."""
    values = {"s": np.float32(0.05), "z": np.uint8(128), "t": np.float32(1 / 256), "q": np.uint8(0)}
    weights = [numpy_helper.from_array(np.array(v), n) for n, v in values.items()]
    nodes = [helper.make_node("QLinearSigmoid", ["x", "s", "z", "t", "q"], ["y"], domain="com.microsoft")]
    x, y = helper.make_tensor_value_info("x", 2, [count]), helper.make_tensor_value_info("y", 2, None)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), ir_version=10, opset_imports=opsets)
    (f,) = Compilation(model, Settings("cpu", options={"optimize": "2"})).advance("scheduled").te.values()
    assert f.params[0].type.dims == (256,)
    assert not isinstance(f.params[1].type.dims[0], int)
