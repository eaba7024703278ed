"""The verifier notices every way in which a module can be broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from occ.compiler.frontend.text import parse
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.stages import BY_NAME
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.verify import problems

TEXT = """module @m {stage="inferred"} {
  weight @w : f32[3] = dense<1.0, 2.0, 3.0>
  func @main(%x: f32[2,3]) -> f32[2,3] as "y" {
    %a = Add(%x, @w) : f32[2,3]
    %y = Relu(%a) : f32[2,3]
    return %y
  }
}"""


def ops(m: Module) -> list[Op]:
    return m.main.body.body


def wrong_type(m: Module) -> None:
    ops(m)[1].result.type = TensorType(ops(m)[1].result.tensor.dtype, (2, 4))


def no_type(m: Module) -> None:
    ops(m)[1].result.type = None


def reversed_order(m: Module) -> None:
    first = ops(m)[0]
    m.main.body.remove(first)
    m.main.body.insert(first, m.main.body.terminator)


def lost_use(m: Module) -> None:
    ops(m)[0].result.uses.clear()


def foreign_weight(m: Module) -> None:
    del m.weights["w"]


def renamed_weight(m: Module) -> None:
    m.weights["w"].name = "v"


def reshaped_weight(m: Module) -> None:
    m.weights["w"].data = np.zeros((4,), np.float32)


def no_yield(m: Module) -> None:
    end = m.main.body.terminator
    end.set_operands(())
    m.main.body.remove(end)


BREAKS: list[tuple[Callable[[Module], None], str]] = [
    (wrong_type, "is inferred as f32[2,3]"),
    (no_type, "has a result without a type"),
    (reversed_order, "not defined before it"),
    (lost_use, "is not in the uses"),
    (foreign_weight, "not in the module"),
    (renamed_weight, "calls itself @v"),
    (reshaped_weight, "holds (4,)"),
    (no_yield, "does not end with yield"),
]


def test_a_good_module_verifies():
    assert list(problems(parse(TEXT))) == []


@pytest.mark.parametrize(("break_", "message"), BREAKS, ids=lambda b: getattr(b, "__name__", ""))
def test_a_broken_module_is_noticed(break_, message):
    m = parse(TEXT)
    break_(m)
    assert any(message in p for p in problems(m))


INVARIANTS = [
    ("canonical", "%a = Identity(%x) : f32[2]\n return %a", "does nothing"),
    ("canonical", "%a = Relu(%x) : f32[2]\n return %x", "is dead"),
    ("scheduled", "%a = Relu(%x) : f32[2]\n return %a", "is not lowered to te"),
    ("lowered", "%a = Relu(%x) : f32[2]\n return %a", "is not a step of a plan"),
]


@pytest.mark.parametrize(("stage", "body", "message"), INVARIANTS)
def test_the_invariant_of_a_stage_is_checked(stage, body, message):
    m = parse(f'module @m {{stage="{stage}"}} {{ func @main(%x: f32[2]) -> f32[2] as "y" {{ {body} }} }}')
    assert any(message in p for p in BY_NAME[stage].check(m))
