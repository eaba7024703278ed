"""Ranks that sizes decide: each case is inferred by itself, and nothing waits for a run."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.source import parsed
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text
from occ.runtime.manifest import Manifest

RNG = np.random.default_rng(0)
IF_ONE = """d = Shape <start = 1, end = 2> (x)
    one = Constant <value = int64[1] {1}> ()
    c = Equal (d, one)
    s = If (c) <then_branch = t () => (float[n, 4] p) { axis = Constant <value = int64[1] {1}> () p = Squeeze (x, axis) },
                else_branch = e () => (float[n, k, 4] p) { p = Identity (x) }>"""
TAIL = "r = Relu(s) z = Shape(r) y = Exp(r)"
CASES = {
    "if": f"g (float[n, k, 4] x) => (float[u, v] y, int64[w] z) {{ {IF_ONE} {TAIL} }}",
    "squeeze": f"g (float[n, 1, 4] x) => (float[u] y, int64[w] z) {{ s = Squeeze(x) {TAIL} }}",
    "squeeze alone": "g (float[n, 1] x) => (float[u] y) { y = Squeeze(x) }",
    "a loop follows": f"""g (float[n, k, 4] x) => (float y, int64[w] z) {{ {IF_ONE}
        three = Constant <value = int64 {{3}}> ()
        start = Constant <value = float {{1.0}}> ()
        z = Shape (s)
        y = Loop (three, , start) <body = b (int64 i, bool g, float p) => (bool on, float q) {{
            on = Identity (g) t = ReduceSum <keepdims = 0> (s) q = Add (p, t) }}> }}""",
    "two ifs": f"""g (float[n, k, 4] x) => (float[u, v] y, int64[w] z) {{ {IF_ONE}
        rank = Shape (s)
        size = Size (rank)
        two = Constant <value = int64 {{2}}> ()
        flat = Equal (size, two)
        other = If (flat) <then_branch = t () => (float[n, 4] p) {{ p = Neg (s) }},
            else_branch = e () => (float[n, 4] p) {{ axes = Constant <value = int64[1] {{1}}> () p = ReduceMean <keepdims = 0> (s, axes) }}>
        y = Relu(other)
        z = Shape(y) }}""",
}
USUAL = [(2, 1, 4), (2, 3, 4), (0, 3, 4), (1, 1, 4)]
SHAPES = {"squeeze": [(1, 1, 4), (3, 1, 4)], "squeeze alone": [(1, 1), (3, 1), (0, 1)]}


def inferred(text: str) -> Module:
    return Compilation(model_of(text, opset=18), Settings("interp")).advance("inferred")


@pytest.mark.thinned
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_every_case_runs(case: str, target: str):
    model = model_of(CASES[case], opset=18)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns of ranks that the file does not state
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options)
    session = occ.compile(model, target)
    for shape in SHAPES.get(case, USUAL):
        x = RNG.standard_normal(shape, dtype=np.float32)
        for got, want in zip(session.run({"x": x}).values(), peer.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, strict=True)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_of_the_caller(case: str, target: str):
    session = occ.compile(model_of(CASES[case], opset=18), target)
    for shape in SHAPES.get(case, USUAL):
        x = RNG.standard_normal(shape, dtype=np.float32)
        want = session.run({"x": x})
        room = {name: np.empty_like(v) for name, v in want.items()}
        session.run({"x": x}, outputs=room)
        for name in want:
            np.testing.assert_array_equal(room[name], want[name], strict=True)


def test_room_for_another_case_is_refused():
    session = occ.compile(model_of(CASES["squeeze alone"], opset=18), "cpu-jit")
    for shape, room in (((1, 1), (1,)), ((3, 1), ()), ((3, 1), (2,)), ((3, 1), (3, 1))):
        with pytest.raises(occ.RunError, match="the given array"):
            session.run({"x": np.ones(shape, np.float32)}, outputs={"y": np.empty(room, np.float32)})


@pytest.mark.parametrize("case", CASES)
def test_nothing_waits_for_a_run(case: str):
    lowered = Compilation(model_of(CASES[case], opset=18), Settings("cpu-jit")).advance("fused")
    assert not [op for op in lowered.walk() if op.name == "deferred"]


FITS_ONE = f"g (float[n, k, 4] x, float[4, 8] w) => (float[n, 8] y) {{ {IF_ONE} [product] y = Gemm (s, w) }}"


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_what_only_one_case_can_be_is_asked_of_inputs(target: str):
    session = occ.compile(model_of(FITS_ONE, opset=18), target)
    x, w = RNG.standard_normal((3, 1, 4), dtype=np.float32), RNG.standard_normal((4, 8), dtype=np.float32)
    np.testing.assert_allclose(session.run({"x": x, "w": w})["y"], x[:, 0] @ w, rtol=1e-5)
    with pytest.raises(occ.RunError, match="axis 1 of the input `x` is 2"):
        session.run({"x": np.zeros((3, 2, 4), np.float32), "w": w})


def test_what_a_branch_assumes_is_not_asked_of_inputs():
    text = """g (float[n] x, bool c) => (float y) { y = If (c) <
        then_branch = t () => (float p) { axis = Constant <value = int64[1] {0}> () s = Shape (x) e = Squeeze (s, axis) i = Squeeze (x, axis)
            f = Cast <to = 1> (e) p = Add (i, f) },
        else_branch = e () => (float p) { p = ReduceSum <keepdims = 0> (x) }> }"""
    m = inferred(text)
    assert str(m.main.args[0].type) == "f32[n]"
    assert [c.func for c in m.constraints if c.func == "main"] == []


MERGED = """g (float[n] x) => (int64[1, u] y, int64[u, 1] found) {
    first = NonZero (x) second = NonZero (x)
    d = Shape <start = 1, end = 2> (second)
    none = Constant <value = int64[1] {0}> ()
    empty = Equal (d, none)
    y = If (empty) <then_branch = t () => (int64[1, u] p) { axes = Constant <value = int64[1] {0}> () f = Flatten <axis = 0> (first) p = Neg (f) },
                    else_branch = e () => (int64[1, v] p) { p = Identity (first) }>
    found = Transpose (second) }"""


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu", "cpu-jit"])
def test_a_case_of_a_size_whose_op_was_merged_with_its_equal(target: str):
    model = model_of(MERGED, opset=18)
    session = occ.compile(model, target)
    for x in (np.array([0, 2, 0, 1], np.float32), np.zeros(3, np.float32)):
        got = session.run({"x": x})
        np.testing.assert_array_equal(got["found"][:, 0], np.flatnonzero(x), strict=True)
        np.testing.assert_array_equal(got["y"][0], np.flatnonzero(x), strict=True)


@pytest.mark.parametrize("wrong", ["[dim<n>, 2]", "[1, 2]", "[3, 3]"])
def test_a_plan_that_tells_another_case_is_not_believed(wrong: str):
    m = Compilation(model_of(CASES["squeeze alone"], opset=18), Settings("cpu-jit")).advance("lowered")
    text = module_text(m)
    assert "when=[dim<n>, 1]" in text
    session = occ.compile(parsed(text.replace("when=[dim<n>, 1]", f"when={wrong}")), "cpu-jit")
    refused = 0
    for n in (1, 2, 3):
        x = np.arange(n, dtype=np.float32).reshape(n, 1)
        try:
            np.testing.assert_array_equal(session.run({"x": x})["y"], x.squeeze(), strict=True)
        except occ.RunError:
            refused += 1
    assert refused


@pytest.mark.parametrize("wrong", [1, [1], ["n", {}], ["n", 1, 1], "n"])
def test_a_manifest_with_a_damaged_case_is_refused(wrong: object):
    artifact = Compilation(model_of(CASES["squeeze alone"], opset=18), Settings("cpu-jit")).artifact()
    record = json.loads(artifact.manifest.to_json())
    (step,) = (s for s in record["plan"]["steps"] if s["kind"] == "if")
    assert step["attrs"]["when"] == ["n", 1]
    step["attrs"]["when"] = wrong
    with pytest.raises(occ.RunError, match="OCC0502"):
        Manifest.from_json(json.dumps(record))
