"""Rule files of users: rules that do not hold for every type, and why a rule does not match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from building import model_of

import occ

RULES = """
import occ

@occ.rewrite
def hard_swish(p, x):
    return p.Mul(x, p.Div(p.Clip(p.Add(x, 3.0), 0.0, 6.0), 6.0))

@hard_swish.into
def _(b, x):
    return b.HardSwish(x)

@occ.rewrite
def halves(p, x):
    return p.Div(p.Add(x, x), 4.0)

@halves.into
def _(b, x):
    return b.Div(x, 2.0) if x.type.dtype.is_float else b.Add(x, x)
"""


def test_a_rule_to_an_operator_of_floats_is_not_tried_on_integers(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("rules.py").write_text(RULES)
    ran = occ_cli("check-rules", "rules.py")
    assert ran.code == 5
    assert "ok        hard_swish" in ran.out
    assert "WRONG     halves" in ran.out
    assert "is_float" in ran.out, "how to restrict a rule to floats is said"
    text = (
        "g (int32[4] x) => (int32[4] y) { three = Constant <value = int32 {3}> ()  six = Constant <value = int32 {6}> ()"
        " zero = Constant <value = int32 {0}> ()  a = Add(x, three)  c = Clip(a, zero, six)  d = Div(c, six)  y = Mul(x, d) }"
    )
    Path("i.onnx").write_bytes(model_of(text).SerializeToString())
    x = np.int32([-5, 0, 4, 9])
    got = occ.compile("i.onnx", "cpu-jit", rules=["rules.py"]).run({"x": x})["y"]
    np.testing.assert_array_equal(got, x * (np.clip(x + 3, 0, 6) // 6))


def test_why_answers_about_the_value_that_was_asked_for(tmp_path, monkeypatch, occ_cli):
    """`%a` and `%b` feed the same Add; the rule takes `%b` alone."""
    monkeypatch.chdir(tmp_path)
    Path("rules.py").write_text("import occ\n@occ.fusion\ndef gated(p, x, y):\n    return p.Relu(x) + y\n")
    text = "g (float[2] x) => (float[2] y) { a = Exp(x)  b = Relu(x)  y = Add(b, a) }"
    Path("g.onnx").write_bytes(model_of(text).SerializeToString())
    asked = {v: occ_cli("rules", "g.onnx", "--rules", "rules.py", "--why", v, "-t", "cpu-jit").out for v in "ab"}
    assert "gated (fusion): matches" in asked["b"]
    assert "matches" not in asked["a"].replace("does not match", "")
