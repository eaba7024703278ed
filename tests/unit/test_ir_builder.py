"""The builder of LLVM IR folds what it knows, with the wrapping arithmetic of LLVM, and keeps what it does not."""

from __future__ import annotations

import pytest
from building import model_of
from llvmlite import ir

from occ.compiler.codegen_llvm.build import emit_module
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.native_entry.builder import Builder, number
from occ.compiler.native_entry.types import I1, I8, I64

LEAST, GREATEST = -(2**63), 2**63 - 1


@pytest.fixture
def fn() -> ir.Function:
    return ir.Function(ir.Module(), ir.FunctionType(I64, [I64, I1]), "f")


@pytest.mark.parametrize(
    ("op", "x", "y", "expected"),
    [
        ("add", 3, 4, 7),
        ("add", GREATEST, 1, LEAST),
        ("sub", 3, 4, -1),
        ("sub", LEAST, 1, GREATEST),
        ("mul", 2**62, 2, LEAST),
        ("mul", 2**64 - 1, 5, -5),  # te writes -1 as the bits of it
    ],
)
def test_constants_are_computed(fn: ir.Function, op: str, x: int, y: int, expected: int) -> None:
    b = Builder(fn.append_basic_block())
    assert number(getattr(b, op)(I64(x), I64(y))) == expected
    assert not b.block.instructions


def test_narrow_constants_wrap_at_their_width(fn: ir.Function) -> None:
    assert number(Builder(fn.append_basic_block()).add(I8(127), I8(1))) == -128


def test_comparisons_of_constants_are_signed(fn: ir.Function) -> None:
    b = Builder(fn.append_basic_block())
    assert b.icmp_signed("<", I64(2**64 - 1), I64(0)).constant == 1
    assert b.icmp_signed(">=", I64(2**64 - 1), I64(0)).constant == 0


def test_neutral_operands_leave_the_other(fn: ir.Function) -> None:
    b, (x, holds) = Builder(fn.append_basic_block()), fn.args
    assert b.add(x, I64(0)) is b.add(I64(0), x) is b.sub(x, I64(0)) is b.mul(x, I64(1)) is b.mul(I64(1), x) is x
    assert number(b.mul(x, I64(0))) == number(b.mul(I64(0), x)) == 0
    assert b.and_(holds, I1(1)) is b.and_(I1(1), holds) is b.or_(holds, I1(0)) is b.or_(I1(0), holds) is holds
    assert b.and_(holds, I1(0)).constant == 0
    assert b.or_(I1(1), holds).constant == 1
    assert b.select(I1(1), x, I64(5)) is x
    assert number(b.select(I1(0), x, I64(5))) == 5
    assert not b.block.instructions


def test_what_is_not_known_is_left_to_the_run(fn: ir.Function) -> None:
    b, (x, holds) = Builder(fn.append_basic_block()), fn.args
    unknown = ir.Constant(I64, ir.Undefined)
    made = [b.add(x, I64(1)), b.sub(I64(0), x), b.mul(unknown, I64(2)), b.icmp_signed("<", x, I64(0))]
    made += [b.select(holds, x, I64(0)), b.and_(holds, holds), b.sub(x, x)]
    assert b.block.instructions == made


@pytest.mark.parametrize(("elements", "loops"), [(1, False), (20, False), (40, True)])
def test_a_kernel_loops_where_one_step_is_not_enough(elements: int, loops: bool) -> None:
    """Of 16 lanes: one element, a vector and a rest, two vectors and a rest."""
    model = model_of(f"g (float[{elements}] x) => (float[{elements}] y) {{ y = Relu(x) }}")
    m = Compilation(model, Settings("cpu-jit")).advance("lowered")
    machine = CodeMachine("x86-64-linux", "x86_64-unknown-linux-gnu", "x86-64", "", 512)
    assert ("br " in str(emit_module(m.te.values(), machine))) == loops
