"""Unique is compiled: elements and slices, in both orders, with results left out. Against onnxruntime and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import model_of
from onnx import TensorProto, helper

import occ
from occ.compiler.native_entry.read_routines import host_steps

RNG = np.random.default_rng(0)
SHAPES = [(7, 3, 2), (1, 1, 1), (40, 5, 2), (600, 2, 3)]
HOW: list[dict[str, int]] = [{}, {"sorted": 0}, {"axis": 0}, {"axis": -1, "sorted": 0}, {"axis": 1}]
NAMES = ["y", "first", "inverse", "counts"]


def unique(dtype: Any, rank: int, results: list[str] = NAMES, **attrs: int) -> bytes:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Unique", ["x"], results, **attrs)
    x = helper.make_tensor_value_info("x", kind, [f"d{k}" for k in range(rank)])
    made = [helper.make_tensor_value_info(n, kind if n == "y" else TensorProto.INT64, None) for n in results if n]
    graph = helper.make_graph([node], "g", [x], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def opened(model: bytes, target: str = "cpu-jit") -> Any:
    session = occ.compile(model, target, threads=1)
    assert not host_steps(session.artifact.manifest), "compiled code does all of it"
    return session


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
def test_results_are_those_of_onnxruntime(dtype: str, how: dict[str, int]) -> None:
    for rank in (1, 2, 3) if how.get("axis") != 1 else (2, 3):
        model = unique(dtype, rank, **how)
        session, theirs = opened(model), onnxruntime.InferenceSession(model)
        for shape in SHAPES:
            for most in (2, 100):
                x = RNG.integers(-most, most, shape[:rank]).clip(-128, 127).astype(dtype)
                for got, want in zip(session.run({"x": x}).values(), theirs.run(None, {"x": x}), strict=True):
                    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("how", HOW[:2], ids=str)
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "bool", "uint8", "int16", "uint16", "int32", "uint32", "uint64"]
)
def test_elements_of_every_type_are_compared_as_numbers(dtype: str, how: dict[str, int]) -> None:
    session = opened(unique(dtype, 2, **how))
    if dtype == "bool":
        listed = [1, 0, 1]
    elif dtype.startswith("f"):
        listed = [np.nan, -0.0, 0.0, np.inf, -np.nan, -np.inf, 1e-40, -1, 3]
    else:
        ends = np.iinfo(dtype)
        listed = [ends.max, 0, ends.min, 1, ends.max, ends.min, ends.max - 1]
    x = np.array(listed, dtype).reshape(1, -1)
    first_come = dict.fromkeys(0.0 if v == 0 else "nan" if v != v else v for v in x.reshape(-1).tolist())
    values, first, inverse, counts = session.run({"x": x}).values()
    assert len(values) == len(first_come)
    np.testing.assert_array_equal(values[inverse], x.reshape(-1))
    np.testing.assert_array_equal(values, x.reshape(-1)[first])
    np.testing.assert_array_equal(counts, np.bincount(inverse))
    if how:
        np.testing.assert_array_equal(first, np.sort(first))
    else:
        np.testing.assert_array_equal(values, np.unique(x))


def test_rows_with_a_nan_are_equal_where_their_other_elements_are() -> None:
    x = np.array([[1, np.nan], [0, 2], [1, np.nan], [np.nan, 0]], np.float32)
    model = unique("float32", 2, axis=0)
    for session in (opened(model), occ.compile(model, "interp")):
        values, first, inverse, counts = session.run({"x": x}).values()
        np.testing.assert_array_equal(values, x[[1, 0, 3]])
        assert [first.tolist(), inverse.tolist(), counts.tolist()] == [[1, 0, 3], [1, 0, 1, 2], [1, 2, 1]]


@pytest.mark.parametrize("results", [["y"], ["y", "", "inverse"], ["", "", "", "counts"], ["", "first"]])
def test_results_may_be_left_out(results: list[str]) -> None:
    model = unique("float32", 2, results, axis=0)
    whole, session = opened(unique("float32", 2, axis=0)), opened(model)
    for rows in (5, 1, 300):
        x = RNG.integers(0, 2, (rows, 2)).astype(np.float32)
        wanted = whole.run({"x": x})
        np.testing.assert_array_equal(wanted["y"], np.unique(x, axis=0))
        for name, got in session.run({"x": x}).items():
            np.testing.assert_array_equal(got, wanted[name], strict=True)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("how", [{}, {"axis": 0}, {"axis": 1, "sorted": 0}], ids=str)
def test_nothing(shape: tuple[int, int], how: dict[str, int]) -> None:
    model = unique("int64", 2, **how)
    values, first, inverse, counts = opened(model).run({"x": np.zeros(shape, np.int64)}).values()
    axis = how.get("axis")
    n = 0 if axis is None else min(shape[axis], 1)
    wanted = (n,) if axis is None else tuple(n if k == axis else d for k, d in enumerate(shape))
    assert (values.shape, first.shape, counts.shape) == (wanted, (n,), (n,))
    assert inverse.shape == ((0,) if axis is None else (shape[axis],))
    assert counts.sum() == (0 if axis is None else shape[axis])


@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_what_is_found_is_read_by_other_steps(target: str) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[n] x) => (float[n] again, float[u] twice, int64[v] counts) {
        y, first, inverse, c = Unique (x)
        again = Gather (y, inverse)
        twice = Add (y, y)
        z, which, counts = com.microsoft.Unique (x)
    }"""
    session = opened(model_of(text).SerializeToString(), target)
    for n in (1, 9, 500):
        x = RNG.integers(0, 20, n).astype(np.float32)
        found = session.run({"x": x})
        np.testing.assert_array_equal(found["again"], x)
        np.testing.assert_array_equal(found["twice"], 2 * np.unique(x))
        assert found["counts"].tolist() == [int((x == v).sum()) for v in dict.fromkeys(x.tolist())]
