"""Texts whose types or plan do not hold are refused when they are read: native code believes what they say."""

from __future__ import annotations

import numpy as np
import pytest

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, load_module
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.runtime.errors import RunError

PLAN = """module @m {stage="lowered", target="cpu-jit"} {
  dim N "batch" [1, 8]
  weight @w : f32[4] = dense<1.0, 2.0, 3.0, 4.0>
  func @main(%x: f32[N,4]) -> f32[N,4] as "y" {
    %a = alloc() {first=0, last=1} : f32[N,4]
    kernel(%x, @w, %a) {dims=[dim<N>], te="k", writes=1}
    %v = view(%a) : f32[4*N]
    %b = view(%v) : f32[N,4]
    %y = alloc() {output=0} : f32[N,4]
    kernel(%b, @w, %y) {dims=[dim<N>], te="k", writes=1}
    return %y
  }
  te @k[D](%p: f32[D,4], %q: f32[4]) -> (r: f32[D,4]) {
    r[i<D, j<4] = %p[i, j] + %q[j]
  }
}
"""
FIXED = """module @m {stage="lowered", target="cpu-jit"} {
  func @main(%x: f32[4]) -> f32[4] as "y" {
    %a = alloc() {first=0, last=1, offset=0} : f32[4]
    kernel(%x, %a) {te="k", writes=1}
    %b = alloc() {first=1, last=2, offset=64} : f32[4]
    kernel(%a, %b) {te="k", writes=1}
    %y = alloc() {output=0} : f32[4]
    kernel(%b, %y) {te="k", writes=1}
    return %y
  }
  te @k[](%p: f32[4]) -> (r: f32[4]) {
    r[i<4] = %p[i] + 1.0
  }
}
"""
OUTPUTS = """module @m {stage="lowered", target="cpu-jit"} {
  func @main(%x: f32[4]) -> (f32[4], f32[2,2]) as "y", "z" {
    %y = alloc() {output=0} : f32[4]
    kernel(%x, %y) {te="k", writes=1}
    %a = alloc() {output=1} : f32[4]
    kernel(%y, %a) {te="k", writes=1}
    %z = view(%a) : f32[2,2]
    return %y, %z
  }
  te @k[](%p: f32[4]) -> (r: f32[4]) {
    r[i<4] = %p[i] + 1.0
  }
}
"""
COPIES = """module @m {stage="lowered", target="cpu-jit"} {
  func @main(%x: f32[4]) -> f32[4] as "y" {
    %y = alloc() {output=0} : f32[4]
    host(%x, %y) {writes=1, routine="copy"}
    return %y
  }
}
"""
GUARDED = PLAN.replace("%q[j]", "(j < 2 ? %q[j + 2] : 0.0) + %q[min(j + 3, 3)] + %q[(i*4 + j) % 4]")
SCALAR = FIXED.replace("%p[i] + 1.0", "sum[](%p[i]) + 1.0")  # over no axes, as of a scalar
CODES = FIXED.replace("f32[4]) -> (r", "u4[4]) -> (r").replace("%p[i] +", "cast<f32>(%p[i]) +").replace("%x: f32", "%x: u8").replace(
    "kernel(%a, %b)", "kernel(%x, %b)"
).replace("kernel(%b, %y)", "kernel(%x, %y)")  # fmt: skip
BROKEN = [
    (PLAN, "f32[N,4]\n    kernel(%x", "f32[N,3]\n    kernel(%x", "reaches past the end of %a"),
    (PLAN, "f32[N,4]\n    kernel(%x", "f32[M,4]\n    kernel(%x", "has the size M, which is not declared"),
    (PLAN, "f32[N,4]\n    kernel(%x", "f64[N,4]\n    kernel(%x", "which is f64"),
    (PLAN, "dims=[dim<N>], te=\"k\", writes=1}\n    %v", "dims=[dim<N + 1>], te=\"k\", writes=1}\n    %v", "past the end of"),
    (PLAN, "dims=[dim<N>], te=\"k\", writes=1}\n    %v", "te=\"k\", writes=1}\n    %v", "does not fit te @k"),
    (PLAN, ": f32[4*N]", ": f32[5*N]", "reaches past the end of %a"),
    (PLAN, "view(%v) :", "view(%v) {start=1} :", "reaches past the end of %a"),
    (PLAN, "view(%v) :", "view(%v) {start=-4} :", "starts before its storage"),
    (PLAN, "kernel(%b, @w, %y)", "kernel(%y, %b, @w)", "@w, which is not its own"),
    (PLAN, "kernel(%b, @w, %y)", "kernel(%b, @w, %x)", "%x, which is not its own"),
    (PLAN, "writes=1}\n    return", "writes=9}\n    return", "does not fit te @k"),
    (PLAN, "output=0", "output=3", "is output 3 of 1"),
    (FIXED, "offset=64} : f32[4]", "offset=64} : f32[4,9223372036854775807]", "more bytes than native code can count"),
    (FIXED, "offset=64}", "offset=9223372036854775807}", "more bytes than native code can count"),
    (PLAN, "f32[N,4]\n    kernel(%x", "f32[N,4,4611686018427387904]\n    kernel(%x", "more bytes than native code"),
    (FIXED, "%p[i] + 1.0", "i < 2 ? sum[k<3](%p[i + k]) : 1.0", "reads p at 4 of 4"),
    (OUTPUTS, "output=1", "output=0", "does not begin with output 0, %y"),
    (OUTPUTS, "return %y, %z", "return %y, %x", "does not begin with output 1, %x"),
    (OUTPUTS, "view(%a) : f32[2,2]", "view(%a) {start=2} : f32[1,2]", "does not begin with output 1, %z"),
    (OUTPUTS, "view(%a) : f32[2,2]", "view(%a) : f32[1,2]", "reaches past the end of output 1, %z : f32[1,2]"),
    (PLAN, "return %y", "%z = view(%y) : f32[N]\n    return %z", "reaches past the end of output 0, %z : f32[N]"),
    (PLAN, "last=1", "last=0", "is used from step 0 to step 1"),
    (PLAN, "first=0, last=1", "first=0", "does not define its first and last step"),
    (FIXED, "offset=64", "offset=-64", "lies at -64"),
    (FIXED, "offset=64", "offset=8", "have the same bytes at the same time"),
    (FIXED, ", offset=64", "", "has no offset, but others have one"),
    (PLAN, "i<D, j<4", "i<D, j<5", "computes [1, 5] for the result r : f32[D,4]"),
    (PLAN, "%q[j]", "%q[j + 1]", "r reads q at 4 of 4 along its axis 0"),
    (PLAN, "%q[j]", "%q[i]", "r reads q at 4 of 4 along its axis 0"),
    (PLAN, "%q[j]", "%q[j - 1]", "r reads q at -1 of 4 along its axis 0"),
    (PLAN, "%q[j]", "sum[k<5](%q[k])", "r reads q at 4 of 4 along its axis 0"),
    (PLAN, "%q[j]", "(j < 3 ? %q[j + 2] : 0.0)", "r reads q at 4 of 4 along its axis 0"),
    (PLAN, "%q[j]", "%q[j + dim(E)]", "has the size E, which is not one of its dims"),
    (COPIES, "host(%x, %y)", "host(%x, %x, %y)", "copies 2 to 1 tensors"),
    (COPIES, "writes=1", "writes=0", "copies 2 to 0 tensors"),
    (COPIES, "f32[4]\n    host", "f32[3]\n    host", "copies f32[4] to f32[3]"),
    (COPIES, 'routine="copy"', 'captures=9, n_results=1, routine="if"', "fewer than its attributes count"),
    (COPIES, 'routine="copy"', 'n_results=2, routine="nonzero"', "has 2 results, and writes 1"),
    (COPIES, 'routine="copy"', 'captures=0, n_results=1, num_scan_inputs=1, scan_input_axes=[0, 0], routine="scan"', "has scan_input_axes=(0, 0) for 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [PLAN, FIXED, OUTPUTS, COPIES, GUARDED, SCALAR, CODES],
    ids=["sizes", "offsets", "outputs", "copies", "guarded", "scalar", "codes"],
)
def test_a_plan_is_read(text):
    assert load_module(text).stage == "lowered"


@pytest.mark.parametrize(("text", "old", "new", "message"), BROKEN, ids=[b[3] for b in BROKEN])
def test_a_plan_that_leaves_its_memory_is_refused(text, old, new, message):
    assert old in text
    with pytest.raises(CompileError, match="OCC0601") as e:
        load_module(text.replace(old, new))
    assert message in str(e.value)


def test_sizes_at_which_a_kernel_is_looked_at_are_unlike():
    """It runs for no element where c is 1, as it was in each of the evenly spaced samples of the sizes."""
    text = """module @m {stage="lowered", target="cpu-jit"} {
  dim a "a" [1, inf]
  dim b "b" [1, inf]
  dim c "c"
  constraint max(0, c - 1) == c - 1 "n"
  func @main(%x: f32[a,b,c - 1]) -> f32[c - 1] as "y" {
    %y = alloc() {output=0} : f32[c - 1]
    kernel(%x, %y) {dims=[dim<a>, dim<b>, dim<c>], te="k", writes=1}
    return %y
  }
  te @k[A [1, inf], B [1, inf], C](%p: f32[A,B,C - 1]) -> (r: f32[C - 1]) {
    r[i<C - 1] = %p[0, -1, i]
  }
}
"""
    with pytest.raises(CompileError, match="reads p at -1 of"):
        load_module(text)


def test_types_are_inferred_again():
    text = """module @m {stage="inferred"} {
      func @main(%x: f32[1,2,8,8], %w: f32[2,2,3,3]) -> f32[1,2,8,8] as "y" {
        %y = Conv(%x, %w) {pads=[1, 1, PAD, 1]} : f32[1,2,8,8]
        return %y
      }
    }"""
    load_module(text.replace("PAD", "1"))
    with pytest.raises(CompileError, match=r"%y is inferred as f32\[1,2,9,8\]"):
        load_module(text.replace("PAD", "2"))


def test_a_stage_that_does_not_exist_is_an_error():
    with pytest.raises(CompileError, match="`lowred` is not a stage"):
        load_module(PLAN.replace('"lowered"', '"lowred"'))


def test_a_plan_whose_memory_nobody_has_is_an_error_of_its_run():
    text = PLAN.replace("f32[N,4]\n    kernel(%x", "f32[N,4503599627370496]\n    kernel(%x")
    session = open_session(Compilation(load_module(text), Settings("cpu-jit", cache=False)).artifact(), 1)
    with pytest.raises(RunError, match=r"OCC0505.*cannot be allocated"):
        session.run({"x": np.ones((1, 4), np.float32)})


def test_a_size_that_is_divided_by_nothing_is_an_error():
    with pytest.raises(CompileError, match="a size is divided by 0"):
        load_module(PLAN.replace("f32[N,4]\n    kernel(%b", "f32[N//0,4]\n    kernel(%b"))


def test_a_negative_extent_is_an_error_of_its_run():
    text = PLAN.replace("f32[N,4]\n    kernel(%b", "f32[N - 4,4]\n    kernel(%b").replace("dim<N>", "dim<N - 4>")
    session = open_session(Compilation(load_module(text), Settings("cpu-jit", cache=False)).artifact(), 1)
    with pytest.raises(RunError, match="OCC0503"):
        session.run({"x": np.ones((1, 4), np.float32)})


def test_a_check_that_has_no_text_fails_with_its_number():
    text = FIXED.replace(
        "kernel(%b, %y) {te", 'kernel(%b, %f) {checks=["low"], te="f", writes=1}\n    kernel(%b, %y) {te'
    )
    text = text.replace(
        "    %y = alloc", "    %f = alloc() {first=2, last=4, offset=128} : i32[]\n    %y = alloc"
    ).replace("last=2, offset=64", "last=4, offset=64")
    text = text.replace(
        "  te @k",
        "  te @f[](%p: f32[4]) -> (flag: i32[]) {\n    flag[] = max[r<4](%p[r] < 9.0 ? 64_i32 : 1_i32)\n  }\n  te @k",
    )
    session = open_session(Compilation(load_module(text), Settings("cpu-jit", cache=False)).artifact(), 1)
    with pytest.raises(RunError, match="OCC0504"):
        session.run({"x": np.ones(4, np.float32)})


CAPTURES = """module @m {stage="canonical"} {
  func @body(%s: f32[1], %e: f32[1]) -> (f32[1], f32[1]) {
    %a = Max(%s, %e) : f32[1]
    %b = Tanh(%e) : f32[1]
    return %a, %b
  }
  func @main(%x: f32[1], %y: f32[2,1]) -> (f32[1], f32[2,1]) as "v", "w" {
    %v, %w = Scan(%x, %y) {body=@body, captures=0, num_scan_inputs=1} : (f32[1], f32[2,1])
    return %v, %w
  }
}
"""
FUSED = """module @m {stage="fused"} {
  func @main(%x: f32[2,3]) -> f32[2,3] as "y" {
    %y = fuse(%x) {kind="tanh"} : f32[2,3]
      do (%a: f32[2,3]) {
        %b = Tanh(%a) : f32[2,3]
        yield %b
      }
    return %y
  }
}
"""
SIZES = """module @m {stage="inferred"} {
  dim N "n"
  func @main(%x: f32[N]) -> i64[1] as "y" {
    %y = dims() {shape=[1], values=[dim<N>]} : i64[1]
    return %y
  }
}
"""
SHOWN = """module @m {stage="scheduled", target="cpu"} {
  dim N "n"
  func @main(%x: f32[N]) -> f32[N] as "y" {
    return %x
  }
}
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (CAPTURES, "captures=0", "captures=255", "has 255 captures"),
        (FUSED, "%x: f32[2,3]", "%x: f32[2,9]", "passes %x : f32[2,9] to %a : f32[2,3]"),
        (SIZES, "dim<N>", "dim<M>", "has the size M in `values`, which is not declared"),
        (SHOWN, '  dim N "n"\n', "", "@main takes %x : f32[N], whose size N is not declared"),
    ],
    ids=["captures", "fused", "sizes", "shown by an input alone"],
)
def test_an_earlier_stage_that_does_not_hold_is_refused(text, old, new, message):
    load_module(text)
    with pytest.raises(CompileError, match="OCC0601") as e:
        load_module(text.replace(old, new))
    assert message in str(e.value)
