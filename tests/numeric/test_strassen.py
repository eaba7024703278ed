"""Strassen's method: its identity, its error against float64, the generated code, and where it is left alone."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import onnx
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.ops.own.strassen import LEFT, RESULT, RIGHT, quarters_of_weight

ON = {"strassen": "on"}


def test_signs_are_those_of_a_product() -> None:
    """Every product of quarters `a[i, k] * b[k, j]` is in the quarter `[i, j]` once, and nothing else is in any."""
    for (quarter, signs), (a, b) in product(enumerate(RESULT), product(range(4), range(4))):
        total = sum(s * LEFT[e][a] * RIGHT[e][b] for e, s in enumerate(signs))
        wanted = a // 2 == quarter // 2 and b % 2 == quarter % 2 and a % 2 == b // 2
        assert total == wanted


def test_quarters_of_weight_alternate() -> None:
    w = np.arange(4 * 8, dtype=np.float32).reshape(4, 8)
    made = quarters_of_weight(w, 2)
    assert made.shape == (4, 2, 4)
    for quarter, (rows, columns) in enumerate(product((slice(0, 2), slice(2, 4)), ([0, 1, 4, 5], [2, 3, 6, 7]))):
        np.testing.assert_array_equal(made[quarter], w[rows][:, columns])


def layer(rows: str, k: int, n: int, gemm: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A product with a bias, its Gelu and what is added to it."""
    rng = np.random.default_rng(n)
    weights = {"w": (rng.standard_normal((k, n)) * np.sqrt(2 / k)).astype(np.float32)}
    weights["b"] = rng.standard_normal(n).astype(np.float32)
    first = "p = MatMul(x, w) q = Add(p, b)"
    if gemm:
        weights["w"] = np.ascontiguousarray(weights["w"].T)
        first = "q = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, w, b)"
    text = f"g (float[{rows}, {k}] x, float[{rows}, {n}] z) => (float[{rows}, {n}] y) {{ {first} g = Gelu(q) y = Add(g, z) }}"
    return model_of(text, weights), weights


def uses_it(model: onnx.ModelProto, options: Mapping[str, str] = ON) -> bool:
    module = Compilation(model, Settings("cpu", options=dict(options), verify=True)).advance("fused")
    return any(op.name == "strassen" for op in module.walk())


@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("rows", "k", "n", "gemm"),
    [
        ("1, 128", 384, 384, False),
        pytest.param("197", 768, 576, False, marks=pytest.mark.slow),
        pytest.param("2, 101", 512, 640, False, marks=pytest.mark.slow),
        pytest.param("300", 576, 512, True, marks=pytest.mark.slow),
    ],
)
def test_generated_code_on_blocks_and_odd_rows(rows: str, k: int, n: int, gemm: bool) -> None:
    from onnx.reference import ReferenceEvaluator

    m, weights = layer(rows, k, n, gemm)
    assert uses_it(m)
    rng = np.random.default_rng(1)
    shape = [int(r) for r in rows.split(",")]
    x, z = (rng.standard_normal((*shape, size)).astype(np.float32) for size in (k, n))
    got = occ.compile(m, "cpu", options=ON).run({"x": x, "z": z})["y"]
    w, b = (weights[name].astype(np.float64) for name in ("w", "b"))
    q = 0.5 * (x.astype(np.float64) @ w.T) + 2 * b if gemm else x.astype(np.float64) @ w + b
    (gelu,) = ReferenceEvaluator(model_of("g (double[n] x) => (double[n] y) { y = Gelu(x) }")).run(
        None, {"x": q.ravel()}
    )
    want = gelu.reshape(q.shape) + z
    assert np.abs(got - want).max() / np.abs(want).max() < 3e-6


@pytest.mark.parametrize(
    ("rows", "k", "n"),
    [("1", 768, 768), ("64", 768, 768), ("n", 768, 768), ("128", 768, 770), ("128", 30, 768), ("128", 256, 256)],
)
def test_left_alone_where_it_does_not_fit_or_pay(rows: str, k: int, n: int) -> None:
    assert not uses_it(layer(rows, k, n)[0])


ZEN = {
    "strassen": "auto",
    "halide.target": "x86-64-linux-avx-avx2-f16c-fma-sse41-avx512-avx512_skylake-avx512_cannonlake-avx512_zen4",
}
SKYLAKE = {"strassen": "auto", "halide.target": "x86-64-linux-avx-avx2-f16c-fma-sse41-avx512-avx512_skylake"}


@pytest.mark.parametrize(("rows", "k", "n"), [("128", 768, 768), ("197", 768, 3072), ("2, 96", 3072, 768)])
def test_taken_where_it_was_seen_to_gain(rows: str, k: int, n: int) -> None:
    model = layer(rows, k, n)[0]
    assert uses_it(model, ZEN)
    assert not uses_it(model, SKYLAKE)
    assert not uses_it(model, ZEN | {"strassen": "off"})


def test_off_by_default() -> None:
    assert not uses_it(layer("128", 768, 768)[0], {})


@pytest.mark.parametrize(
    ("rows", "k", "n"),
    [
        ("95", 768, 768),
        ("300", 768, 768),
        ("2, 197", 768, 768),
        ("n, 128", 768, 768),
        ("197", 384, 1536),
        ("128", 768, 640),
    ],
)
def test_left_alone_where_it_gains_little(rows: str, k: int, n: int) -> None:
    assert not uses_it(layer(rows, k, n)[0], ZEN)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_matrices_that_are_not_finite_keep_their_products(value: float) -> None:
    w = np.ones((768, 768), np.float32)
    w[3, 5] = value
    model = model_of("g (float[128, 768] x) => (float[128, 768] y) { y = MatMul(x, w) }", {"w": w})
    assert not uses_it(model)


@pytest.mark.toolchain
def test_infinite_inputs_reach_their_pair_of_rows_alone() -> None:
    """Rows 2 and 50 of 96 are a pair: what comes of one may be in both, and in no others."""
    w = np.random.default_rng(0).standard_normal((384, 384), np.float32)
    model = model_of("g (float[96, 384] x) => (float[96, 384] y) { y = MatMul(x, w) }", {"w": w})
    assert uses_it(model)
    x = np.random.default_rng(1).standard_normal((96, 384), np.float32)
    x[2, 7] = np.inf
    got = occ.compile(model, "cpu", options=ON).run({"x": x})["y"]
    assert not np.isfinite(got[2]).any()
    rest = np.delete(np.arange(96), [2, 50])
    np.testing.assert_allclose(got[rest], x[rest].astype(np.float64) @ w, rtol=0, atol=2e-4)


def test_products_of_bf16_stay_as_they_are() -> None:
    assert not uses_it(layer("128", 768, 768)[0], ON | {"precision": "bf16", "halide.target": ZEN["halide.target"]})
