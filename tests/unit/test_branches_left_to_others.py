"""Branches of the compiler that models of `make test` do not come to by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.interp import evaluate
from occ.compiler.native_entry.read_routines import host_steps, routines

BRANCHES = """g (float[3] x) => (float[3] y) {
  zero = Constant<value = float {0}>()
  s = ReduceSum<keepdims = 0>(x)
  c = Greater(s, zero)
  y = If(c) <
    then_branch = a () => (float[3] t) { t = Sin(x) },
    else_branch = b () => (float[3] e) { e = Cos(x) }
  >
}"""


def test_a_function_that_is_given_other_shapes_is_not_compiled_into_its_caller() -> None:
    m = occ.build(model_of(BRANCHES), "cpu-jit").manifest
    assert routines(m)
    name, f = next(iter(m.functions.items()))
    wrong = replace(f, inputs=[replace(i, shape=(3, 1)) for i in f.inputs])
    assert host_steps(m) == []
    (why,) = host_steps(replace(m, functions={**m.functions, name: wrong}))
    assert f"runs the function `{name}` on shapes that it does not accept" in why


def test_absolute_values_of_narrow_integers_are_signed_in_halide() -> None:
    """Halide's `abs` of i8 is u8."""
    c = Compilation(model_of("g (int8[5] x) => (int8[5] y) { y = Abs(x) }"), Settings("cpu"))
    (f,) = c.advance("lowered").te.values()
    assert "cast<int8_t>(abs(" in generator(f, ())


@pytest.mark.parametrize(
    ("limit", "node", "want"),
    [("IN_CACHE", "Neg(x)", lambda x: -x), ("LARGEST_BOX", "ReduceMax<keepdims=1>(x, a)", lambda x: x.max(1)[:, None])],
)
def test_the_interpreter_takes_large_results_some_rows_at_a_time(limit, node, want, monkeypatch) -> None:
    monkeypatch.setattr(evaluate, limit, 7)  # two rows and a part of the third
    firsts: list[slice | None] = []
    box = evaluate._Box
    monkeypatch.setattr(evaluate, "_Box", lambda *a, first=None: firsts.append(first) or box(*a, first=first))
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    graph = f"g (float[5, 3] x) => (float[5, n] y) <int64[1] a = {{1}}> {{ y = {node} }}"
    np.testing.assert_array_equal(occ.compile(model_of(graph), "interp").run({"x": x})["y"], want(x))
    assert all(part in firsts for part in (slice(0, 2), slice(2, 4), slice(4, 5)))
