"""Modules change through the rewriter and the module only, so that uses, locations and statistics stay right."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import occ.compiler
from occ.compiler.frontend.text import parse
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.verify import problems

COMPILER = Path(occ.compiler.__file__).parent

TEXT = """module @m {stage="inferred"} {
  func @main(%x: f32[2]) -> f32[2] as "out" {
    %a = Neg(%x) : f32[2] loc("first")
    %b = Abs(%a) : f32[2] loc("second")
    %y = Add(%a, %b) : f32[2] loc("third")
    return %y
  }
}"""


def direct(source: str) -> list[str]:
    """What in a source changes operands, uses or weights past the rewriter and the module."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(f := node.func, ast.Attribute):
            owner = f.value.attr if isinstance(f.value, ast.Attribute) else ""
            if f.attr in ("set_operand", "set_operands") or owner == "uses" or (owner, f.attr) == ("weights", "pop"):
                found.append(f"line {node.lineno}: {ast.unparse(f)}")
        if isinstance(node, ast.Delete) and any("weights[" in ast.unparse(t) for t in node.targets):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_nothing_outside_of_the_ir_changes_operands_itself():
    files = [p for p in COMPILER.rglob("*.py") if p.relative_to(COMPILER).parts[0] != "ir"]
    assert len(files) > 100
    assert {str(p): found for p in files if (found := direct(p.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    ["op.set_operand(0, x)", "a.b.set_operands(())", "m.weights.pop(w.name)", "del m.weights['w']", "v.uses.clear()"],
)
def test_a_direct_change_is_found(source):
    assert direct(source) != []


def test_replace_uses_leaves_the_readers_that_stay():
    m = parse(TEXT)
    a, b, y = m.main.body.body
    a.result.replace_uses(m.main.args[0], outside=[b])
    assert b.operands == (a.result,)
    assert y.operands == (m.main.args[0], b.result)
    assert not list(problems(m))


def test_exchange_moves_readers_and_keeps_the_names():
    m = parse(TEXT)
    a, b, y = m.main.body.body
    made = Op("Exp", b.operands, {}, [b.result.type], result_names=["e"])
    assert Rewriter(m).exchange(b, made) is made
    assert m.main.body.body == [a, made, y]
    assert y.operands == (a.result, made.result)
    assert (made.result.name, b.operands) == ("e", ())
    assert not list(problems(m))


def test_exchange_leaves_a_region_that_the_new_op_took_over():
    m = parse(TEXT)
    _, b, _ = m.main.body.body
    body = Region([b.result.type], ["p"])
    inner = body.insert(Op("Neg", body.args, {}, [b.result.type]))
    body.insert(Op("yield", inner.results, {}, ()))
    rw = Rewriter(m)
    fused = rw.exchange(b, Op("fuse", b.operands, {"kind": "k"}, [b.result.type], regions=[body]))
    again = rw.exchange(fused, Op("fuse", fused.operands, {"kind": "k"}, [b.result.type], regions=fused.regions))
    assert again.regions == (body,)
    assert inner.operands == tuple(body.args)
    assert body.yields == inner.results


def test_move_keeps_the_order_and_map_operands_the_rest():
    m = parse(TEXT)
    a, b, y = m.main.body.body
    rw, body = Rewriter(m), Region([a.result.type], ["p"])
    rw.move([b, y], body)
    for op in (b, y):
        rw.map_operands(op, {a.result: body.args[0]})
    assert list(body) == [b, y]
    assert (b.parent, m.main.body.body) == (body, [a])
    assert y.operands == (body.args[0], b.result)
    assert not a.result.uses


def two_readers() -> tuple[Module, list[Op]]:
    m = parse(TEXT)
    w = m.add_weight("w", np.zeros(2, np.float32))
    readers = m.main.body.body[1:]
    for op in readers:
        op.set_operand(0, w)
    return m, readers


def test_exchange_weight_forgets_the_old_one():
    m, readers = two_readers()
    new = m.add_weight("new", np.ones(2, np.float32))
    m.exchange_weight(m.weights["w"], new)
    assert list(m.weights) == ["new"]
    assert all(op.operands[0] is new for op in readers)


def test_a_weight_that_is_still_read_stays():
    m, (first, second) = two_readers()
    w = m.weights["w"]
    first.set_operand(0, m.main.args[0])
    m.release_weight(w)
    assert m.weights == {"w": w}
    second.set_operand(0, m.main.args[0])
    m.release_weight(w)
    assert m.weights == {}
