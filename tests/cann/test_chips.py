"""What kernels do not take is written in other operators: accepted on every chip in its default mode, and right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import built, simulated, worst

from occ.compiler.codegen_cann.options import SOCS

RNG = np.random.default_rng(23)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def i(low: int, high: int, *shape: int, dtype: type = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


# name -> graph, weights, inputs
MODELS: dict[str, tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "a triangle from a diagonal that a run gives": (
        "(float[2, 4, 5] x, int64 k) => (float[2, 4, 5] y, float[2, 4, 5] z) { y = Trilu (x, k) z = Trilu <upper = 0> (x, k) }", {}, {"x": f(2, 4, 5), "k": np.array(-2)},
    ),
    "distances of integers": ("(int64[3, 5] x) => (int64[3, 5] y) { y = Abs (x) }", {}, {"x": i(-(1 << 40), 1 << 40, 3, 5)}),
    "distances of bytes": ("(int8[3, 5] x) => (int8[3, 5] y) { y = Abs (x) }", {}, {"x": i(-127, 128, 3, 5, dtype=np.int8)}),
    "a sum of distances": ("(int64[3, 5] x) => (int64[1, 5] y) { y = ReduceL1 (x, w) }", {"w": np.array([0])}, {"x": i(-99, 99, 3, 5)}),
    "the least of doubles": ("(double[3, 5] x) => (double[1, 5] y) { y = ReduceMin (x, w) }", {"w": np.array([0])}, {"x": f(3, 5).astype(np.float64)}),
    "a conv with long steps": (
        "(float[1, 1, 4000] x) => (float[1, 6, 23] y) { y = Conv <strides = [160]> (x, w, b) }", {"w": f(6, 1, 400), "b": f(6)}, {"x": f(1, 1, 4000)},
    ),
    "a conv with a long filter": (
        "(float[2, 2, 300] x) => (float[2, 3, 105] y) { y = Conv <pads = [30, 31]> (x, w) }", {"w": f(3, 2, 257)}, {"x": f(2, 2, 300)},
    ),
    "a conv with wide gaps": (
        "(float[1, 4, 700] x) => (float[1, 8, 700] y) { y = Conv <dilations = [256], pads = [256, 256], group = 2> (x, w) }", {"w": f(8, 2, 3)}, {"x": f(1, 4, 700)},
    ),
    "a conv with wide pads": (
        "(float[1, 2, 4, 4] x) => (float[1, 3, 602, 4] y) { y = Conv <pads = [300, 1, 300, 1]> (x, w) }", {"w": f(3, 2, 3, 3)}, {"x": f(1, 2, 4, 4)},
    ),
    "a conv of integers with long steps": (
        "(uint8[1, 2, 300] x) => (int32[1, 3, 3] y) { y = ConvInteger <strides = [128]> (x, w, z) }", {"w": i(-100, 100, 3, 2, 5, dtype=np.int8), "z": np.array(7, np.uint8)}, {"x": i(0, 255, 1, 2, 300, dtype=np.uint8)},
    ),
    "a transposed conv": (
        "(float[1, 3, 5, 4] x) => (float[1, 2, 11, 8] y) { y = ConvTranspose <strides = [2, 2], pads = [0, 1, 1, 0], output_padding = [1, 0]> (x, w, b) }", {"w": f(3, 2, 3, 3), "b": f(2)}, {"x": f(1, 3, 5, 4)},
    ),
    "many operands": (
        f"(float[2, 1] x) => (float[2, 130] y) {{ n = Neg(x) y = Concat <axis = 1> ({', '.join(['x', 'n'] * 65)}) }}", {}, {"x": f(2, 1)},
    ),
    "many results": (
        f"(float[2, 150] x) => (float[2, 2] y) {{ {', '.join(f's{k}' for k in range(150))} = Split <axis = 1, num_outputs = 150> (x) y = Concat <axis = 1> (s149, s64) }}", {}, {"x": f(2, 150)},
    ),
    "a square": ("(float[2, 3] x) => (float[2, 3] y) { y = Pow(x, two) }", {"two": np.array([2], np.float32)}, {"x": f(2, 3)}),
    "a square that broadcasts": ("(float[3] x) => (float[1, 3] y) { y = Pow(x, two) }", {"two": np.array([[2]], np.float32)}, {"x": f(3)}),
    "largest pixels": ("(float[1, 2, 9, 8] x) => (float[1, 2, 5, 4] y) { y = MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0]> (x) }", {}, {"x": f(1, 2, 9, 8)}),
    "largest bytes": ("(uint8[1, 2, 9] x) => (uint8[1, 2, 7] y) { y = MaxPool <kernel_shape = [3]> (x) }", {}, {"x": i(0, 255, 1, 2, 9, dtype=np.uint8)}),
    "means of pixels": ("(float[1, 2, 9, 8] x) => (float[1, 2, 5, 4] y) { y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) }", {}, {"x": f(1, 2, 9, 8)}),
    "means of long windows": ("(float[1, 2, 400] x) => (float[1, 2, 5] y) { y = AveragePool <kernel_shape = [100], strides = [70], pads = [10, 0]> (x) }", {}, {"x": f(1, 2, 400)}),
    "hardmax": ("(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax <axis = 1> (x) }", {}, {"x": f(2, 3, 4)}),
    "not a number": ("(float[4] x) => (bool[4] y) { y = IsNaN(x) }", {}, {"x": np.float32([1, np.nan, np.inf, -0.0])}),
    "rows from the end": ("(float[5, 2] x, int64[3] i) => (float[3, 2] y) { y = Gather(x, i) }", {}, {"x": f(5, 2), "i": np.array([-1, 0, -5])}),
    "points from the end": ("(float[5, 2] x, int64[3, 2] i) => (float[3] y) { y = GatherND(x, i) }", {}, {"x": f(5, 2), "i": np.array([[-1, 0], [0, -2], [-5, -1]])}),
    "largest of points": ("(float[4, 3] x, int64[5, 1] i, float[5, 3] u) => (float[4, 3] y) { y = ScatterND <reduction = \"max\"> (x, i, u) }", {}, {"x": f(4, 3), "i": np.array([[0], [3], [0], [-1], [2]]), "u": f(5, 3)}),
    "smallest of elements": ("(float[4, 3] x, int64[2, 3] i, float[2, 3] u) => (float[4, 3] y) { y = ScatterElements <reduction = \"min\"> (x, i, u) }", {}, {"x": f(4, 3), "i": i(-4, 4, 2, 3), "u": f(2, 3)}),
    "integers repeated": ("(int64[3, 1] x) => (int64[2, 3, 4] y) { y = Expand(x, s) }", {"s": np.array([2, 1, 4])}, {"x": np.array([[2**40], [-1], [3]])}),
    "flags repeated": ("(bool[3, 1] x) => (bool[3, 4] y) { y = Expand(x, s) }", {"s": np.array([3, 4])}, {"x": np.array([[True], [False], [True]])}),
    "sums of integers": ("(int32[3, 4] x) => (int32[3] y) { y = ReduceSum <keepdims = 0> (x, a) }", {"a": np.array([1])}, {"x": i(-(2**20), 2**20, 3, 4, dtype=np.int32)}),
    "quotients of integers": ("(int64[4] x, int64[4] z) => (int64[4] y) { y = Div(x, z) }", {}, {"x": np.array([7, -7, 2**52 + 1, 9]), "z": np.array([2, 2, 3, -3])}),
    "integers within bounds": ("(int64[4] x) => (int64[4] y) { y = Clip(x, lo, hi) }", {"lo": np.array(-2), "hi": np.array(5)}, {"x": np.array([7, -7, 3, 2**40])}),
    "one of several": ("(int64[3] x) => (float[3, 4] y) { y = OneHot(x, d, v) }", {"d": np.array(4), "v": np.array([0, 2], np.float32)}, {"x": np.array([-1, 2, 2**33])}),
}  # fmt: skip
# What a chip has no kernel for, so that the CPU runs it: no sums of integers on the 310, no sums of INT64 on the 910, no reduced extrema of DOUBLE at all.
ON_THE_CPU = {
    "a sum of distances": ("ascend310", "ascend910"), "the least of doubles": tuple(SOCS), "sums of integers": ("ascend310",),
}  # fmt: skip
EQUATIONS = {
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)], "ij,jk": [(2, 3), (3, 4)], "...ij,...jk->...ik": [(2, 1, 3, 4), (5, 4, 2)],
    "bii->bi": [(2, 3, 3)], "ij->j": [(2, 3)], "i,j->ij": [(3,), (4,)], "bqhd,hdo->bqo": [(2, 3, 4, 5), (4, 5, 6)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 2)], "bchw,bkhw->bck": [(2, 3, 4, 4), (2, 5, 4, 4)], "i,i->": [(4,), (4,)],
    "abc->cba": [(2, 3, 4)], "ij,ij->ij": [(2, 3), (2, 3)], "ii": [(3, 3)],
}  # fmt: skip


def check(model: onnx.ModelProto, given: dict[str, np.ndarray], target: str, fallback: str = "off") -> None:
    made = built(model, target, cpu_fallback=fallback)
    assert bool(made.manifest.summary["cpu_ops"]) == (fallback != "off")
    got, want = simulated(made, given), reference(model, given)
    if want[0].dtype.kind in "biu":
        np.testing.assert_array_equal(got[0], want[0])
    else:
        assert worst(got, want) < (2e-6 if target in ("ascend910b", "ascend910_93") else 3e-3)


@pytest.mark.parametrize("target", SOCS)
@pytest.mark.parametrize("name", MODELS)
def test_every_chip_takes(name: str, target: str):
    text, weights, given = MODELS[name]
    check(
        model_of(f"g {text}", weights, opset=21),
        given,
        target,
        "cpu-jit" if target in ON_THE_CPU.get(name, ()) else "off",
    )


@pytest.mark.parametrize("target", SOCS)
@pytest.mark.parametrize("text", ["MatMul (x, w)", "Gemm (x, w)"])
def test_products_of_integers_go_to_the_cpu(text: str, target: str):
    """The matrix units multiply INT8, and no wider integers."""
    model = model_of(
        f"g (int32[3, 4] x) => (int32[3, 2] y) {{ y = {text} }}", {"w": i(-9999, 9999, 4, 2, dtype=np.int32)}
    )
    made, x = built(model, target), {"x": i(-9999, 9999, 3, 4, dtype=np.int32)}
    assert made.manifest.summary["cpu_operators"] == [text.split()[0]]
    assert np.array_equal(simulated(made, x)[0], reference(model, x)[0])


@pytest.mark.parametrize("equation", EQUATIONS)
def test_sums_of_products(equation: str):
    sizes = EQUATIONS[equation]
    given = {f"x{k}": f(*s) for k, s in enumerate(sizes)}
    ports = ", ".join(f"float[{', '.join(map(str, s))}] x{k}" for k, s in enumerate(sizes))
    text = f'g ({ports}) => (float y) {{ y = Einsum <equation = "{equation}"> ({", ".join(given)}) }}'
    model = model_of(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check(model, given, "ascend910b")
    check(model, given, "ascend310p")


def test_frames_that_are_too_large_go_to_the_cpu():
    text = "g (float[1, 512, 100000] x) => (float[1, 8, 97696] y) { y = Conv <dilations = [256]> (x, w) }"
    made = built(model_of(text, {"w": f(8, 512, 10)}), "ascend310p")
    assert made.manifest.summary["cpu_operators"] == ["Conv"]
