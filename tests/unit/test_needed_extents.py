"""What a te body needs of its operands, read off its loads."""

from __future__ import annotations

import pytest

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import assume_within
from occ.compiler.ir.dim import Dim, symbol
from occ.compiler.ir.dtype import F32, I64
from occ.compiler.ir.shape import Assumed, collecting
from occ.compiler.ir.te.expr import Index, Reduce, cast, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.required_extents import needed
from occ.compiler.ir.types import TensorType

N, M = symbol("n", 1), symbol("m", 1)


def operand(*dims: Dim, name: str = "x", dtype=F32) -> Tensor:
    return Tensor(name, TensorType(dtype, dims))


def found(t: Builder, *operands: Tensor) -> list[str]:
    return [
        f"{n.source} {n.axis}: {n.first} to {n.last} of {n.extent}"
        for n in needed(t.stages, {x.name: x.shape for x in operands})
    ]


def test_what_fits_needs_nothing() -> None:
    t, x = Builder(), operand(N, 4)
    t.map((N, 4), lambda i, j: x[i, j] + x[i, 3 - j] + x[i, j // 2] + x[wrap(0), wrap(3)])
    assert found(t, x) == []


def test_ends_of_what_indices_reach() -> None:
    t, x = Builder(), operand(N, M)
    t.map((N, 3), lambda i, j: x[i * 2 + 1, j])
    assert found(t, x) == ["x 0: 1 to 2*n - 1 of n", "x 1: 0 to 2 of m"]


def test_positions_before_the_first() -> None:
    t, x = Builder(), operand(N)
    t.map((N,), lambda i: x[i - 1])
    assert found(t, x) == ["x 0: -1 to n - 2 of n"]


def test_reductions_read_their_axes() -> None:
    t, x = Builder(), operand(N, 4)
    t.sum((N,), [5], lambda i, k: x[i, k])
    assert found(t, x) == ["x 1: 0 to 4 of 4"]


def test_stages_are_operands_of_later_ones() -> None:
    t, x = Builder(), operand(N)
    a = t.map((N,), lambda i: x[i] * 2.0, name="a")
    t.map((M,), lambda i: a[i])
    assert found(t, x) == ["a 0: 0 to m - 1 of n"]


def test_sides_of_choices_may_be_anywhere_but_their_reductions() -> None:
    t, x = Builder(), operand(N)
    inner = t.axes([5], "r")
    t.map((N,), lambda i: where(i < 3, x[i + 7], x[i]))
    assert found(t, x) == []
    t.map((N,), lambda i: where(i < 3, Reduce("sum", inner, x[Index(inner[0].name)], F32), x[i]))
    assert found(t, x) == ["x 0: 0 to 4 of n"]


def test_indices_of_the_data_and_of_one_axis_twice_are_left_to_others() -> None:
    t, x, i64 = Builder(), operand(N), operand(N, name="at", dtype=I64)
    t.map((N,), lambda i: x[i64[i]] + x[cast(I64, x[i])] + x[i + i])
    assert found(t, x, i64) == []


def test_boxes_without_positions_read_nothing() -> None:
    t, x = Builder(), operand(2)
    t.map((0, 7), lambda i, j: x[j])
    assert found(t, x) == []


def test_what_is_not_proven_is_assumed_once() -> None:
    t, x = Builder(), operand(N)
    t.map((M,), lambda i: x[i] + x[i // 1])
    pairs: list[Assumed] = []
    with collecting(pairs):
        assume_within("Test", t.stages, {"x": x.shape})
    assert [(str(p.a), str(p.b)) for p in pairs] == [("max(m, n)", "n")]
    equal = [Assumed(M, N)]
    with collecting(equal):
        assume_within("Test", t.stages, {"x": x.shape})
    assert len(equal) == 1


def test_what_surely_is_not_there_is_refused() -> None:
    t, x = Builder(), operand(N, 4)
    t.map((N, 5), lambda i, j: x[i, j])
    with pytest.raises(Invalid, match="`Test` reads position 4 of 4 along axis 1 of `x`"):
        assume_within("Test", t.stages, {"x": x.shape})
