"""Sizes whose multiples leave 32 bits: what kernels compute of them, and what is refused because they cannot count so far."""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, on_threads, reference

import occ
from occ.compiler.codegen_halide.literals import dim_text
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.dim import ceildiv, symbol

N, M = symbol("N"), symbol("M")


def test_quotients_are_wide_where_what_is_divided_may_be() -> None:
    assert dim_text(160 * N // 441).startswith("cast<int>((Expr(int64_t(160))*cast<int64_t>(N)")
    assert "int64_t" in dim_text((N * M + 1) // 4)
    for usual in (ceildiv(N, 2), (N - 1) // 2 + 1, N // 8 * M, 2 * N * M, 2 * ceildiv(N, 2) - N, (N + 63) // 64 * 64):
        assert "int64_t" not in dim_text(usual)


@pytest.mark.parametrize("target", TARGETS)
def test_resampled_sound(target: str) -> None:
    """160/441 of 14 million samples: 160 times as many are more than 2**31."""
    text = 'g (float[1, 1, t] x) => (float[a, b, c] y) { y = Resize <mode = "nearest"> (x, , s) }'
    session = occ.compile(model_of(text, {"s": np.array([1, 1, 160 / 441], np.float32)}), target=target)
    size = 14_000_000 if target != "interp" else 14_000
    x = np.arange(size, dtype=np.float32).reshape(1, 1, -1)
    (y,) = session(x)
    assert y.shape == (1, 1, size * 160 // 441)
    at = (np.arange(y.size) + 0.5) * 441 / 160 - 0.5
    assert np.abs(y.reshape(-1) - at).max() <= 1  # f32 has whole numbers up to 2**24


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_as_data(target: str) -> None:
    """Shapes are numbers too, and multiples of them need not be sizes."""
    text = """g (float[n, m] x) => (int64[k] y, float[l] z) {
        s = Shape (x)  y = Mul (s, many)  e = Expand (zero, s)  flat = ReduceSum <keepdims = 0> (e, axes)
        p = Mul (s, many)  f = Cast <to = 1> (p)  z = Add (f, flat)
    }"""
    weights = {"many": np.array([10**7, 3 * 10**9]), "zero": np.zeros(1, np.float32), "axes": np.array([0, 1])}
    model = model_of(text, weights)
    x = np.zeros((1000, 7), np.float32)
    for y, exact in zip(occ.compile(model, target=target)(x), reference(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(y, exact)


@pytest.mark.toolchain
@pytest.mark.parametrize("level", ["2", "3"])
def test_empty_tensors_may_have_long_axes(level: str) -> None:
    model = model_of("g (float[0, 3000000000] x) => (float[a, b] y) { y = Transpose <perm = [1, 0]> (x) }")
    session = occ.compile(model, target="cpu", options={"optimize": level})
    (y,) = session(np.zeros((0, 3000000000), np.float32))
    assert y.shape == (3000000000, 0)


def test_tensors_that_are_too_large_are_refused() -> None:
    """A run whose result has 2**32 elements; of inputs that have few."""
    model = model_of(
        "g (uint8[n, 1] a, uint8[1, m] b) => (uint8[n, m] y) { c = BitwiseXor (a, b)  y = BitwiseNot (c) }"
    )
    given = {"a": np.zeros((1 << 16, 1), np.uint8), "b": np.zeros((1, 1 << 16), np.uint8)}
    for session in on_threads(Compilation(model, Settings("cpu")).artifact()):
        with pytest.raises(occ.RunError, match="count to 2147418112"):
            session.run(given)
        small = {k: x[:3, :3] for k, x in given.items()}
        assert session.run(small)["y"].shape == (3, 3)
    fixed = model_of("g (uint8[65536, 1] a, uint8[1, 65536] b) => (uint8[n, m] y) { y = BitwiseXor (a, b) }")
    with pytest.raises(occ.CompileError, match="OCC0309"):
        Compilation(fixed, Settings("cpu")).artifact()
    assert Compilation(fixed, Settings("cpu-jit")).artifact().code
