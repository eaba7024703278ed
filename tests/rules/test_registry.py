"""Operators of rule files belong to the compilation that names them, not to the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.operator.registry import Registry, builtin
from occ.plugin import CompileError, extensions

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>\n'
X = np.arange(3, dtype=np.float32)


def model() -> onnx.ModelProto:
    return model_of(f"{HEAD}g (float[3] x) => (float[3] y) {{ a = com.example.Plus(x) y = Neg(a) }}")


def plus(folder: Path, n: int, more: str = "") -> str:
    """A rule file whose operator adds `n`."""
    path = folder / f"plus{n}.py"
    path.write_text(f"""import occ

@occ.operator("com.example.Plus")
class Plus:
    operands = ("x",)
    def body(t, x, *, a):
        return t.map(x.shape, lambda *i: x[i] + {n}.0)

{more}
""")
    return str(path)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_a_later_compilation_without_the_rules_refuses_the_model(tmp_path: Path, target: str) -> None:
    got = occ.compile(model(), target, rules=[plus(tmp_path, 1)]).run({"x": X})["y"]
    np.testing.assert_array_equal(got, -(X + 1))
    with pytest.raises(CompileError) as e:
        occ.compile(model(), target)
    assert [d.code for d in e.value.diagnostics] == ["OCC0104"]
    assert "com.example.Plus" in str(e.value)


def _use_of(folder: Path) -> str:
    path = folder / "use.py"
    path.write_text("""import occ

@occ.rewrite
def twice(p, x):
    return p.op("com.example.Plus", p.Neg(x))

@twice.into
def _(b, x):
    return b.Neg(x)
""")
    return str(path)


def test_two_compilations_with_operators_of_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    made = [Compilation(model(), Settings("cpu-jit", rules=[plus(tmp_path, n)])) for n in (1, 2)]
    for stage in ("inferred", "canonical", "fused", "lowered"):
        for compilation in made:
            compilation.advance(stage)
    from occ.compiler.driver.sessions import open_session

    for compilation, n in zip(made, (1, 2), strict=True):
        np.testing.assert_array_equal(open_session(compilation.artifact()).run({"x": X})["y"], -(X + n))


def test_a_rule_may_speak_of_an_operator_of_its_own_file_and_build_it(tmp_path: Path) -> None:
    more = """
@occ.rewrite
def after_a_negation(p, x):
    return p.op("com.example.Plus", p.Neg(x))

@after_a_negation.into
def _(b, x):
    return b.Neg(b.op("com.example.Plus", x))
"""
    text = f"{HEAD}g (float[3] x) => (float[3] y) {{ a = Neg(x) y = com.example.Plus(a) }}"
    compilation = Compilation(model_of(text), Settings("interp", rules=[plus(tmp_path, 1, more)]))
    ops = compilation.advance("canonical").main.body.body
    assert [op.name for op in ops] == ["com.example.Plus", "Neg"]


def test_a_rule_on_an_unknown_operator_or_attribute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"rule `twice`: there is no operator `com.example.Plus`"):
        extensions([_use_of(tmp_path)])
    more = "@occ.rewrite\ndef odd(p, x):\n    return p.op('com.example.Scale', x, factr=2)\n\n@odd.into\ndef _(b, x):\n    return x\n"
    more = more.replace(
        "@occ.rewrite",
        "@occ.operator('com.example.Scale')\nclass Scale:\n    operands = ('x',)\n    attributes = {'factor': 1.0}\n    def body(t, x, *, a):\n        return t.map(x.shape, lambda *i: x[i] * a.factor)\n\n@occ.rewrite",
        1,
    )
    with pytest.raises(CompileError, match="has no attribute `factr`") as e:
        extensions([plus(tmp_path, 3, more)])
    assert "factor" in str(e.value)


def test_an_operator_that_waits_for_its_operands_is_compiled_with_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "fill.py"
    path.write_text("""import occ
from occ.compiler.ir.ops.movement import static_dims

@occ.operator("com.example.Fill")
class Fill:
    operands = ("shape",)
    static = ("shape",)
    def rank(shape, *, a):
        return shape.shape[0]
    def body(t, shape, *, a):
        return t.map(static_dims("Fill", "shape", shape), lambda *i: 1.0)
""")
    filled = model_of(f"{HEAD}g (int64[2] s) => (float[a,b] y) {{ f = com.example.Fill(s) y = Neg(f) }}")
    for target in ("interp", "cpu-jit"):
        got = occ.compile(filled, target, rules=[str(path)]).run({"s": np.array([2, 3])})["y"]
        np.testing.assert_array_equal(got, -np.ones((2, 3), got.dtype))


def test_a_registry_adds_to_the_built_in_operators(tmp_path: Path) -> None:
    found = extensions([plus(tmp_path, 1)]).registry
    assert {"Relu", "com.example.Plus"} <= found.keys()
    assert "com.example.Plus" not in builtin()
    assert "com.example.Plus" not in Registry()
    with pytest.raises(CompileError, match=r"operator `com.example.Plus` is already defined by .*plus1.py"):
        extensions([plus(tmp_path, 1), plus(tmp_path, 2)])
