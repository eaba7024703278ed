"""Tests of variants, in the form that Halide finds for itself."""

from itertools import product

import pytest

from occ.compiler.ir.dim import evaluate, maximum, minimum, symbol
from occ.compiler.ir.te.schedule import AtMost

N, M = symbol("N"), symbol("M")


@pytest.mark.parametrize(
    ("left", "right", "simplest"),
    [
        (N, 2, "N <= 2"),
        (50 * N, 4, "N <= 0"),
        (3 * N + 1, 8, "N <= 2"),
        (N - maximum(0, N - 3), 2, "N <= 2"),
        (2 * N - maximum(0, 2 * N - 3), 2, "N <= 1"),
        (minimum(N, M), 2, "min(M, N) <= 2"),
        (maximum(N, 2), 2, "N <= 2"),
        (8, N, "8 <= N"),
        (8, 4 * N + M, "8 <= M + 4*N"),
        (2 * N * M, 64, "M*N <= 32"),
    ],
)
def test_the_simplest_form_holds_for_the_same_sizes(left, right, simplest) -> None:
    test = AtMost(left, right)
    assert str(test.simplest) == simplest
    for n, m in product(range(12), repeat=2):
        env = {"N": n, "M": m}
        assert (evaluate(left, env) <= evaluate(right, env)) == (
            evaluate(test.simplest.left, env) <= evaluate(test.simplest.right, env)
        )


def test_what_holds_for_all_sizes_and_for_none() -> None:
    assert AtMost(N - maximum(0, N - 1), 1).always
    assert AtMost(N + 3, 2).never
    assert not AtMost(N, 2).always
    assert not AtMost(N, 2).never
