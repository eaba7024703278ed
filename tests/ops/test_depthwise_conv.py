"""Depthwise convolutions between images whose rows are contiguous: types, borders, batches and sizes, against onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from machines import opened
from onnx import helper, numpy_helper

import occ

CHANNELS = 9
WINDOWS = [
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3]},
    {"kernel_shape": [3, 3], "pads": [0, 1, 2, 3]},
    {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2], "dilations": [2, 2]},
    {"kernel_shape": [1, 5], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
    {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3]},
    {"kernel_shape": [13, 4], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [35, 3], "pads": [17, 1, 17, 1]},
]
SIZES = ((1, 14, 14), (2, 5, 7), (1, 5, 8), (3, 9, 33), (1, 17, 50), (1, 30, 5), (0, 9, 9))


def model(dtype: str, shape: tuple[object, ...], windows: list[dict], *, relu: bool = False) -> onnx.ModelProto:
    """One convolution for each window, of one input; with `relu` between two functions."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(1)
    nodes = [helper.make_node("Sigmoid", ["x"], ["a"])] if relu else []
    weights = [numpy_helper.from_array(rng.standard_normal(CHANNELS).astype(dtype), "b")]
    for k, window in enumerate(windows):
        w = rng.standard_normal((CHANNELS, 1, *window["kernel_shape"])).astype(dtype)
        weights.append(numpy_helper.from_array(w, f"w{k}"))
        result = f"c{k}" if relu else f"y{k}"
        inputs = ["a" if relu else "x", f"w{k}", *(["b"] if k % 2 == 0 else [])]
        nodes.append(helper.make_node("Conv", inputs, [result], group=CHANNELS, **window))
        if relu:
            nodes.append(helper.make_node("Relu", [result], [f"y{k}"]))
    results = [helper.make_tensor_value_info(f"y{k}", kind, None) for k in range(len(windows))]
    given = [helper.make_tensor_value_info("x", kind, shape)]
    graph = helper.make_graph(nodes, "g", given, results, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])


def check(m: onnx.ModelProto, session: object, x: np.ndarray) -> None:
    known = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    tolerance = 2e-2 if x.dtype == np.float16 else 2e-5
    for want, (name, got) in zip(known.run(None, {"x": x}), session.run({"x": x}).items(), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=f"{name} of {x.shape}")


def values(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(("dtype", "relu"), [("float32", True), ("float16", False)])
def test_depthwise_of_any_size(dtype: str, relu: bool) -> None:
    m = model(dtype, ("n", CHANNELS, "h", "w"), [*WINDOWS[2:4], *WINDOWS[7:9]] if relu else WINDOWS[1:3], relu=relu)
    session = occ.compile(m, "cpu", threads=2)
    for n, height, width in SIZES:
        check(m, session, values(dtype, n, CHANNELS, height, width))


@pytest.mark.toolchain
@pytest.mark.parametrize("features", ["avx2-fma-f16c", "sse41"])
@pytest.mark.parametrize("size", [(1, 13, 37), (2, 7, 14)])
def test_depthwise_of_one_size(features: str, size: tuple[int, int, int]) -> None:
    n, *plane = size
    m = model("float32", (n, CHANNELS, *plane), WINDOWS)
    session = opened(occ.build(m, "cpu", options={"halide.target": f"x86-64-linux-{features}"}))
    check(m, session, values("float32", n, CHANNELS, *plane))
