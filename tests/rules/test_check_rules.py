"""`occ check-rules` accepts correct rules, and refutes wrong ones with a counterexample that runs again."""

from pathlib import Path

import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.debugging.check_rules import check_rule, rerun
from occ.compiler.driver.compilation import load_module
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.printer import module_text
from occ.compiler.passes.canonical.canonical_rules import ALL


def rule_of(pattern, into, **how):
    made = occ.rewrite(pattern, name="r", **how)
    made.into(into)
    return made


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_the_own_rewrites_of_the_compiler_are_right(rule) -> None:
    report = check_rule(rule)
    assert report.ok, report.difference and report.difference.text
    assert sum(report.instances.values()) >= 30
    assert len(report.instances) >= 3  # several element types


WRONG = {
    "x * 0 --> 0, with NaN": rule_of(lambda p, x: x * 0.0, lambda b, x: 0.0),
    "Relu(Relu(x) + y) --> Relu(x + y)": rule_of(lambda p, x, y: p.Relu(p.Relu(x) + y), lambda b, x, y: b.Relu(x + y)),
    "a permutation composed the wrong way round": rule_of(
        lambda p, x: p.Transpose(p.Transpose(x, perm=p.bind("a", lambda a: a)), perm=p.bind("b", lambda b: b)),
        lambda b, x, m: b.Transpose(x, perm=tuple(m.b[k] for k in m.a)),
    ),
    "an attribute that the pattern does not name": rule_of(lambda p, x: p.LeakyRelu(x), lambda b, x: b.LeakyRelu(x)),
    "x - y --> y - x": rule_of(lambda p, x, y: x - y, lambda b, x, y: y - x),
    "a strict comparison": rule_of(lambda p, x, y: p.Less(x, y), lambda b, x, y: b.LessOrEqual(x, y)),
    "the bias of a convolution lost": rule_of(
        lambda p, x, w, c: p.Conv(x, w, c, group=1, pads=p.bind("pads"), strides=p.bind("s"), dilations=p.bind("d")),
        lambda b, x, w, pads, s, d: b.Conv(x, w, pads=pads, strides=s, dilations=d),
    ),
    "only integers of one width": rule_of(
        lambda p, x: p.Cast(p.Cast(x, to="i32"), to="f32"), lambda b, x: b.Cast(x, to=F32)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rewrite_is_refuted_and_its_counterexample_runs_again(name, tmp_path: Path) -> None:
    report = check_rule(WRONG[name])
    assert report.difference is not None, report.reason
    file = tmp_path / "counterexample.occ"
    file.write_text(module_text(report.difference.module, inline=True))
    assert rerun(load_module(file)) == report.difference.text
    outputs = occ.compile(file, "interp").run({})
    sides = [v for k, v in outputs.items()]
    assert not np.array_equal(sides[0], sides[1])


def test_a_rule_for_finite_numbers_is_not_checked_on_others() -> None:
    rule = rule_of(lambda p, x: x * 0.0, lambda b, x: 0.0, finite=True)
    assert check_rule(rule).ok


def test_a_rule_can_bring_its_own_operands() -> None:
    rule = rule_of(lambda p, x: p.Abs(p.Abs(x)), lambda b, x: b.Abs(x))
    rule.when(lambda m: m.x.tensor.dims == (7, 11) or m.reject("only for 7 by 11"))
    report = check_rule(rule)
    assert not report.ok
    assert report.reason == "only for 7 by 11"
    rule.sample(lambda rng: {"x": rng.standard_normal((7, 11))})
    assert check_rule(rule).instances == {"f64": 40}


RULES = """
from occ import fusion, rewrite

@rewrite
def zero(p, x):
    return x * 0.0

@zero.into
def _(b, x):
    return 0.0

@fusion
def scale_relu(p, x):
    return p.Relu(x * p.const("k"))

@scale_relu.when
def _(m):
    return m.k.data.size > 1 or m.reject("the factor is one number")
"""


def test_the_command_line_writes_counterexamples_and_explains_refusals(tmp_path: Path, occ_cli) -> None:
    file = tmp_path / "rules.py"
    file.write_text(RULES)
    checked = occ_cli("check-rules", file, "--out", tmp_path)
    assert checked.code == 5
    assert "WRONG     zero" in checked.out
    assert "OCC0613" in checked.out
    assert "ok        scale_relu" in checked.out
    again = occ_cli("check-rules", tmp_path / "zero.counterexample.occ")
    assert again.code == 5
    assert "nan before and 0.0 after" in again.out

    text = "g (float[2,3] x) => (float[2,3] y) { a = Mul(x, k)  y = Relu(a) }"
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(text, {"k": np.array([2.0], np.float32)}).SerializeToString())
    why = occ_cli("rules", path, "--rules", file, "--why", "%y")
    assert "scale_relu (fusion): does not match: the factor is one number" in why.out
    why = occ_cli("rules", path, "--rules", file, "--why", "a")
    assert "zero (rewrite): does not match: the constant @k is not 0.0\n" in why.out
    assert "one number (tried at %y = Relu(%a)" in why.out
    assert "OCC0205" in occ_cli("rules", path, "--rules", file, "--why", "nothing").err
    listed = occ_cli("rules", "--rules", file)
    assert [line.split()[:2] for line in listed.out.splitlines()] == [["zero", "rewrite"], ["scale_relu", "fusion"]]
