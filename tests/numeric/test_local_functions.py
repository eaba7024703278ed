"""Model-local functions: what their attributes, operator sets and names mean, as onnxruntime and onnx.reference have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, parser
from onnx.reference import ReferenceEvaluator

import occ

X = np.array([[-1.5, 2.0, 0.25], [3.0, -4.0, 1.0]], np.float32)


def model(calls: str, function: str, *, opset: int = 18, own: int = 18, out: str = "float") -> ModelProto:
    """A model of `x` and of the condition `c`, and a function `f` (or more of them)."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]>
    agraph (float[n,q] x, bool c) => ({out}[m,p] y) {{ {calls} }}"""
    for f in function.split(";"):
        text += f'<opset_import: ["" : {own}, "my" : 1], domain: "my"> {f}'
    return parser.parse_model(text)


def elu(default: str = "") -> str:
    return f"f <k{': float = ' + default if default else ''}> (x) => (y) {{ y = Elu<alpha: float = @k>(x) }}"


def branches(then: str, other: str) -> str:
    return f"""y = If (c) <then_branch = g1 () => (float[m,p] o) {{ {then} }},
                           else_branch = g2 () => (float[m,p] o2) {{ {other} }}>"""


DEEP = (
    "f <k: float = 0.5> (x) => (y) { y = my.inner<k: float = @k>(x) };"
    "inner <k: float = 0.25> (x) => (y) { y = Elu<alpha: float = @k>(x) }"
)
IN_BRANCH = (
    "f <k: float = 0.5> (x, c) => (y) { y = If (c) <then_branch = g1 () => (o) { o = Elu<alpha: float = @k>(x) },"
    " else_branch = g2 () => (o2) { o2 = my.inner<k: float = @k>(x) }> };"
    "inner <k> (x) => (y) { y = LeakyRelu<alpha: float = @k>(x) }"
)
LOOP = """f <k: float = 0.5> (x) => (y) {
    n = Constant<value_int = 3>()  t = Constant<value_int = 1>()  b = Cast<to = 9>(t)
    y = Loop (n, b, x) <body = g (int64 i, bool b1, float[m, p] s) => (bool b2, float[m, p] s2) { b2 = Identity(b1)  s2 = Elu<alpha: float = @k>(s) }> }"""
MODELS: dict[str, Any] = {
    "default of a float": model("y = my.f (x)", elu("0.5")),
    "default against a call that gives it": model("a = my.f<k = 3.0>(x) b = my.f(x) y = Add(a, b)", elu("0.5")),
    "neither default nor value": model("y = my.f (x)", elu()),
    "default axis": model("y = my.f (x)", "f <k: int = 0> (x) => (y) { y = Softmax<axis: int = @k>(x) }"),
    "default of a flag": model(
        "y = my.f (x)", "f <k: int = 0> (x) => (y) { s = ReduceSum<keepdims: int = @k>(x) y = Add(x, s) }"
    ),
    "default of a Constant": model(
        "y = my.f (x)", "f <k: float = 2.0> (x) => (y) { s = Constant<value_float: float = @k>() y = Mul(x, s) }"
    ),
    "default element type": model(
        "y = my.f (x)", "f <k: int = 10> (x) => (y) { y = Cast<to: int = @k>(x) }", out="float16"
    ),
    "in branches": model(branches("o = my.f<k = 3.0>(x)", "o2 = my.f(x)"), elu("2.0")),
    "through two functions": model("a = my.f (x) b = my.f<k = 2.0>(x) y = Sub(a, b)", DEEP),
    "in a branch of a function": model("y = my.f (x, c)", IN_BRANCH),
    "in a loop of a function": model("y = my.f<k = 0.75>(x)", LOOP),
    "operands left out": model("y = my.f (x)", "f (x, low, high) => (y) { y = Clip(x, low, high) }"),
    "names of the caller": model("y1 = my.f (x) y = my.f(y1)", "f (y1) => (x) { y = Neg(y1) x = Exp(y) }"),
    "older operator set": model("y = my.f (x)", "f (x) => (y) { y = Add(x, x) }", own=13),
    "newer operator set": model("y = my.f (x)", "f (x) => (y) { y = Add(x, x) }", opset=15, own=18),
    "name of an operator of ONNX": model("y = Relu (x)", "f (x) => (y) { y = Neg(x) }"),
}
MODELS["name of an operator of ONNX"].functions[0].domain = ""
MODELS["name of an operator of ONNX"].functions[0].name = "Relu"


def overloads() -> ModelProto:
    made = model("a = my.f (x) b = my.f (x) y = Sub(a, b)", elu("0.5"))
    made.functions.add().CopyFrom(made.functions[0])
    made.functions[1].overload = made.graph.node[1].overload = "other"
    made.functions[1].node[0].op_type = "LeakyRelu"
    return made


MODELS["overloads"] = overloads()


def onnxruntime_gives(m: ModelProto, feeds: dict[str, Any]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(m.SerializeToString(), options).run(None, feeds)[0]


@pytest.mark.parametrize("name", MODELS)
def test_functions_as_other_runtimes_run_them(name: str) -> None:
    m = MODELS[name]
    for c in (True, False):
        feeds = {"x": X, "c": np.array(c)}
        expected = onnxruntime_gives(m, feeds)
        for target in ("interp", "cpu-jit"):
            found = occ.compile(m, target=target).run(feeds)["y"]
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(
                found, expected, rtol=1e-3 if found.dtype == np.float16 else 1e-5, err_msg=target
            )


@pytest.mark.parametrize("name", ["names of the caller", "older operator set", "newer operator set"])
def test_functions_as_onnx_reference_runs_them(name: str) -> None:
    """It has no defaults of attributes, and fails on references of most operators."""
    feeds = {"x": X, "c": np.array(True)}
    (expected,) = ReferenceEvaluator(MODELS[name]).run(None, feeds)
    np.testing.assert_allclose(occ.compile(MODELS[name], target="interp").run(feeds)["y"], expected, rtol=1e-5)


def test_a_function_goes_by_its_own_operator_set() -> None:
    """Softmax of opset 11 takes all from its axis on as a row; `onnx.checker` refuses such a function, other runtimes do not look."""
    m = model("y = my.f (x)", "f (x) => (y) { y = Softmax<axis = 0>(x) }", opset=18, own=11)
    alone = parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 11]> g (float[n,q] x) => (float[n,q] y) { y = Softmax<axis = 0>(x) }'
    )
    expected = onnxruntime_gives(alone, {"x": X})
    found = occ.compile(m, target="interp").run({"x": X, "c": np.array(True)})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_nodes_of_functions_are_named_by_their_calls() -> None:
    m = model("y = my.f (x)", "f (x) => (y) { s = Shape(x) y = Reshape(s, x) }")
    m.graph.node[0].name, m.functions[0].node[1].name = "stem", "flat"
    with pytest.raises(occ.CompileError, match="stem/flat"):
        occ.compile(m, target="interp")


def refused(m: ModelProto) -> str:
    with pytest.raises(occ.CompileError) as e:
        occ.compile(m, target="interp")
    assert all(d.code != "OCC0901" for d in e.value.diagnostics)
    return str(e.value)


def test_calls_that_do_not_fit_are_refused() -> None:
    assert "has no attribute `z`" in refused(model("y = my.f<z = 1.0>(x)", elu("0.5")))
    assert "has 1 inputs and 1 outputs, not 2 and 1" in refused(model("y = my.f (x, x)", elu("0.5")))
    assert "has no attribute of that name" in refused(
        model("y = my.f (x)", "f (x) => (y) { y = Elu<alpha: float = @k>(x) }")
    )
    assert "the model itself has no attribute" in refused(model("y = Elu<alpha: float = @k>(x)", elu()))
    assert "is INT, not FLOAT" in refused(model("y = my.f<k = 1>(x)", elu("0.5")))
    assert "nothing defines `w`" in refused(model("w = Neg(x) y = my.f (x)", "f (x) => (y) { y = Add(x, w) }"))
    assert "nothing defines the output `z`" in refused(model("y = my.f (x)", "f (x) => (z) { y = Neg(x) }"))
    assert "operator set 99" in refused(model("y = my.f (x)", "f (x) => (y) { y = Neg(x) }", own=99))
    twice = model("y = my.f (x)", elu("0.5"))
    twice.functions.add().CopyFrom(twice.functions[0])
    assert "is defined twice" in refused(twice)
    graph = model("y = my.f (x)", "f <k> (x) => (y) { y = Neg(x) }")
    graph.graph.node[0].attribute.append(helper.make_attribute("k", onnx.GraphProto(name="g")))
    assert "is a graph" in refused(graph)


def test_functions_in_long_chains_are_refused() -> None:
    chain = (
        ";".join(f"f{k} (x) => (y) {{ y = my.f{k + 1}(x) }}" for k in range(3000)) + ";f3000 (x) => (y) { y = Neg(x) }"
    )
    assert "each in another" in refused(model("y = my.f0 (x)", chain))
    below = model("y = my.f2950 (x)", chain)
    assert np.array_equal(occ.compile(below, target="interp").run({"x": X, "c": np.array(True)})["y"], -X)
