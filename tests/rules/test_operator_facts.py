"""An operator of a user is treated as a built-in one: layouts, fusion, ranks, patterns follow from its definition."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.module import Module
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.types import TensorType
from occ.plugin import Layout, in_panels, maximum

USER = '<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>\n'
RNG = np.random.default_rng(0)
W1, W2 = (RNG.standard_normal((16, n, 3, 3), dtype=np.float32) for n in (8, 16))


@occ.operator("com.example.Rectify")
class Rectify:
    operands = ("x",)

    def body(t, x, *, a):
        return t.map(x.shape, lambda *i: maximum(x[i], 0.0), name="rectify")


@occ.operator("com.example.ToChannelsLast")
class ToChannelsLast:
    operands = ("x",)

    def body(t, x, *, a):
        n, c, h, w = x.shape
        return t.map((n, h, w, c), lambda i, j, k, o: x[i, o, j, k])


@occ.operator("com.example.Cat")
class Cat:
    operands = ("x", "y")
    attributes = {"axis": 1}
    joins = True
    writes = "any"
    body = builtin()["Concat"].body


@occ.operator("com.example.Dense")
class Dense:
    """`x @ w'`."""

    operands = ("x", "w")
    tags = ("contraction",)
    reads = "last"

    def weight(x, w, *, a, lanes):
        return in_panels(w.shape, 0, (0, 1), lanes, least=1)

    def body(t, x, w, *, a):
        return t.sum((x.shape[0], w.shape[0]), [x.shape[1]], lambda i, j, r: x[i, r] * w[j, r])


@occ.operator("com.example.Draw")
class Draw:
    operands = ("x",)
    pure = False

    def body(t, x, *, a):
        return t.map(x.shape, lambda *i: x[i] + 0.5)


@occ.operator("com.example.Fill")
class Fill:
    """Ones of a shape."""

    operands = ("shape",)
    static = ("shape",)

    def rank(shape, *, a):
        return shape.shape[0]

    def body(t, shape, *, a):
        from occ.compiler.ir.ops.movement import static_dims

        return t.map(static_dims("Fill", "shape", shape), lambda *i: 1.0)


@occ.operator("com.example.Both")
class Both:
    operands = ("x", "y")
    commutes = True

    def body(t, x, y, *, a):
        return t.map(x.shape, lambda *i: x[i] * y[i] + 1.0)


def at(stage: str, model: onnx.ModelProto, *rules: object, target: str = "cpu") -> Module:
    return Compilation(model, Settings(target, rules=rules)).advance(stage)


def convolutions(between: str) -> onnx.ModelProto:
    text = f"""g (float[1,8,20,20] x) => (float[1,16,16,16] y) {{
        a = Conv(x, w1) b = {between}(a) y = Conv(b, w2) }}"""
    return model_of(USER + text, {"w1": W1, "w2": W2})


def steps(m: Module) -> list[tuple[str, list[str]]]:
    return [(op.name, [str(r.type) for r in op.results]) for op in m.main.body]


def test_an_elementwise_operator_has_the_plan_of_a_built_in_one() -> None:
    for stage in ("layout", "lowered"):
        mine, own = at(stage, convolutions("com.example.Rectify"), Rectify), at(stage, convolutions("Relu"))
        assert steps(mine) == steps(own), stage
    assert [name for name, _ in steps(at("layout", convolutions("com.example.Rectify"), Rectify))].count("pack") == 2


def test_a_transposition_becomes_a_view() -> None:
    text = "g (float[1,8,20,20] x) => (float[1,18,18,16] y) { a = Conv(x, w1) y = com.example.ToChannelsLast(a) }"
    model = model_of(USER + text, {"w1": W1})
    assert [op.name for op in at("layout", model, ToChannelsLast).main.body.body] == ["pack", "Conv", "view"]


def test_operands_of_a_join_are_computed_in_its_memory() -> None:
    text = """g (float[1,8,20,20] x) => (float[1,32,18,18] y) {
        a = Conv(x, w1) b = Conv(x, w2) c = com.example.Cat(a, b) y = Relu(c) }"""
    model = model_of(USER + text, {"w1": W1, "w2": W1 + 1})
    ops = at("layout", model, Cat).main.body.body
    assert [op.name for op in ops] == ["pack", "Conv", "Conv", "join", "Relu"]
    assert [r.tensor.layout.tag for op in ops[1:3] for r in op.results] == ["acdb.b32"] * 2


def test_a_weight_gets_the_layout_that_its_operator_states() -> None:
    text = "g (float[4,64] x) => (float[4,32] y) { y = com.example.Dense(x, w) }"
    m = at("layout", model_of(USER + text, {"w": RNG.standard_normal((32, 64), dtype=np.float32)}), Dense)
    (w,) = m.weights.values()
    assert w.tensor.layout in (Layout((0, 1), ((0, n),)) for n in (4, 8, 16, 32))


def test_an_impure_operator_is_not_merged() -> None:
    text = "g (float[3] x) => (float[3] y) { a = %s(x) b = %s(x) y = Sub(a, b) }"
    names = ("com.example.Draw", "com.example.Rectify")
    counts = [len(at("canonical", model_of(USER + text % (n, n)), Draw, Rectify).main.body.body) for n in names]
    assert counts == [3, 2]


def test_the_rank_is_known_where_the_shape_is_not() -> None:
    text = "g (int64[3] shape) => (float[a,b,c] y) { f = com.example.Fill(shape) y = Relu(f) }"
    m = at("inferred", model_of(USER + text), Fill, target="cpu-jit")
    made = m.main.body.body[0].result.type
    assert isinstance(made, TensorType)
    assert made.rank == 3


def test_patterns_try_the_operands_of_an_operator_that_commutes_in_each_order() -> None:
    @occ.rewrite
    def with_a_relu_first(p, x, y):
        return p.op("com.example.Both", p.Relu(x), y)

    @with_a_relu_first.into
    def _(b, x, y):
        return b.Add(x, y)

    text = "g (float[3] x, float[3] z) => (float[3] y) { r = Relu(x) y = com.example.Both(z, r) }"
    assert [op.name for op in at("canonical", model_of(USER + text), Both, with_a_relu_first).main.body.body] == ["Add"]


def test_no_pass_to_the_stage_layout_names_an_operator() -> None:
    # what these passes and the plan consist of
    own = {"fuse", "pack", "view", "join", "append", "write_into", "copy", "call", "deferred", "yield"}
    names = {name for name in builtin() if name not in own}
    found: list[str] = []
    for path in Path(str(occ.compiler.__path__[0]), "passes", "layout").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
                found.append(f"{path.name}:{node.lineno}: {node.value}")
    assert not found
