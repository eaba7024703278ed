"""Directives of texts that do not exist, or on what is not there, are errors that name the function and the line."""

from __future__ import annotations

import pytest

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import load_module
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.te.stage_schedule import StageSchedule

TEXT = """module @m {stage="scheduled", target="cpu"} {
  func @main(%x: f32[64,64]) -> f32[64,64] as "y" {
    %y = call(%x) {te="f"} : f32[64,64]
    return %y
  }
  te @f[](%p0: f32[64,64]) -> (y: f32[64,64]) {
    acc[i<64, j<64] = sum[r<64](%p0[i, r])
    y[a<64, b<64] = acc[a, b]
    schedule {
      y.split(b, bo, bi, 16)
      y.vectorize(bi)
      acc.compute_at(y, bo)
      acc.update.reorder(j, r, i)
      DIRECTIVE
    }
  }
}
"""
WRONG = [
    ("y.vectorise(bi)", "is not a call of a schedule"),
    ("y.split(nowhere, c, d, 4)", "has nowhere where it takes a loop"),
    ("y.split(b, c, d, 4)", "has b where it takes a loop"),
    ("y.split(a, bi, d, 4)", "has bi where it takes a new loop"),
    ("y.split(a, c, d, 0)", "has 0 where it takes a number"),
    ("y.split(a, c, d)", "takes a loop, a new loop, a new loop, a number or a size of at least 1, a tail"),
    ("y.split(a, c, d, dim<N//2>)", "has N//2 where it takes a number or a size of at least 1"),
    ("y.split(a, c, d, 4, Guard)", "has Guard where it takes a tail"),
    ("y.reorder()", "takes a loop"),
    ("y.compute_root(a)", "takes nothing"),
    ("z.compute_root()", "schedules z, which is not a stage"),
    ("acc.compute_at(z, a)", "has z where it takes another stage"),
    ("acc.compute_at(y, b9)", "has b9 where it takes a loop of that stage"),
    ("acc.unroll(r)", "has r where it takes a loop"),
    ("acc.fetch_ahead(w, 64)", "has w where it takes a parameter"),
    ("acc.fetch_beyond(w, 64)", "has w where it takes a parameter"),
    ("acc.fetch_beyond(p0, 0)", "has 0 where it takes a number"),
]


@pytest.mark.parametrize(
    "right", ["", "acc.update.unroll(r, 4)", "y.parallel(a)", "acc.fetch_ahead(p0, 64)", "acc.fetch_beyond(p0, 64)"]
)
def test_directives_are_read(right):
    load_module(TEXT.replace("DIRECTIVE", right))


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_directive_is_an_error(wrong, message):
    with pytest.raises(CompileError, match="OCC0601") as e:
        load_module(TEXT.replace("DIRECTIVE", wrong))
    assert f"te @f, line 14: `{wrong}` {message}" in str(e.value)


def test_a_size_that_a_run_decides_is_read_back():
    text = TEXT.replace("DIRECTIVE", "y.split(a, c, d, dim<max(1, 30//N)>, GuardWithIf)")
    text = text.replace("f32[64,64]", "f32[N,64]").replace("<64, b<64", "<N, b<64").replace("i<64", "i<N")
    text = text.replace("@f[]", "@f[N]").replace('te="f"', 'te="f", dims=[dim<N>]')
    m = load_module(text.replace("  func", '  dim N "N" [1, inf]\n  func'))
    assert "y.split(a, c, d, dim<max(1, 30//N)>, GuardWithIf)" in module_text(m)
    assert module_text(load_module(module_text(m))) == module_text(m)


def test_rules_cannot_write_what_does_not_exist():
    with pytest.raises(AttributeError, match="schedules have no `vectorise`"):
        StageSchedule(load_module(TEXT.replace("DIRECTIVE", "")).te["f"].stages[-1]).vectorise("i")
