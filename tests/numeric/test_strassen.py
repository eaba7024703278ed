"""Strassen's method: its identity, its error against float64, the generated code, and where it is left alone."""

from itertools import product

import numpy as np
import onnx
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.ops.own.strassen import LEFT, RESULT, RIGHT, combined_weight

ON = {"strassen": "on"}


def test_signs_are_those_of_a_product() -> None:
    """Every product of quarters `a[i, k] * b[k, j]` is in the quarter `[i, j]` once, and nothing else is in any."""
    for (quarter, signs), (a, b) in product(enumerate(RESULT), product(range(4), range(4))):
        total = sum(s * LEFT[e][a] * RIGHT[e][b] for e, s in enumerate(signs))
        wanted = a // 2 == quarter // 2 and b % 2 == quarter % 2 and a % 2 == b // 2
        assert total == wanted


def test_combined_weight_adds_quarters_that_alternate() -> None:
    w = np.arange(4 * 8, dtype=np.float32).reshape(4, 8)
    made = combined_weight(w, 2)
    first, second = w[:2, [0, 1, 4, 5]], w[2:, [2, 3, 6, 7]]
    assert made.shape == (7, 2, 4)
    np.testing.assert_array_equal(made[0], first + second)
    np.testing.assert_array_equal(made[1], first)


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


def uses_it(model: onnx.ModelProto, options: dict[str, str] = ON) -> bool:
    module = Compilation(model, Settings("cpu", options=options, verify=True)).advance("fused")
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


def test_off_by_default() -> None:
    assert not uses_it(layer("128", 768, 768)[0], {})


def test_products_of_bf16_stay_as_they_are() -> None:
    assert not uses_it(layer("128", 768, 768)[0], ON | {"precision": "bf16"})
