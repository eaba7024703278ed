"""Ops with equal attributes, on operands of equal types and values, are inferred once."""

from __future__ import annotations

import numpy as np

from occ.compiler.ir.builder import infer_results
from occ.compiler.ir.dim import symbol
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.shape import Assumed, collecting
from occ.compiler.ir.types import TensorType


def values(*shapes) -> list[Value]:
    """Values of these shapes, each a new one."""
    return Region([TensorType(F32, s) for s in shapes], [f"x{k}" for k in range(len(shapes))]).args


def test_a_second_equal_op_is_not_inferred_again(monkeypatch):
    spec, calls = builtin()["MatMul"], []
    infer = spec.body

    def counted(*args, **named):
        calls.append(args)
        return infer(*args, **named)

    monkeypatch.setattr(spec, "body", counted)
    for shape in [(2, 117), (2, 117), (3, 117)]:
        (found,) = infer_results(Op("MatMul", values(shape, (117, 5))))
        assert found == TensorType(F32, (shape[0], 5))
    assert len(calls) == 2


def test_the_assumptions_of_each_op_are_found():
    n, m = symbol("N"), symbol("M")
    found: list[list[Assumed]] = [[], []]
    for pairs in found:
        with collecting(pairs):
            infer_results(Op("MatMul", values((2, n), (m, 5))))
    assert found[0] == found[1] != []
    assert infer_results(Op("MatMul", values((2, n), (m, 5)))) == (TensorType(F32, (2, 5)),)


def test_values_of_operands_and_attributes_decide():
    x = values((6, 4))[0]
    shapes = [infer_results(Op("Reshape", [x, Weight("s", np.array(s))])) for s in ([24], [2, 12], [24])]
    assert [t.dims for (t,) in shapes] == [(24,), (2, 12), (24,)]
    assert [infer_results(Op("Transpose", [x], {"perm": p}))[0].dims for p in ((0, 1), (1, 0))] == [(6, 4), (4, 6)]


def test_bounds_of_a_size_decide():
    """Sizes of one name are different ones if their bounds are."""
    for least in (1, 2):
        n = symbol("N", least)
        ((d,),) = [t.dims for t in infer_results(Op("Reshape", [*values((n,)), Weight("s", np.array([-1]))]))]
        assert d == n
