"""Products of two operands that are both known in a run: sizes around tiles and panels, element types, transposed operands."""

import numpy as np
import onnx
import pytest
from onnx import helper

import occ

SIZES = [(1, 5, 3), (2, 33, 40), (3, 1, 32), (9, 17, 33), (16, 64, 64), (37, 40, 100), (4, 0, 5), (5, 7, 0)]
TYPES = ("float32", "float64", "float16", "int32")


def model(equation: str, dtype: str) -> onnx.ModelProto:
    """An Einsum of `a` and `b` whose letters are symbolic sizes."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    terms = equation.split("->")[0].split(",")
    inputs = [helper.make_tensor_value_info(n, kind, [*term]) for n, term in zip("ab", terms, strict=True)]
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])


def check(equation: str, dtype: str) -> None:
    session = occ.compile(model(equation, dtype), "cpu", threads=2)
    random = np.random.default_rng(0)
    for i, k, j in SIZES:
        extents = {"h": 3, "i": i, "k": k, "j": j}
        terms = equation.split("->")[0].split(",")
        a, b = ((random.standard_normal([extents[c] for c in term]) * 4).astype(dtype) for term in terms)
        exact = np.float64 if dtype != "int32" else np.int64
        want = np.einsum(equation, a.astype(exact), b.astype(exact)).astype(dtype)
        tolerance = 2e-3 if dtype == "float16" else 1e-5
        scale = max(1.0, float(k))
        np.testing.assert_allclose(
            session.run({"a": a, "b": b})["y"], want, rtol=tolerance, atol=tolerance * scale, err_msg=str((i, k, j))
        )


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_by_columns(dtype: str) -> None:
    check("hik,hkj->hij", dtype)


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_by_rows(dtype: str) -> None:
    check("hik,hjk->hij", dtype)


@pytest.mark.toolchain
@pytest.mark.parametrize("equation", ["ki,kj->ij", "ik,hkj->hij", "hik,jk->hij"])
def test_operands_with_other_axes(equation: str) -> None:
    check(equation, "float32")


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("columns", [32, 40, 64])
def test_rows_by_rows_of_known_sizes(columns: int) -> None:
    """One panel, a part of one and two, which are packed in squares of registers; one row is computed without them."""
    session = occ.compile(model("ik,jk->ij", "float32"), "cpu", threads=2, shapes={"a": ["i", 16], "b": [columns, 16]})
    random = np.random.default_rng(0)
    for i in (1, 2, 7, 33):
        a, b = (random.standard_normal((n, 16)).astype(np.float32) for n in (i, columns))
        want = a.astype(np.float64) @ b.T.astype(np.float64)
        np.testing.assert_allclose(session.run({"a": a, "b": b})["y"], want, rtol=1e-5, atol=1e-4, err_msg=str(i))
