"""Loops of `cpu-jit`."""

from occ.compiler.codegen_llvm.loop_plan import plan_loops
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, Select, literal
from occ.compiler.ir.te.function import TeStage


def test_parts_that_a_condition_shares_are_visited_once() -> None:
    """A position that is doubled 60 times has 61 parts, and 2**60 paths to them."""
    doubled: Expr = Index("i")
    for _ in range(60):
        doubled = doubled + doubled
    term = Select(Index("r") <= doubled, Load("x", (Index("r"),), F32), literal(0.0, F32))
    s = TeStage("y", (Axis("i", 64),), Reduce("sum", (Axis("r", 64),), term, F32))
    machine = CodeMachine("x86-64-linux", "x86_64-unknown-linux-gnu", "x86-64", "", 512)
    assert plan_loops(s, {"x": (64,)}, machine).vector == "i"
