"""te expressions: evaluation, index simplification and text, on expressions made by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occ.compiler.frontend.text import parse
from occ.compiler.interp.evaluate import run
from occ.compiler.ir import dtype as dt
from occ.compiler.ir.dim import symbol
from occ.compiler.ir.func import SymbolInfo
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.te import expr as ex
from occ.compiler.ir.te import walks
from occ.compiler.ir.te.function import Builder, Param, TeFunc, TeStage
from occ.compiler.ir.te.index import axis_symbols, simplify
from occ.compiler.ir.te.piecewise import part_count, parts
from occ.compiler.ir.te.walks import of_kind, replace_indices, transform, walk, with_shared_parts
from occ.compiler.ir.types import TensorType

AXES = (ex.Axis("i0", 6), ex.Axis("i1", 4), ex.Axis("i2", 1))
N = symbol("N")

INDEX = st.recursive(
    st.sampled_from([ex.Index(a.name) for a in AXES]) | st.integers(-9, 9).map(lambda v: ex.literal(v, dt.I64)),
    lambda e: (
        st.builds(ex.binary, st.sampled_from(["add", "sub", "mul", "min", "max"]), e, e)
        | st.builds(ex.binary, st.sampled_from(["floordiv", "mod"]), e, st.integers(1, 7))
    ),
    max_leaves=7,
)
CONDITION = st.builds(ex.binary, st.sampled_from(ex.COMPARISONS), INDEX, INDEX)


def function(expr: ex.Expr, params: tuple[Param, ...] = (), dims: tuple[str, ...] = ()) -> TeFunc:
    result = Param("out", TensorType(expr.dtype, tuple(a.extent for a in AXES)))
    return TeFunc("f", dims, params, (TeStage("out", AXES, expr),), (result,))


def by_hand(e: ex.Expr, at: dict[str, int]):
    """The value of an integer expression at one position, in plain Python."""
    match e:
        case ex.Const():
            return e.value
        case ex.Index():
            return at[e.name]
        case ex.Binary():
            a, b = by_hand(e.lhs, at), by_hand(e.rhs, at)
            table = {
                "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "min": lambda: min(a, b),
                "max": lambda: max(a, b), "floordiv": lambda: a // b, "mod": lambda: a % b, "eq": lambda: a == b,
                "ne": lambda: a != b, "lt": lambda: a < b, "le": lambda: a <= b,
            }  # fmt: skip
            return table[e.op]()
        case _:
            raise AssertionError(e)


def everywhere(e: ex.Expr) -> np.ndarray:
    return np.array(
        [[[by_hand(e, {"i0": i, "i1": j, "i2": 0})] for j in range(4)] for i in range(6)],
        bool if e.dtype == dt.BOOL else np.int64,
    )


@settings(max_examples=300)
@given(INDEX | CONDITION)
def test_the_interpreter_agrees_with_plain_python(e):
    (got,) = run(function(e), [], {})
    assert np.array_equal(got, everywhere(e))


@settings(max_examples=300)
@given(INDEX | CONDITION)
def test_simplified_index_arithmetic_has_the_same_value_everywhere(e):
    simple = simplify(e, axis_symbols(AXES))
    (got,) = run(function(simple), [], {})
    assert np.array_equal(got, everywhere(e))


@settings(max_examples=150)
@given(INDEX)
def test_simplification_is_idempotent(e):
    once = simplify(e, axis_symbols(AXES))
    assert simplify(once, axis_symbols(AXES)) == once


@given(INDEX, st.integers(-3, 3), st.integers(-3, 3))
def test_indices_that_change_places_are_replaced_once(e, i, k):
    """Also where a term vanishes, so that nothing is left of a sum but a part that has been rewritten."""
    values = {"i0": ex.Index("i1"), "i1": ex.Index("i0"), "i2": ex.literal(0, dt.I64)}
    assert by_hand(replace_indices(e, values), {"i0": i, "i1": k}) == by_hand(e, {"i0": k, "i1": i, "i2": 0})


def test_a_sum_whose_other_term_vanishes_is_rewritten_once():
    i0, i1, i2 = (ex.Index(a.name) for a in AXES)
    assert replace_indices(i0 + i2, {"i0": i1, "i1": i0, "i2": ex.literal(0, dt.I64)}) == i1


def test_split_and_merged_indices_cancel():
    i0, i1 = ex.Index("i0"), ex.Index("i1")
    axes = axis_symbols(AXES)
    assert simplify((i0 * 4 + i1) // 4, axes) == i0
    assert simplify((i0 * 4 + i1) % 4, axes) == i1
    assert simplify(i1 < 4, axes) == ex.literal(True, dt.BOOL)


PARAMS = (Param("x", TensorType(dt.F32, (6, 4, 1))), Param("b", TensorType(dt.BOOL, ())))
HERE = tuple(ex.Index(a.name) for a in AXES)
FLOATS = st.recursive(
    st.just(ex.Load("x", HERE, dt.F32))
    | st.floats(width=32).map(lambda v: ex.literal(v, dt.F32))
    | st.sampled_from([float("inf"), float("-inf"), float("nan"), -0.0, float(np.float32(1e-45))]).map(lambda v: ex.literal(v, dt.F32)),
    lambda e: st.builds(lambda op, a, b: ex.Binary(op, a, b, dt.F32), st.sampled_from(ex.ARITHMETIC[:9]), e, e)
    | st.builds(lambda fn, a: ex.Call(fn, (a,), dt.F32), st.sampled_from([f for f, n in ex.CALLS.items() if n == 1 and f not in ("not", "isnan", "isinf", "popcount", "nearest")]), e)
    | st.builds(ex.Select, CONDITION | st.just(ex.Load("b", (), dt.BOOL)), e, e)
    | st.builds(lambda a: ex.Cast(ex.Cast(a, dt.I8), dt.F32), e)
    | st.builds(lambda a: ex.Bitcast(ex.Bitcast(a, dt.U32), dt.F32), e)
    | st.builds(lambda kind, a: ex.Reduce(kind, (ex.Axis("r0", 3), ex.Axis("r1", N)), a, dt.F32), st.sampled_from(["sum", "prod", "max", "min"]), e),
    max_leaves=6,
)  # fmt: skip


def module_with(f: TeFunc) -> Module:
    m = parse('module @m {stage="scheduled"} {\n  func @main() -> () {\n    return\n  }\n}')
    m.symbols["N"] = SymbolInfo(next(iter(N.terms[0][0]))[0], "N")
    m.te[f.name] = f
    return m


@settings(max_examples=300)
@given(FLOATS | INDEX | CONDITION)
def test_text_of_an_expression_reads_back(e):
    f = function(e, PARAMS, ("N",))
    text = module_text(module_with(f))
    again = parse(text)
    assert again.te["f"] == f
    assert module_text(again) == text


@pytest.mark.parametrize("t", [t for t in dt.ALL if t.kind in "fiub"], ids=str)
def test_literals_of_every_type_read_back(t):
    values = {t.lowest, t.highest, 0, 1} if t.is_int else {0.0, 1.0, t.highest} if t.is_float else {False, True}
    for v in values:
        f = function(ex.literal(v, t))
        assert parse(module_text(module_with(f))).te["f"] == f


@pytest.mark.parametrize("combine", ["set", "add", "mul", "max", "min"])
def test_scatter_reads_back_and_runs(combine):
    t = Builder()
    x = t.map((5,), lambda i: ex.cast(dt.F32, i), name="x")
    s = t.scatter(
        (4,), lambda i: ex.literal(1.0, dt.F32), (5,), lambda u: [u // 2], lambda u: x[u] + 2.0, combine=combine
    )
    f = TeFunc("f", (), (), tuple(t.stages), (Param(s.name, s.type),))
    (got,) = run(f, [], {})
    want = np.ones(4, np.float32)
    for u in range(5):
        v = u + 2.0
        at = u // 2
        table = {"set": v, "add": want[at] + v, "mul": want[at] * v, "max": max(want[at], v), "min": min(want[at], v)}
        want[at] = table[combine]
    assert np.array_equal(got, want)
    assert parse(module_text(module_with(f))).te["f"] == f


@pytest.mark.parametrize(("combine", "of"), [("running_add", np.cumsum), ("running_mul", np.cumprod)])
def test_running_combinations_read_back_and_run(combine, of):
    t = Builder()
    x = t.map((4, 3), lambda i, j: ex.cast(dt.F32, i + j) + 1.0, name="x")
    s = t.scatter(
        (3, 4),
        lambda *i: ex.literal(0.0, dt.F32),
        (4, 3),
        lambda u, v: [v, 3 - u],
        lambda u, v: x[u, v],
        combine=combine,
    )
    f = TeFunc("f", (), (), tuple(t.stages), (Param(s.name, s.type),))
    (got,) = run(f, [], {})
    want = of(1.0 + np.add.outer(np.arange(4), np.arange(3)), axis=0)[::-1].T
    assert np.array_equal(got, want)
    assert parse(module_text(module_with(f))).te["f"] == f


def test_a_failed_check_names_its_message():
    from occ.runtime.errors import RunError

    t = Builder()
    x = Param("x", TensorType(dt.I64, (3,)))
    t.check((3,), lambda i: ex.Load("x", (i,), dt.I64) < 2, "too large")
    out = t.map((3,), lambda i: ex.Load("x", (i,), dt.I64), name="out")
    f = TeFunc("f", (), (x,), tuple(t.stages), (Param(out.name, out.type),), tuple(t.checks))
    run(f, [np.array([0, 1, 1])], {})
    with pytest.raises(RunError, match="too large"):
        run(f, [np.array([0, 1, 2])], {})
    again = parse(module_text(module_with(f))).te["f"]
    assert again == f
    assert replace(again, checks=()) != f


def test_nodes_of_a_kind_are_those_of_this_expression_whatever_was_walked_before(monkeypatch):
    monkeypatch.setattr(walks, "_MOST_WALKED", 2)
    for k in range(50):  # ids return when expressions are gone
        e = ex.Index(f"a{k}") * 2 + ex.Index(f"b{k}")
        assert [n.name for n in of_kind(ex.Index, e)] == [f"a{k}", f"b{k}"]
        assert [n.op for n in of_kind(ex.Binary, e)] == ["mul", "add"]
        assert of_kind(ex.Load, e) == []


def test_what_a_rewrite_leaves_alone_is_the_same_object():
    shared = ex.Index("i0") * 3
    e = (shared + ex.Index("i1")) - ex.binary("max", shared, ex.literal(7, dt.I64))
    assert transform(e, lambda _: None) is e
    made = replace_indices(e, {"i1": ex.Index("j")})
    assert isinstance(made, ex.Binary)
    assert made.rhs is e.rhs
    assert made == (shared + ex.Index("j")) - ex.binary("max", shared, ex.literal(7, dt.I64))


def test_equal_parts_become_one():
    def total(axis: str = "r") -> ex.Expr:
        term = ex.Load("x", (ex.Index("i0"), ex.Index(axis)), dt.F32) * ex.Load("w", (ex.Index(axis),), dt.F32)
        return ex.Reduce("sum", (ex.Axis(axis, 3),), term, dt.F32) + ex.literal(0.0, dt.F32)

    e = total() * ex.call("exp", total()) + total("s") * ex.literal(-0.0, dt.F32)
    made = with_shared_parts(e)
    assert made == e
    assert len(of_kind(ex.Reduce, e)) == 3
    assert [r.axes[0].name for r in of_kind(ex.Reduce, made)] == ["r", "s"]
    assert len(list(walk(made))) == len(set(walk(e)))


@pytest.mark.parametrize(
    ("starts", "extent", "count"),
    [((), 9, 0), ((4,), 9, 2), ((3, 6), 9, 3), ((9, 0), 9, 0), (range(1, 40), 50, 0), ((1,), 1, 0)],
)
def test_parts_are_counted_without_their_expressions(starts, extent, count):
    i = ex.Index("i")
    e = ex.Load("last", (i,), dt.F32)
    for k, start in enumerate(starts):
        e = ex.where(i < start, ex.Load(f"x{k}", (i,), dt.F32), e)
    stage = TeStage("c", (ex.Axis("i", extent),), e)
    assert part_count(stage) == len(parts(stage)) == count
