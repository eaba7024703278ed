"""`--outputs`: values of the graph that become additional outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import TARGETS, mlp, model_of, reference

import occ
from occ.compiler.diagnostics import CompileError

TWO = "g (float[2, 6] x) => (float[2, 6] y) { a, b = Split <axis = 1, num_outputs = 2> (x) c = Concat <axis = 1> (b, a) y = Relu(c) }"


def shown(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model with further outputs, for the oracle."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    made.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return made


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_values_inside_of_what_is_fused_come_out(target):
    model = mlp()
    x = np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)
    session = occ.compile(model, target, outputs=["s", "h", "s"])
    made = session.run({"x": x})
    assert list(made) == ["y", "s", "h"]
    for value, right in zip(made.values(), reference(shown(model, "s", "h"), {"x": x}), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["cut"], ["a", "b"]),  # a node: all its results
        (["cut:1", "a"], ["b", "a"]),  # as `atc --out_nodes` names one
        (["y"], []),  # an output already
        (["x"], ["x"]),
        (["w"], ["w"]),
    ],
)
@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_nodes_inputs_and_weights_can_be_named(asked, names, target):
    model = model_of(TWO, {"w": np.float32([1, 2])})
    model.graph.node[0].name = "cut"
    x = np.arange(-6, 6, dtype=np.float32).reshape(2, 6)
    made = occ.compile(model, target, outputs=asked).run({"x": x})
    assert list(made) == ["y", *names]
    known = dict(zip(("y", "a", "b"), reference(shown(model, "a", "b"), {"x": x}), strict=True))
    known |= {"x": x, "w": np.float32([1, 2])}
    for name, value in made.items():
        np.testing.assert_array_equal(value, known[name])


def test_an_unknown_name_is_met_with_what_was_meant(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(model_of(TWO.replace(" c ", " conc ").replace("(c)", "(conc)")).SerializeToString())
    ran = occ_cli("build", "m.onnx", "-t", "interp", "--outputs", "cnoc", "--outputs", "nothing_like_it")
    assert ran.code == 2
    assert "OCC0205" in ran.err
    assert "--outputs names `cnoc`, which is not a value or node of the main graph" in ran.err
    assert "did you mean `conc`?" in ran.err
    assert "`nothing_like_it`" in ran.err
    assert not Path("m.occ").exists()


def test_a_node_has_no_further_results():
    model = model_of(TWO)
    model.graph.node[0].name = "cut"
    with pytest.raises(CompileError, match="`cut:2`") as told:
        occ.compile(model, "interp", outputs=["cut:2"])
    assert told.value.diagnostics[0].helps == ("the node `cut` has 2 results; the first is `cut:0`",)


def test_a_build_before_without_them_is_no_answer(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(mlp().SerializeToString())
    for asked in ([], ["--outputs", "h"], []):
        assert occ_cli("build", "m.onnx", "-t", "interp", *asked).code == 0
        signature = occ_cli("inspect", "m.occ").out.partition("outputs:")[2].partition("dims:")[0]
        assert ("  h:" in signature) == bool(asked)


def test_a_text_has_its_outputs_already(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(mlp().SerializeToString())
    assert occ_cli("dump", "m.onnx", "--stage", "imported", "-o", "t.occ").code == 0
    ran = occ_cli("build", "t.occ", "-t", "interp", "--outputs", "h", "-o", "m.occ")
    assert ran.code == 2
    assert "--outputs needs an ONNX model" in ran.err
    assert "--emit ort keeps" in occ_cli("build", "m.onnx", "--emit", "ort", "--outputs", "h").err
