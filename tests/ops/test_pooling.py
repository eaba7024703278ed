"""Pools between images whose rows are contiguous: all element types, strides, borders and sizes, against onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import occ

WINDOWS = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "pads": [0, 1, 2, 1]},
    {"kernel_shape": [5, 3], "strides": [3, 3], "pads": [2, 0, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 5], "strides": [1, 3], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [1, 7], "strides": [1, 2], "pads": [0, 3, 0, 3]},
    {"kernel_shape": [7, 1]},
    {"kernel_shape": [7, 7]},
]
DILATED = {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [2, 2, 2, 2]}
SIZES = ((7, 7), (9, 16), (8, 17), (13, 31), (20, 50), (11, 130))
TYPES = {"MaxPool": ("float32", "float16", "uint8", "int8"), "AveragePool": ("float32", "float16")}
SETS = [(op, dtype) for op, dtypes in TYPES.items() for dtype in dtypes]


def model(op: str, dtype: str, size: tuple[object, object], *, relu: bool = False) -> onnx.ModelProto:
    """One pool for each window, of one input; with `relu` of what an operator makes of it."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    windows = [*WINDOWS, DILATED] if op == "MaxPool" else [*WINDOWS, {**WINDOWS[3], "count_include_pad": 1}]
    nodes = [helper.make_node(op, ["a" if relu else "x"], [f"y{k}"], **w) for k, w in enumerate(windows)]
    if relu:
        nodes.insert(0, helper.make_node("Sigmoid", ["x"], ["a"]))
    results = [helper.make_tensor_value_info(f"y{k}", kind, None) for k in range(len(windows))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, ["n", 3, *size])], results)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])


def check(m: onnx.ModelProto, session: object, x: np.ndarray) -> None:
    expected = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    tolerance = 2e-3 if x.dtype == np.float16 else 1e-5
    for want, (name, got) in zip(expected, session.run({"x": x}).items(), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=f"{name} of {x.shape}")


def values(dtype: str, *shape: int) -> np.ndarray:
    x = np.random.default_rng(sum(shape)).standard_normal(shape) * 50
    return x.clip(0, 255).astype(dtype) if dtype == "uint8" else x.astype(dtype)


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(("op", "dtype"), SETS)
def test_planes_of_any_size(op: str, dtype: str) -> None:
    m = model(op, dtype, ("h", "w"))
    session = occ.compile(m, "cpu", threads=2)
    for k, (height, width) in enumerate(SIZES):
        check(m, session, values(dtype, 1 + k % 2, 3, height, width))


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(("op", "dtype"), SETS)
def test_planes_of_one_size(op: str, dtype: str) -> None:
    m = model(op, dtype, (13, 37))
    check(m, occ.compile(m, "cpu", threads=2), values(dtype, 2, 3, 13, 37))


@pytest.mark.toolchain
def test_planes_that_a_function_makes() -> None:
    m = model("MaxPool", "float32", (13, "w"), relu=True)
    check(m, occ.compile(m, "cpu", threads=2), values("float32", 2, 3, 13, 37))


@pytest.mark.toolchain
def test_a_nan_in_a_window_is_its_maximum() -> None:
    m = model("MaxPool", "float32", ("h", "w"))
    x = values("float32", 1, 3, 20, 50)
    x[0, 1, 9, 25] = np.nan
    session = occ.compile(m, "cpu")
    for name, y in session.run({"x": x}).items():
        assert [np.isnan(plane).any() for plane in y[0]] == [False, True, False], name
