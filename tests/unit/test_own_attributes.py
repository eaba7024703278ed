"""The compiler's own operators state their attributes; texts and passes that write others get an error that names them."""

from __future__ import annotations

import pytest

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import load_module
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.verify import problems

TEXT = """module @m {stage="lowered", target="cpu"} {
  func @main(%x: f32[64]) -> f32[64] as "y" {
    %y = alloc() {output=0} : f32[64]
    kernel(%x, %y) {te="f", writes=1}
    return %y
  }
  te @f[](%p0: f32[64]) -> (y: f32[64]) {
    y[a<64] = %p0[a]
  }
}
"""
WRONG = [
    ("output=0", "outptu=0", "line 3: `alloc` has no attribute `outptu`; there are: `first`, `last`, `offset`, `output`"),
    ("output=0", 'output="0"', "line 3: `alloc` has `output=0`, which is not an int"),
    ("output=0", "output=0, bananas=3", "line 3: `alloc` has no attribute `bananas`"),
    ('te="f", writes=1', "writes=1", "line 4: `kernel` has no `te`"),
    ('te="f", writes=1', 'te="f", writes=1, dims=[1.5]', "line 4: `kernel` has `dims=(1.5,)`, which is not a list of sizes"),
]  # fmt: skip


def test_what_is_stated_is_read() -> None:
    load_module(TEXT)


@pytest.mark.parametrize(("right", "wrong", "message"), WRONG, ids=[w for _, w, _ in WRONG])
def test_a_wrong_attribute_in_a_text_is_an_error_with_its_line(right: str, wrong: str, message: str) -> None:
    with pytest.raises(CompileError, match="OCC0601") as e:
        load_module(TEXT.replace(right, wrong))
    assert message in str(e.value)


def test_the_verifier_finds_what_a_pass_writes() -> None:
    m = load_module(TEXT)
    assert list(problems(m)) == []
    alloc = m.main.body.body[0]
    alloc.attrs["outptu"] = alloc.attrs.pop("output")
    (found,) = problems(m)
    assert found.startswith("%y = alloc() {outptu=0}")
    assert "has no attribute `outptu`" in found


def test_every_operator_of_the_compiler_states_its_attributes() -> None:
    assert [s.name for s in builtin().values() if s.is_internal and s.own_attributes is None] == []
