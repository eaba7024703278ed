"""Rules of the user: what they match, what they refuse, and that they change nothing but the grouping."""

import os
import re

import numpy as np
import onnx
import onnx.reference
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings

NET = """
g (float[1,3,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] z)
{
  c = Conv <pads = [1,1,1,1]> (x, w, b)
  h = HardSwish (c)
  d = Conv (h, w2)
  e = HardSwish (d)
  a = Add (h, e)
  s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (a)
  y = Mul (s, a)
  z = Relu (e)
}
"""


def with_weights(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return model_of(text, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


@pytest.fixture(scope="module")
def net() -> onnx.ModelProto:
    return with_weights(NET, w=(4, 3, 3, 3), b=(4,), w2=(4, 4, 1, 1))


def stage_of(model, rules, stage="fused", target="cpu"):
    compilation = Compilation(model, Settings(target, rules=rules, verify=True))
    compilation.advance(stage)
    return compilation


def kinds(compilation) -> list[str]:
    return [op.attrs["kind"] for op in compilation.module.walk() if op.name == "fuse"]


def agree(model, rules, target="cpu-jit") -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 6, 6), np.float32)
    want = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    got = occ.compile(model, target, rules=rules).run({"x": x})
    for ours, theirs in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@occ.fusion
def conv_hard_swish(p, x, w, b=None):
    return p.HardSwish(p.Conv(x, w, b))


@occ.rewrite
def hard_swish(p, x):
    return x * p.HardSigmoid(x, alpha=1 / 6, beta=0.5)


@hard_swish.into
def _(b, x):
    return b.HardSwish(x)


def test_a_fusion_names_its_regions_and_keeps_the_results(net) -> None:
    assert kinds(stage_of(net, [conv_hard_swish])).count("conv_hard_swish") == 2
    agree(net, [conv_hard_swish])


@pytest.mark.toolchain
def test_a_fusion_is_one_kernel_of_its_name_on_the_cpu_target(net) -> None:
    compilation = stage_of(net, [conv_hard_swish], "lowered")
    assert sum(name.startswith("conv_hard_swish_") for name in compilation.module.te) == 2
    agree(net, [conv_hard_swish], "cpu")


def test_a_rewrite_matches_operands_in_either_order_and_counts_its_hits(net) -> None:
    compilation = stage_of(net, [hard_swish], "canonical", "interp")
    assert compilation.context.hits["hard_swish"] == 1
    assert "HardSigmoid" not in [op.name for op in compilation.module.walk()]
    agree(net, [hard_swish], "interp")


def test_a_fusion_of_several_results_is_one_region(net) -> None:
    @occ.fusion
    def stem(p, x, w, b, w2):
        h = p.HardSwish(p.Conv(x, w, b))
        return p.HardSwish(p.Conv(h, w2)), h

    found = [op for op in stage_of(net, [stem]).module.walk() if op.name == "fuse" and op.attrs["kind"] == "stem"]
    assert [len(op.results) for op in found] == [2]
    agree(net, [stem])


def test_an_interior_value_that_others_read_is_refused_unless_it_is_shared(net) -> None:
    def deep(p, x, w, w2, b=None):
        return p.HardSwish(p.Conv(p.HardSwish(p.Conv(x, w, b)), w2))

    def deep_shared(p, x, w, w2, b=None):
        return p.HardSwish(p.Conv(p.shared(p.HardSwish(p.shared(p.Conv(x, w, b)))), w2))

    assert "deep" not in kinds(stage_of(net, [occ.fusion(deep)]))
    assert "deep_shared" in kinds(stage_of(net, [occ.fusion(deep_shared)]))
    agree(net, [occ.fusion(deep_shared)])


def test_benefit_then_name_decides_who_comes_first(net) -> None:
    def rule(name, benefit=0):
        return occ.fusion(lambda p, x: p.HardSwish(x) | p.Relu(x), name=name, benefit=benefit)

    def only(p, x):
        return p.Relu(p.HardSwish(x))

    assert set(kinds(stage_of(net, [rule("b"), rule("a")]))) & {"a", "b"} == {"a"}
    assert set(kinds(stage_of(net, [rule("b", 1), rule("a")]))) & {"a", "b"} == {"b"}
    assert "only" not in kinds(stage_of(net, [occ.fusion(only)]))  # `e` has two readers


