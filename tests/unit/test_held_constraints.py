"""Equalities of sizes that hold in a function: those that every caller of it has checked."""

from __future__ import annotations

from occ.compiler.frontend.text import parse

TEXT = """module @m {stage="inferred"} {
  dim n "n"
  dim k "k"
  constraint n + k == 8 "outer"
  constraint n == 2*k "inner" in @once
  func @deep(%x: f32[n]) -> (f32[n]) {
    %y = Neg(%x) : f32[n]
    return %y
  }
  func @once(%c: bool[], %x: f32[n]) -> (f32[n]) {
    %y = If(%c, %x) {captures=1, else_branch=@deep, then_branch=@deep} : f32[n]
    return %y
  }
  func @main(%c: bool[], %x: f32[n], %z: f32[k]) -> (f32[n]) as "y" {
    %y = If(%c, %c, %x) {captures=2, else_branch=@twice, then_branch=@once} : f32[n]
    return %y
  }
  func @twice(%c: bool[], %x: f32[n]) -> (f32[n]) {
    %y = If(%c, %x) {captures=1, else_branch=@deep, then_branch=@deep} : f32[n]
    return %y
  }
}
"""


def test_callers() -> None:
    held = {name: [c.node for c in found] for name, found in parse(TEXT).held_constraints().items()}
    assert held["main"] == ["outer"]
    assert held["once"] == ["inner", "outer"]
    assert held["twice"] == ["outer"]
    assert held["deep"] == ["outer"]  # of its two callers only one knows the other
