"""The error of each algorithm against float64, on shapes of layers of real networks.

Inputs are those of layers: what a Relu leaves of N(0, 1), and weights N(0, 2 / terms). The error of a sum of n products in
f32, fused into it, is that of a random walk: its steps are roundings of partial sums, each of 0.43 * 2**-24 of the sum in
the root mean square, here taken for half, and the sums grow as sqrt(n) themselves. That makes `2**-25 * sqrt(n / 2)` of the
root mean square of the result. One level of Strassen's method adds 12, 4, 4 and 12 errors of sums of half as many terms in
the quarters of the result, which is sqrt(2) times as much. The figure for Winograd's F(4x4, 3x3) was measured on layers of
VGG19. The largest error is taken in parts of the largest result: both lie as many deviations from their means, so it may be
twice the other one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod, sqrt

import machines
import ml_dtypes
import numpy as np
import onnx
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings

pytestmark = pytest.mark.toolchain
WINOGRAD = 2e-6
EXP = 1e-7  # of f32: docs/numerics.md


def summed(terms: int) -> float:
    """The bound of the error of a sum, in parts of the root mean square of the result."""
    return 2.0**-25 * sqrt(terms / 2)


@dataclass(frozen=True)
class Layer:
    """A layer with its exact result.

    Attributes:
        model: of the layer.
        feed: its inputs.
        exact: its result in float64.
    """

    model: onnx.ModelProto
    feed: Mapping[str, np.ndarray]
    exact: np.ndarray


def random(terms: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """An input of a layer and its weight, f32."""
    rng = np.random.default_rng(prod(map(prod, shapes)))
    x, w = (rng.standard_normal(s) for s in shapes)
    return [np.maximum(x, 0).astype(np.float32), (w * sqrt(2 / terms)).astype(np.float32)]


def convolution(size: int, channels: int, filters: int, taps: int, step: int) -> Layer:
    p = taps // 2
    x, w = random(channels * taps**2, (1, channels, size, size), (filters, channels, taps, taps))
    out = (size + 2 * p - taps) // step + 1
    text = f"""g (float[1, {channels}, {size}, {size}] x) => (float[1, {filters}, {out}, {out}] y) {{
        y = Conv<pads = [{p}, {p}, {p}, {p}], strides = [{step}, {step}]>(x, w)
    }}"""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (p, p), (p, p)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (2, 3))[:, :, ::step, ::step]
    return Layer(
        model_of(text, {"w": w}), {"x": x}, np.einsum("ncyxij,ocij->noyx", windows, w.astype(np.float64), optimize=True)
    )


def matmul(rows: int, inner: int, columns: int) -> Layer:
    x, w = random(inner, (rows, inner), (inner, columns))
    text = f"g (float[{rows}, {inner}] x) => (float[{rows}, {columns}] y) {{ y = MatMul(x, w) }}"
    return Layer(model_of(text, {"w": w}), {"x": x}, x.astype(np.float64) @ w)


def half_matmul(kind: type, rows: int, inner: int, columns: int) -> Layer:
    """A product with a weight of 16 bits in front of a Cast; what it rounded off is not an error of the product."""
    x, w = random(inner, (rows, inner), (inner, columns))
    w = w.astype(kind)
    text = f"g (float[{rows}, {inner}] x) => (float[{rows}, {columns}] y) {{ f = Cast<to = 1>(w) y = MatMul(x, f) }}"
    return Layer(model_of(text, {"w": w}), {"x": x}, x.astype(np.float64) @ w.astype(np.float64))


def attention(heads: int, rows: int, depth: int) -> Layer:
    rng = np.random.default_rng(rows)
    q, k, v = (rng.standard_normal((1, heads, rows, depth)).astype(np.float32) for _ in range(3))
    shape = f"float[1, {heads}, {rows}, {depth}]"
    text = f"""g ({shape} q, {shape} k, {shape} v) => ({shape} y) {{
        t = Transpose<perm = [0, 1, 3, 2]>(k)
        s = MatMul(q, t)
        m = Mul(s, factor)
        p = Softmax<axis = -1>(m)
        y = MatMul(p, v)
    }}"""
    factor = np.float32(1 / sqrt(depth))
    scores = np.float64(factor) * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3))
    e = np.exp(scores - scores.max(-1, keepdims=True))
    exact = e / e.sum(-1, keepdims=True) @ v.astype(np.float64)
    return Layer(model_of(text, {"factor": factor}), {"q": q, "k": k, "v": v}, exact)


@dataclass(frozen=True)
class Case:
    """An algorithm on the shape of a layer.

    Attributes:
        name: of the algorithm.
        make: makes the layer.
        shape: what `make` takes.
        bound: of the root mean square of the error.
        options: of the target, with which the layer takes the algorithm.
        fast: whether it runs with the fast tests.
    """

    name: str
    make: Callable[..., Layer]
    shape: tuple[int, ...]
    bound: float
    options: Mapping[str, str]
    fast: bool


def case(
    name: str, make: Callable[..., Layer], shape: tuple[int, ...], bound: float, fast: bool = False, **options: str
) -> Case:
    return Case(name, make, shape, bound, options, fast)


def f16(*shape: int) -> Layer:
    return half_matmul(np.float16, *shape)


def bf16(*shape: int) -> Layer:
    return half_matmul(ml_dtypes.bfloat16, *shape)


CASES = (
    # size, channels, filters, taps, step
    case("direct", convolution, (56, 192, 64, 1, 1), summed(192), fast=True),
    case("direct", convolution, (14, 256, 64, 1, 1), summed(256)),
    case("direct", convolution, (56, 64, 32, 3, 1), summed(576), winograd="off"),
    case("direct", convolution, (28, 128, 64, 3, 2), summed(1152)),
    case("direct", convolution, (14, 256, 64, 3, 1), summed(2304), winograd="off"),
    case("direct", convolution, (64, 3, 64, 7, 2), summed(147)),
    case("winograd", convolution, (14, 64, 64, 3, 1), WINOGRAD, fast=True),
    case("winograd", convolution, (14, 64, 64, 5, 1), WINOGRAD, fast=True),
    case("winograd", convolution, (56, 64, 64, 3, 1), WINOGRAD),
    case("winograd", convolution, (28, 128, 64, 3, 1), WINOGRAD),
    case("winograd", convolution, (14, 256, 64, 3, 1), WINOGRAD),
    case("winograd", convolution, (14, 512, 64, 3, 1), WINOGRAD),
    case("winograd", convolution, (7, 512, 64, 3, 1), WINOGRAD / 2),  # F(2x2, 3x3)
    # rows, inner extent, columns
    case("product", matmul, (128, 768, 768), summed(768), fast=True),
    case("product", matmul, (197, 384, 1000), summed(384)),
    case("product", matmul, (64, 3072, 768), summed(3072)),
    case("strassen", matmul, (128, 768, 384), sqrt(2) * summed(768), fast=True, strassen="on"),
    case("strassen", matmul, (197, 768, 768), sqrt(2) * summed(768), strassen="on"),
    case("strassen", matmul, (128, 3072, 768), sqrt(2) * summed(3072), strassen="on"),
    case("one row", matmul, (1, 768, 3072), summed(768), fast=True),
    case("one row", matmul, (1, 2048, 1000), summed(2048)),
    case("one row", matmul, (1, 9216, 512), summed(9216)),
    case("f16", f16, (1, 768, 768), summed(768), fast=True),
    case("f16", f16, (4, 2048, 1000), summed(2048)),
    case("bf16", bf16, (1, 768, 768), summed(768)),
    case("bf16", bf16, (4, 2048, 1000), summed(2048)),
    # heads, rows, depth: the error of a score is one of the logarithm of its exponential
    case("attention", attention, (12, 128, 64), EXP + summed(64) + summed(128), fast=True),
    case("attention", attention, (4, 512, 64), EXP + summed(64) + summed(512)),
)  # fmt: skip


def taken(c: Compilation) -> str:
    """The algorithm that a layer takes, by its ops and the type of its weight."""
    ops = {op.name for op in c.advance("fused").walk()}
    for name, op in (("winograd", "winograd"), ("strassen", "strassen"), ("attention", "attend"), ("direct", "Conv")):
        if op in ops:
            return name
    (product,) = (op for op in c.advance("layout").walk() if op.name == "MatMul")
    x, w = product.operands
    assert x is not None
    assert w is not None
    if w.tensor.dtype.bits == 16:
        return w.tensor.dtype.name
    return "one row" if x.tensor.dims[0] == 1 else "product"


@pytest.mark.parametrize(
    "c", [pytest.param(c, id=f"{c.name}-{c.shape}", marks=() if c.fast else pytest.mark.slow) for c in CASES]
)
def test_error_against_float64(c: Case) -> None:
    layer = c.make(*c.shape)
    widens = c.name != "f16" or machines.current().has_f16c  # weights are f32 on a processor that does not
    options = c.options if widens else {**c.options, "halide.target": machines.TARGETS["x86-64-v3"]}
    compilation = Compilation(layer.model, Settings("cpu", options=options))
    assert taken(compilation) == c.name
    got = machines.opened(compilation.artifact(), 2).run(dict(layer.feed))["y"]
    error = got.astype(np.float64) - layer.exact
    rms = float(np.sqrt(np.mean(error**2) / np.mean(layer.exact**2)))
    most = float(np.abs(error).max() / np.abs(layer.exact).max())
    assert rms < c.bound, f"{rms:.2g} of {c.bound:.2g}"
    assert most < 2 * c.bound, f"{most:.2g} of {2 * c.bound:.2g}"
