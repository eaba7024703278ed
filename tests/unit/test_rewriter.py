"""The rewriter keeps uses, names and locations, and notices rules that undo each other."""

from __future__ import annotations

import pytest

from occ.compiler.frontend.text import parse
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.ir.verify import problems

TEXT = """module @m {stage="inferred"} {
  func @main(%x: f32[2]) -> f32[2] as "out" {
    %a = Neg(%x) : f32[2] loc("first")
    %b = Neg(%a) : f32[2] loc("second")
    %y = Add(%b, %b) : f32[2] loc("third")
    return %y
  }
}"""


def test_replace_moves_uses_names_and_locations():
    m = parse(TEXT)
    a, b, y = m.main.body.body
    rw = Rewriter(m)
    new = rw.builder(b).Abs(a.result)
    rw.replace(b, [new])
    assert [v.defining_op.name for v in y.operands] == ["Abs", "Abs"]
    assert new.name == "b"
    assert new.defining_op.loc.nodes == ("second",)
    assert not list(problems(m))
    assert b.parent is None
    assert a.result.users == [new.defining_op]


def test_replacing_by_an_older_op_names_both_nodes():
    m = parse(TEXT)
    a, b, _ = m.main.body.body
    Rewriter(m).replace(b, [a.result])
    assert a.loc.nodes == ("first", "second")
    assert not list(problems(m))


def test_replacing_by_an_argument_leaves_its_name():
    m = parse(TEXT)
    a, _, _ = m.main.body.body
    Rewriter(m).replace(a, m.main.args)
    assert m.main.args[0].name == "x"
    assert "Neg(%x)" in module_text(m)


def test_an_op_that_is_read_cannot_be_erased():
    m = parse(TEXT)
    with pytest.raises(AssertionError, match="is still read"):
        Rewriter(m).erase(m.main.body.body[0])


def double_neg(op, rw):
    inner = op.operands[0].defining_op
    if inner is None or inner.name != "Neg":
        return False
    rw.replace(op, [inner.operands[0]])
    return True


def test_apply_runs_to_the_end_and_counts():
    m = parse(TEXT)
    rw = Rewriter(m)
    assert rw.apply({"Neg": (double_neg,)}) == 1
    assert rw.hits == {"double_neg": 1}
    assert [op.name for op in m.main.body.body] == ["Neg", "Add"]
    assert erase_dead(m) == 1
    assert not list(problems(m))


def test_rules_that_undo_each_other_are_noticed():
    def to_abs(op, rw):
        rw.replace(op, [rw.builder(op).Abs(op.operands[0])])
        return True

    def to_neg(op, rw):
        rw.replace(op, [rw.builder(op).Neg(op.operands[0])])
        return True

    m = parse(TEXT)
    with pytest.raises(AssertionError, match="do not terminate"):
        Rewriter(m).apply({"Neg": (to_abs,), "Abs": (to_neg,)})
