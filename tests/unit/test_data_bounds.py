"""Upper bounds of data-dependent sizes: never less than the actual sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from occ.compiler.native_entry.bounds import upper
from occ.runtime.dims import DimExpr, evaluate, symbols

LEAVES = st.one_of(st.integers(-9, 9), st.sampled_from(["n", "u", "v"]))


def larger(inner: st.SearchStrategy[DimExpr]) -> st.SearchStrategy[DimExpr]:
    more = st.tuples(st.sampled_from(["+", "*", "min", "max"]), inner, inner, inner).map(lambda e: [e[0], *e[1:]])
    return st.one_of(more, st.tuples(inner, st.integers(1, 5)).map(lambda e: ["//", *e]))


@given(st.recursive(LEAVES, larger, max_leaves=8), st.integers(0, 7), st.integers(0, 50), st.integers(0, 9))
def test_nothing_is_more(e: DimExpr, n: int, u: int, v: int):
    bounds: dict[str, DimExpr] = {"u": ["*", "n", 7], "v": 9}
    most = upper(e, bounds)
    assert not symbols(most) & {"u", "v"}
    assert evaluate(e, {"n": n, "u": min(u, 7 * n), "v": v}) <= evaluate(most, {"n": n})


@given(st.recursive(st.one_of(st.integers(0, 9), st.just("n")), larger, max_leaves=8), st.integers(0, 7))
def test_what_no_data_decide_stays(e: DimExpr, n: int):
    assert upper(e, {"u": 5}) == e
