"""What a run says of sizes that the build assumed: not how it wrote that down, but what has to be of which size."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.plan.index_limits import limits
from occ.runtime.dims import MOST_COUNTED, in_order, text
from occ.runtime.manifest import Constraint
from occ.runtime.signature import check_constraints

LAST = """g (float[k, m] x, float[5] z) => (float[5] y) {
    start = Constant<value_ints = [-1]>()  end = Constant<value_ints = [9223372036854775807]>()
    flat = Reshape(x, start)
    last = Slice(flat, start, end)
    y = Add(last, z)
}"""


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_size_of_at_least_one(target: str) -> None:
    """It said `min(1, k*m) = 0 and 1 = 1`."""
    session = occ.compile(model_of(LAST), target)
    x, z = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones(5, np.float32)
    np.testing.assert_array_equal(session.run({"x": x, "z": z})["y"], np.full(5, 8, np.float32))
    with pytest.raises(occ.RunError, match=r"needs k\*m to be at least 1, but for these inputs it is 0"):
        session.run({"x": x[:0], "z": z})


@pytest.mark.parametrize(
    ("a", "b", "ordered"),
    [
        (["min", 1, "k"], 1, (1, "k")),
        (1, ["min", "k", 1], (1, "k")),
        (["max", 1, "k"], "k", (1, "k")),
        (["min", ["+", "n", 1], "k"], ["+", "n", 1], (["+", "n", 1], "k")),
        (["min", "n", "k"], "m", None),
        ("n", "k", None),
    ],
)
def test_order_that_an_equality_states(a: object, b: object, ordered: object) -> None:
    assert in_order(a, b) == ordered


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (["+", "n", -5], "n - 5"),
        (["+", "n", ["*", -1, "m"], 3], "n - m + 3"),
        (["*", -1, ["+", "n", "m"]], "-(n + m)"),
        (["+", ["*", -2, "n"], ["*", 2, "m"]], "-2*n + 2*m"),
        (["//", ["+", "n", -3], 2], "(n - 3)//2"),
    ],
)
def test_sums(size: list[object], said: str) -> None:
    assert text(size) == said


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_pad_that_cuts_more_than_there_is(target: str) -> None:
    session = occ.compile(
        model_of("g (float[n] x) => (float[k] y) { p = Constant<value_ints = [-3, -2]>() y = Pad(x, p) }"), target
    )
    with pytest.raises(occ.RunError, match=r"would have n - 5 = -1 elements"):
        session.run({"x": np.ones(4, np.float32)})


def test_what_kernels_count_to_is_remedied_by_another_target_alone() -> None:
    made = Compilation(model_of("g (float[n] x) => (float[n] y) { y = Neg(x) }"), Settings("cpu-jit"))
    m = made.advance("lowered")
    (kernel,) = (op for op in m.walk() if op.name == "kernel")
    kernel.attrs["dims"] = (2**40,)
    with pytest.raises(
        CompileError, match=r"extent of 1099511627776, but kernels of `cpu-jit` can only count"
    ) as found:
        limits(m, m.main, elements=False)
    assert found.value.diagnostics[0].helps == ("build for smaller inputs",)
    with pytest.raises(occ.RunError, match="choose smaller extents; kernels of `cpu-jit` count only extents"):
        check_constraints([Constraint(["min", "n", MOST_COUNTED], "n", "Neg#1")], {"n": 2**40})


def test_rows_that_are_too_long_for_any_number_of_them() -> None:
    """Halide had folded the constants in 32 bits: OCC0403."""
    model = model_of(
        "g (float[n, 4294967296] x) => (float[n] y) { y = ReduceSum<keepdims = 0>(x, axes) }", {"axes": np.array([1])}
    )
    with pytest.raises(CompileError, match=r"OCC0309.*4294967296 elements"):
        occ.compile(model, "cpu")
