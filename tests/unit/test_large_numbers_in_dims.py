"""Dims with numbers near 2**40: what they come to is exact, and no algorithm goes through the value of a size."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occ.compiler.ir import dim
from occ.compiler.ir.dim import symbol
from occ.compiler.ir.fractions import shortest_fraction

LARGE = 2**40
NUMBERS = st.integers(-(2**41), 2**41) | st.integers(-6, 6)
TREES = st.recursive(
    st.sampled_from(["N", "M"]) | NUMBERS,
    lambda t: (
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), t, t)
        | st.tuples(st.sampled_from(["//", "%"]), t, st.integers(1, 8) | st.integers(LARGE, LARGE + 8))
    ),
    max_leaves=6,
)
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
SYMBOLS = {"N": symbol("N", 0, LARGE + 9), "M": symbol("M", 1)}


def value(tree, of, low=min, high=max):
    if isinstance(tree, str):
        return of[tree]
    if isinstance(tree, int):
        return tree
    op, a, b = tree
    a, b = value(a, of, low, high), value(b, of, low, high)
    return {"min": low, "max": high}[op](a, b) if op in ("min", "max") else OPERATIONS[op](a, b)


@settings(deadline=None)
@given(TREES, st.integers(0, LARGE + 9), st.integers(1, LARGE))
def test_dims_are_what_integers_are(tree, n: int, m: int) -> None:
    of = {"N": n, "M": m}
    made, exact = value(tree, SYMBOLS, dim.minimum, dim.maximum), value(tree, of)
    assert dim.evaluate(made, of) == exact
    assert dim.lower(made) <= exact <= dim.upper(made)


def test_bounds_are_not_rounded() -> None:
    n = symbol("N", LARGE - 1, LARGE + 9)
    assert (dim.lower(n * n), dim.upper(n * n)) == ((LARGE - 1) ** 2, (LARGE + 9) ** 2)
    assert dim.lower(n * n - (LARGE - 1) ** 2) == 0
    assert dim.floordiv(n * n - (LARGE - 1) ** 2, LARGE**2) != 0  # it may be 20 * 2**40


def steps(what: Callable[[], object]) -> int:
    """Instructions of Python that a call runs."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        assert count < 1_000_000, "it goes through the value of a size"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("many", [2, 3, 8])
def test_quotients_are_joined_at_a_cost_without_sizes(many: int) -> None:
    def joined(by: int, name: str) -> dim.Dim:
        n = symbol(name)
        return dim.floordiv(sum(((n + k * (by // many)) // by for k in range(many)), 0), 7)

    small, large = 24, 24 * 2**36
    assert joined(large, "J") == dim.floordiv(symbol("J"), large // many * 7)
    assert steps(lambda: joined(large, "K")) < 2 * steps(lambda: joined(small, "L"))


def test_quotients_that_share_nothing_cost_nothing_by_their_size() -> None:
    """13421773 / 2**25 is what 0.4 is as f32; two axes that it scales once took 2**32 steps."""

    def area(top: int, below: int, stem: str) -> dim.Dim:
        h, w = (symbol(stem + c) * top // below for c in "hw")
        return dim.floordiv(h * w + h, 2**40) + dim.ceildiv(h + w, below)

    assert steps(lambda: area(13421773 * 2**17 + 1, 2**42, "a")) < 3 * steps(lambda: area(3, 8, "b"))


def test_one_quotient_in_terms_of_another_costs_nothing_by_the_ratio() -> None:
    def put(ratio: int, name: str) -> dim.Dim:
        n = symbol(name)
        ((((known, _),), _),) = (n * ratio // (2 * ratio + 1)).terms
        return dim.put_atoms(n // (4 * ratio + 2), {known: symbol("P")})

    assert steps(lambda: put(2**40, "Q")) < 2 * steps(lambda: put(2**4, "R"))


@pytest.mark.parametrize(
    ("given", "exact"),
    [(0.4, "2/5"), (1 / 3, "1/3"), (0.7, "7/10"), (1.1, "11/10"), (1 / 300, "1/300"), (2.2, "11/5"), (0.5, "1/2"),
     (640 / 481, "640/481"), (16000 / 44100, "160/441"), (2.0, "2"), (1e-7, "1/10000000"), (0.0, "0"), (-0.4, "-2/5")],
)  # fmt: skip
def test_floats_that_files_mean(given: float, exact: str) -> None:
    assert shortest_fraction(float(np.float32(given))) == Fraction(exact)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_is_meant_is_rounded_to_what_is_given(number: float) -> None:
    assert np.float32(float(shortest_fraction(number))) == np.float32(number)


def test_quotients_become_one_while_their_divisor_has_64_bits() -> None:
    n = SYMBOLS["N"]
    assert str((n // 8 + 1) // 4) == str((n + 8) // 32)
    divisors = [int(d) for d in re.findall(r"//(\d+)", str(dim.ceildiv(dim.ceildiv(symbol("K"), 2**62), 8192)))]
    assert divisors == [2**62, 8192]
