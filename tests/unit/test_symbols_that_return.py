"""A symbol that was replaced may come back: its name must be taken then."""

from __future__ import annotations

from occ.compiler.ir.module import Module


def test_a_symbol_that_comes_back_keeps_its_name() -> None:
    m = Module("m")
    first = m.fresh_symbol("_u0", label="?")
    second = m.fresh_symbol("_u0", label="?")
    m.substitute({str(first): second})
    m.substitute({str(second): first})
    assert m.symbols[str(first)].label == "?"
    assert str(m.fresh_symbol("_u0", label="?")) != str(first)
