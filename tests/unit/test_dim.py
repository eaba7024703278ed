"""Symbolic dims against plain integer arithmetic, on trees of operations made by hypothesis."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from occ.compiler.frontend.text import parse
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Sym, symbol
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.te.expr import Expr, Load

SYMBOLS = {
    "N": symbol("N", 0, 9),
    "M": symbol("M", 1, None),
    "K": symbol("K", 4, 64, divisible_by=4),
    "H": symbol("H", 0, symbol("N", 0, 9) + 1),
    "E": symbol("E", 0, 54, divisible_by=6),
}
ENVS = st.fixed_dictionaries(
    {
        "N": st.integers(0, 9),
        "M": st.integers(1, 50),
        "K": st.integers(1, 16).map(lambda k: 4 * k),
        "E": st.integers(0, 9).map(lambda e: 6 * e),
    }
).flatmap(lambda env: st.integers(0, env["N"] + 1).map(lambda h: {**env, "H": h}))

LEAVES = st.sampled_from(sorted(SYMBOLS)) | st.integers(-6, 20)
TREES = st.recursive(
    LEAVES,
    lambda t: (
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), t, t)
        | st.tuples(st.just("//"), t, st.integers(1, 8) | st.just("M"))
        | st.tuples(st.just("%"), t, st.integers(1, 8) | st.just("M"))
    ),
    max_leaves=8,
)
OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}  # fmt: skip


def build(tree, symbols, low, high):
    """The value of a tree over `symbols`: dims, or plain integers."""
    if isinstance(tree, str):
        return symbols[tree]
    if isinstance(tree, int):
        return tree
    op, a, b = tree
    a, b = build(a, symbols, low, high), build(b, symbols, low, high)
    return low(a, b) if op == "min" else high(a, b) if op == "max" else OPERATIONS[op](a, b)


def as_dim(tree):
    return build(tree, SYMBOLS, dim.minimum, dim.maximum)


@settings(max_examples=400)
@given(TREES, ENVS)
def test_a_dim_has_the_value_of_its_tree(tree, env):
    assert dim.evaluate(as_dim(tree), env) == build(tree, env, min, max)


@settings(max_examples=300)
@given(TREES, ENVS)
def test_bounds_hold(tree, env):
    d = as_dim(tree)
    assert dim.lower(d) <= build(tree, env, min, max) <= dim.upper(d)


@settings(max_examples=200)
@given(TREES, ENVS)
def test_substituting_all_symbols_gives_the_value(tree, env):
    assert dim.substitute(as_dim(tree), env) == build(tree, env, min, max)


@settings(max_examples=200)
@given(TREES, TREES, ENVS)
def test_equal_dims_have_equal_values(a, b, env):
    x, y = as_dim(a), as_dim(b)
    if x == y:
        assert dim.evaluate(x, env) == dim.evaluate(y, env)
        assert hash(x) == hash(y)


@settings(max_examples=200)
@given(TREES, TREES)
@example(("//", "K", 2), ("//", "K", 2))  # 2*(K//2) is K, and K - K//2 is K//2 again
@example(("//", "K", 4), ("*", ("//", "E", 6), ("//", "K", 2)))
def test_ring_laws_hold_by_construction(a, b):
    x, y = as_dim(a), as_dim(b)
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) - y == x
    assert (x + y) * y == x * y + y * y
    assert 0 * x == 0 if isinstance(x, Sym) else True


@settings(max_examples=150)
@given(TREES, TREES, ENVS)
def test_an_exact_quotient_times_its_divisor_is_the_dividend(a, b, env):
    x, y = as_dim(a), as_dim(b)
    found = dim.exact_quotient(x, y)
    if found is not None:
        assert dim.evaluate(found * y, env) == dim.evaluate(x, env)
    if y != 0:
        assert dim.exact_quotient(x * y, y) == x


@settings(max_examples=150)
@given(TREES, st.integers(1, 12), ENVS)
def test_a_proven_multiple_is_one(tree, factor, env):
    d = as_dim(tree)
    if dim.is_multiple(d, factor):
        assert dim.evaluate(d, env) % factor == 0


@settings(max_examples=150)
@given(TREES.filter(lambda t: "'H'" not in repr(t)))
def test_text_reads_back_as_the_same_dim(tree):
    d = as_dim(tree)
    text = f"""module @m {{stage="inferred"}} {{
      dim N "N" [0, 9]
      dim M "M" [1, inf]
      dim K "K" [4, 64] % 4
      dim E "E" [0, 54] % 6
      constraint {d} == 7 "node"
    }}"""
    (constraint,) = parse(text).constraints
    assert str(constraint.lhs) == str(d)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda n, m: (16 * n + 5) // 16, lambda n, m: n),
        (lambda n, m: (6 * n + 4) // 4, lambda n, m: n + (n // 2) * 0 + (2 * n + 4) // 4),
        (lambda n, m: (n * m) // m, lambda n, m: n),
        (lambda n, m: (n // 2) // 3, lambda n, m: n // 6),
        (lambda n, m: ((n + 1) // 2 + 1) // 2, lambda n, m: (n + 3) // 4),
        (lambda n, m: (n // 2 + (n + 1) // 2) // 2, lambda n, m: n // 2),
        (lambda n, m: ((n // 2 + 1) // 2 + n // 4 + 1) // 2, lambda n, m: (n // 2 + 1) // 2),
        (lambda n, m: (m * (n // 4) + m * ((n + 2) // 4) + 1) // 5, lambda n, m: (m * (n // 2) + 1) // 5),
        (lambda n, m: (n // 3 + (n + 2) // 3 + (n + 1) // 3) // 2, lambda n, m: n // 2),
        (lambda n, m: dim.maximum(n, -((-n) // 2) + n // 2), lambda n, m: n),
        (lambda n, m: n - n, lambda n, m: 0),
        (lambda n, m: n % 4 + 4 * (n // 4), lambda n, m: n),
        (lambda n, m: dim.minimum(n, n + 1), lambda n, m: n),
        (lambda n, m: dim.maximum(n, n + m), lambda n, m: n + m),
        (lambda n, m: dim.ceildiv(8 * m, 8), lambda n, m: m),
        (lambda n, m: (n * m + 3 * m) // (160 * m), lambda n, m: (n + 3) // 160),
        (lambda n, m: (n * m * m) // (6 * n * m), lambda n, m: m // 6),
    ],
)
def test_canonical_forms(made, wanted):
    n, m = symbol("N"), symbol("M", 1)
    assert made(n, m) == wanted(n, m)


def test_the_index_of_an_axis_lies_below_its_extent():
    n = symbol("N", 1)
    i = symbol("i", 0, n - 1)
    assert dim.lower(n - i) >= 1
    assert (n * symbol("o") + i) // n == symbol("o")
    assert dim.upper(i) == inf


def test_division_by_the_constant_zero_is_an_error():
    with pytest.raises(ZeroDivisionError):
        7 // 0 if False else dim.floordiv(7, 0)


def test_arithmetic_with_expressions_is_theirs() -> None:
    """A dim and what is not a dim make an expression, not a polynomial with an expression in it."""
    n, load = SYMBOLS["M"], Load("x", (), I64)
    for made in (n - load, n + load, n * load, n // load, n % load, load - n):
        assert isinstance(made, Expr)


SHARES = st.tuples(
    st.integers(-2, 2), st.sampled_from(["1", "M", "N"]), st.sampled_from(["N", "M", "K", "E"]), st.integers(0, 6)
)


@given(st.lists(SHARES, min_size=2, max_size=6), st.sampled_from([2, 3, 4, 6]), st.integers(1, 6), ENVS)
def test_divided_sums_of_shares_of_sizes(shares, parts, by, env):
    """Of one divisor, so that many of them are joined."""
    made, wanted = 0, 0
    for times, of, size, shift in shares:
        made += times * ({"1": 1, **SYMBOLS}[of] * ((SYMBOLS[size] + shift) // parts))
        wanted += times * ({"1": 1, **env}[of] * ((env[size] + shift) // parts))
    assert dim.evaluate(made // by, env) == wanted // by
    assert dim.evaluate(dim.maximum(made, SYMBOLS["M"]), env) == max(wanted, env["M"])


def test_halves_of_a_size_are_joined_only_where_they_are_divided():
    n = symbol("N")
    low, high = n // 2, (n + 1) // 2
    assert low + high - high == low
    assert (3 * low + high) // 2 == (n + 2 * low) // 2
    assert (low - high) // 2 != low - high


QUOTIENTS = st.tuples(st.integers(-6, 6), st.integers(1, 6), st.integers(1, 3))


@given(QUOTIENTS, st.lists(st.tuples(st.integers(-6, 6), st.integers(1, 4)), max_size=3), ENVS)
def test_a_quotient_in_terms_of_another(inner, steps, env):
    """Of quotients of quotients, whose parts and constants are put together."""
    shift, by, times = inner
    known, value = (times * symbol("N") + shift) // by, (times * env["N"] + shift) // by
    made, wanted = known, value
    for more, step in steps:
        made, wanted = (made + more) // step, (wanted + more) // step
    atoms = {a: symbol("V", -1000) for mono, _ in dim.terms_of(known) for a, _ in mono if isinstance(a, dim.Func)}
    for atom, v in atoms.items():
        of_known = dim.monomial((atom, 1))
        again = dim.put_atoms(made, {atom: v})
        assert dim.evaluate(again, {**env, "V": dim.evaluate(of_known, env)}) == wanted


def test_a_quotient_of_a_quotient_knows_that_alone():
    n, half = symbol("N"), symbol("H")
    ((((atom, _),), _),) = dim.terms_of((n + 1) // 2)
    assert dim.put_atoms((n + 3) // 4 + (n + 7) // 8, {atom: half}) == (half + 1) // 2 + (half + 3) // 4
    assert dim.put_atoms((n + 2) // 4, {atom: half}) == (n + 2) // 4, "which is not a quotient of it"
    ((((atom, _),), _),) = dim.terms_of((2 * n + 1) // 3)
    assert dim.put_atoms(((2 * n + 1) // 3 + 1) // 2, {atom: half}) == (half + 1) // 2


@settings(max_examples=300)
@given(TREES, TREES, TREES, ENVS)
def test_in_terms_of_another_dim(a, b, c, env):
    unit, d = as_dim(a), as_dim(a) * as_dim(b) + as_dim(c)
    if isinstance(unit, Sym):
        made = dim.in_terms_of(d, unit, symbol("U", -(10**9)))
        assert dim.evaluate(made, {**env, "U": dim.evaluate(unit, env)}) == dim.evaluate(d, env)


def test_a_sum_is_found_in_products_and_quotients():
    n, h, u = symbol("N"), symbol("H"), symbol("U")
    unit = h - h // 3
    assert dim.in_terms_of(2 * n * unit + dim.maximum(unit, n) + 3, unit, u) == 2 * n * u + dim.maximum(u, n) + 3
    assert dim.in_terms_of(unit * unit, unit, u) == u * u
    assert dim.in_terms_of(h + 1, unit, u) == h + 1


def test_a_bound_is_a_whole_number():
    """Rounded up to a multiple of 4, half of a size is no less than the half rounded up."""
    n = symbol("N")
    assert dim.lower(2 * ((n + 3) // 4) - (n + 1) // 2) == 0
    assert dim.upper((n + 1) // 2 - 2 * ((n + 3) // 4)) == 0


def test_bounds_of_a_size_less_one_of_its_extremes():
    n = symbol("N")
    half = (n + 1) // 2
    last = half - dim.maximum(half - 1, 0)
    assert (dim.lower(last), dim.upper(last)) == (0, 1)
    assert dim.minimum(dim.maximum(n - 1, 0), n) == dim.maximum(n - 1, 0)
    assert dim.substitute(last, {"N": symbol("N", 1)}) == 1
    assert dim.upper(n - dim.minimum(n, 3)) == inf
    assert dim.lower(2 * dim.minimum(n, 3) - n) == -inf


def test_rows_and_columns_of_a_position_lie_within_a_picture():
    h, w = symbol("H", 1), symbol("W", 1)
    position = symbol("i'", 0, h * w - 1)
    row = position // w
    assert (dim.lower(row), dim.lower(h - 1 - row)) == (0, 0)
    column = position - w * row
    assert (dim.lower(column), dim.lower(w - 1 - column)) == (0, 0)
    assert (h * w - 1) // w == h - 1


def test_blocks_of_a_symbolic_length_lie_within_all_of_them():
    n = symbol("N", 1)
    at = symbol("b'", 0, 1) * n + symbol("i'", 0, n - 1)
    assert (dim.lower(at), dim.lower(2 * n - 1 - at)) == (0, 0)