def test_rules_are_for_the_targets_they_name(net) -> None:
    jit = occ.fusion(lambda p, x: p.HardSwish(x), name="jit", targets="cpu-jit")
    assert "jit" not in kinds(stage_of(net, [jit]))
    assert "jit" in kinds(stage_of(net, [jit], target="cpu-jit"))


def test_rules_that_undo_each_other_are_named(net) -> None:
    there = occ.rewrite(lambda p, x: p.Relu(x), name="there")
    there.into(lambda b, x: b.Max(x, 0.0))
    back = occ.rewrite(lambda p, x: p.Max(x, 0.0), name="back")
    back.into(lambda b, x: b.Relu(x))
    with pytest.raises(occ.CompileError, match=r"OCC0611.*`there` and `back`|OCC0611.*`back` and `there`"):
        stage_of(net, [there, back])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (lambda p, x: p.Convv(x), "no operator `Convv`"),
        (lambda p, x: p.HardSigmoid(x, alfa=1), "no attribute `alfa`"),
        (lambda p, x, y: p.Relu(x), "does not use `y`"),
        (lambda p, x: x, "has to match an operator"),
        (lambda p, x: p.Relu(x) + "1", "is not a pattern"),
        (lambda p, x: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_rule_that_is_not_well_formed_is_refused_where_it_is_defined(pattern, message) -> None:
    with pytest.raises(occ.CompileError, match="OCC0610") as e:
        occ.fusion(pattern, name="r")
    assert message in str(e.value)


def test_code_of_a_rule_that_raises_is_reported_with_its_line(net) -> None:
    rule = occ.rewrite(lambda p, x: p.Relu(x), name="breaks")
    rule.into(lambda b, x: b.Conv(x, x, group=0))
    with pytest.raises(occ.CompileError, match=r"OCC0612.*`breaks`"):
        stage_of(net, [rule])


def test_a_replacement_of_another_type_is_not_applied(net) -> None:
    rule = occ.rewrite(lambda p, x: p.Relu(x), name="reshapes")
    rule.into(lambda b, x: b.Transpose(x, perm=(0, 2, 3, 1)))
    assert stage_of(net, [rule]).context.hits["reshapes"] == 0


def test_attributes_constants_and_variadic_operands_are_bound_and_computed() -> None:
    model = model_of("""
        g (float[2,3] x) => (float[2,9] y)
        <float k = {2.0}, float[1] j = {3.0}> {
          a = Mul (x, k)
          b = Mul (j, a)
          c = Relu (b)
          y = Concat <axis = -1> (c, x, b)
        }
    """)

    @occ.rewrite
    def scale_twice(p, x):
        return x * p.const("first", lambda k: k.size == 1) * p.const("second", lambda k: k.size == 1)

    @scale_twice.into
    def _(b, x, first, second):
        return x * (first.data * second.data).reshape(-1)[0].item()

    @occ.rewrite
    def last_axis(p):
        return p.Concat(p.many("xs"), axis=p.bind("axis", lambda a: a < 0))

    @last_axis.into
    def _(b, m, xs, axis):
        return b.Concat(*xs, axis=axis + m.outputs[0].tensor.rank)

    compilation = stage_of(model, [scale_twice, last_axis], "canonical", "interp")
    ops = {op.name: op for op in compilation.module.walk()}
    assert ops["Concat"].attrs["axis"] == 1
    assert sum(op.name == "Mul" for op in compilation.module.walk()) == 1
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = occ.compile(model, "interp", rules=[scale_twice, last_axis]).run({"x": x})["y"]
    np.testing.assert_array_equal(got, np.concatenate([6 * x, x, 6 * x], 1))


def test_patterns_of_several_outputs_rewrite_all_of_them() -> None:
    text = """
        g (float[2,3] x) => (float[2,4] y, float[2,4] z) {
          y = MatMul (x, w)
          z = MatMul (x, v)
        }
    """
    model = with_weights(text, w=(3, 4), v=(3, 4))

    @occ.rewrite
    def one_product(p, x):
        return p.MatMul(x, p.const("w")), p.MatMul(x, p.const("v"))

    @one_product.into
    def _(b, x, w, v):
        both = b.MatMul(x, b.constant(np.concatenate([w.data, v.data], 1)))
        return b.Split(both, num_outputs=2, axis=1, n_results=2)

    compilation = stage_of(model, [one_product], "canonical", "interp")
    assert [op.name for op in compilation.module.main.body.body] == ["MatMul", "Split"]
    x = np.ones((2, 3), np.float32)
    for ours, theirs in zip(
        occ.compile(model, "interp", rules=[one_product])(x),
        onnx.reference.ReferenceEvaluator(model).run(None, {"x": x}),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


HINTED = """g (float[n, 16, 10, 12] x) => (float[n, 16, 10, 12] y) {
    c = Conv <pads = [1,1,1,1]> (x, w, b)  r = Relu (c)  d = Conv <pads = [1,1,1,1], group = 16> (r, v)
    s = Sigmoid (d)  t = Tanh (s)  u = Neg (t) y = Mul (u, t)
}"""


def hinted(hint: str) -> list[object]:
    @occ.fusion(schedule=hint)
    def dense(p, x, w, b):
        return p.Relu(p.Conv(x, w, b))

    @occ.fusion(schedule=hint)
    def depthwise(p, x, w):
        y = p.Conv(x, w)
        t = p.Tanh(p.Sigmoid(y))
        return p.Neg(t) * t

    return [dense, depthwise]


@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("hint", "there", "gone"),
    [
        ("vectorize=4", r"u, \w+v, 4\)", r"u, \w+v, 16\)|vectorize\(\w+, 16"),
        ("tile=2, vectorize=8", r"split\(\w+, \w+, \w+, 2, ", r"u, \w+v, 16\)|vectorize\(\w+, 16"),
        ("parallel=off", r"vectorize", r"parallel"),
        ("parallel=on, tile=3", r"parallel", r"lanes"),
        ("compute_root", r"tanh\w*.compute_root", r"lanes"),
    ],
)
def test_a_schedule_follows_the_hint_of_its_fusion(hint, there, gone) -> None:
    from occ.compiler.driver.compilation import Compilation, Settings

    rng = np.random.default_rng(0)
    weights = {"w": (16, 16, 3, 3), "b": (16,), "v": (16, 1, 3, 3)}
    model = model_of(HINTED, {n: rng.standard_normal(s).astype(np.float32) / 8 for n, s in weights.items()})
    c = Compilation(model, Settings("cpu", rules=hinted(hint), verify=True))
    functions = [f for f in c.advance("scheduled").te.values() if f.hint]
    assert {f.hint for f in functions} == {hint}
    text = "\n".join(str(d) for f in functions for d in f.schedule)
    assert re.search(there, text), text
    assert not re.search(gone, text), text
    x = rng.standard_normal((2, 16, 10, 12)).astype(np.float32)
    want = occ.compile(model, "interp").run({"x": x})["y"]
    got = occ.compile(model, "cpu", rules=hinted(hint)).run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "hint", ["vectorise=4", "vectorize=5", "tile=0", "parallel", "compute_root=on", "tile=4; parallel=on"]
)
def test_a_hint_that_is_not_known_is_refused(hint) -> None:
    with pytest.raises(occ.CompileError, match=r"OCC0610.*rule `dense`: `.*` is not a choice of a schedule") as e:
        hinted(hint)
    assert "compute_root" in e.value.diagnostics[0].helps[0]


def test_a_rule_file_that_changes_within_a_second_is_read_again(tmp_path):
    from occ.compiler.driver.plugins import load_file

    path = tmp_path / "r.py"
    for number in (1, 2, 3):
        path.write_text(f"NUMBER = {number}\n")
        os.utime(path, ns=(10**18, 10**18 + number))
        assert number == load_file(path).NUMBER
