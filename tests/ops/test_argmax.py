"""ArgMax and ArgMin on axes of any length: the first of equal elements, or the last on request, and NaN before all."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import occ

OPERATORS = {"ArgMax": np.argmax, "ArgMin": np.argmin}
TYPES = ["float32", "float64", "float16", "uint8", "int64"]


def engine(dtype: str, axis: int, shape: list, level: str = "3"):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [(op, last) for op in OPERATORS for last in (0, 1)]
    nodes = [
        helper.make_node(op, ["x"], [f"{op}{last}"], axis=axis, keepdims=0, select_last_index=last)
        for op, last in names
    ]
    x = helper.make_tensor_value_info("x", element, shape)
    kept = [n for k, n in enumerate(shape) if k != axis]
    results = [helper.make_tensor_value_info(n.output[0], 7, kept) for n in nodes]
    graph = helper.make_graph(nodes, "g", [x], results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return occ.compile(model, target="cpu", options={"optimize": level})


def check(run, x: np.ndarray, axis: int) -> None:
    n = x.shape[axis]
    for name, got in run.run({"x": x}).items():
        fn = OPERATORS[name[:-1]]
        want = fn(x, axis) if name.endswith("0") else n - 1 - fn(np.flip(x, axis), axis)
        np.testing.assert_array_equal(got, want, err_msg=f"{name} {x.shape}")


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(0, 5, shape).astype(dtype)  # many are equal
    if np.dtype(dtype).kind == "f":
        x[rng.random(shape) < 0.02] = np.nan
        x[0] = -np.inf
        x[-1] = np.inf
    return x


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_any_length(dtype: str, axis: int) -> None:
    run = engine(dtype, axis, ["rows", "columns"])
    for shape in [(3, 1), (5, 7), (40, 33), (9, 64), (4, 197), (70, 2)]:
        check(run, values(dtype, shape), axis)


@pytest.mark.parametrize("shape", [(2, 19), (9, 64), (3, 130)])
def test_kernels_that_are_shared_by_sizes(shape: tuple[int, int]) -> None:
    """At -O1 and -O2 sizes of kernels become arguments: not of an axis over which all vectors are unrolled."""
    check(engine("float32", 0, [*shape], "1"), values("float32", shape), 0)


@pytest.mark.thinned
@pytest.mark.parametrize("axis", [0, 1])
def test_known_length(axis: int) -> None:
    check(engine("float32", axis, [21, 640]), values("float32", (21, 640)), axis)


def test_many_rows_of_one_element() -> None:
    """The schedule named a loop that there is none of: the kernel did not compile."""
    check(engine("float32", 1, [16, 1]), np.arange(16, dtype=np.float32)[:, None], 1)
