"""Comparisons of texts, artifacts and nodes, parts of models, drawings; and the functions of `occ` that do the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference

import occ
from occ.analysis.oracles import CannotCompare
from occ.compiler.driver.source import parsed

NODES = """g (float[n,8] x) => (float[n,4] y) {
    [mul] h = MatMul(x, w1)
    [act] r = Relu(h)
    [out] y = MatMul(r, w2)
}"""


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s, dtype=np.float32) for n, s in (("w1", (8, 16)), ("w2", (16, 4)))}
    Path("m.onnx").write_bytes(model_of(NODES, weights).SerializeToString())
    return Path("m.onnx")


@pytest.mark.thinned
@pytest.mark.parametrize("stage", ["imported", "canonical", "fused", "layout", "scheduled", "lowered"])
def test_diff_of_text(stage, model, occ_cli):
    assert occ_cli("dump", model, "--stage", stage, "-t", "cpu-jit", "-o", "s.occ").code == 0
    for against in ("interp", "onnxruntime", "reference"):
        ran = occ_cli("diff", "s.occ", "-t", "cpu-jit", "--against", against, "--dim", "n=3")
        if stage == "lowered" or (against != "interp" and stage == "scheduled"):
            assert ran.code == 2
            assert "a plan" in ran.err or "has no ONNX form" in ran.err
        else:
            assert ran.code == 0, ran.err
            assert ran.out.startswith("same     y: [3, 4]")


def test_diff_of_an_artifact(model, occ_cli):
    assert occ_cli("build", model, "-t", "cpu-jit").code == 0
    ran = occ_cli("diff", "m.occ")
    assert ran.code == 2
    assert "--onnx" in ran.err
    assert occ_cli("diff", "m.occ", "--onnx", model, "--dim", "n=2").code == 0
    other = onnx.load(model)
    other.graph.initializer[0].raw_data = bytes(len(other.graph.initializer[0].raw_data))
    onnx.save(other, "other.onnx")
    assert occ_cli("diff", "m.occ", "--onnx", "other.onnx").code == 5


def test_diff_with_an_artifact_of_other_options(model, occ_cli):
    assert occ_cli("build", model, "-t", "interp", "-o", "old.occ").code == 0
    assert occ_cli("build", model, "-t", "cpu-jit", "-o", "new.occ").code == 0
    assert occ_cli("diff", "new.occ", "--against", "old.occ", "--dim", "n=2").code == 0
    assert occ_cli("diff", model, "-t", "cpu-jit", "--against", "old.occ").code == 0
    onnx.save(mlp(seed=1), "changed.onnx")
    assert occ_cli("build", "changed.onnx", "-t", "interp").code == 0
    ran = occ_cli("diff", "new.occ", "--against", "changed.occ")
    assert ran.code == 5
    assert "differ from changed.occ: y" in ran.err
    onnx.save(model_of("g (float[n,8] x) => (float[n,8] z) { z = Relu(x) }"), "other.onnx")
    assert occ_cli("build", "other.onnx", "-t", "interp").code == 0
    ran = occ_cli("diff", "new.occ", "--against", "other.occ")
    assert ran.code == 2
    assert "has no output `y`" in ran.err


@pytest.mark.parametrize(("scale", "code"), [(1e-8, 0), (1e-3, 5)])
def test_differences_that_are_small_in_themselves(scale, code, tmp_path, monkeypatch, occ_cli):
    """Remainders of cancelling sums differ between runtimes by far more than a share; small outputs may matter."""
    monkeypatch.chdir(tmp_path)
    text = "g (float[4] x) => (float[4] y) { y = Mul(x, c) }"
    for name, c in (("a", scale), ("b", 1.01 * scale)):
        occ.build(model_of(text, {"c": np.float32(c)}), "interp").save(f"{name}.occ")
    ran = occ_cli("diff", "a.occ", "--against", "b.occ")
    assert ran.code == code, ran.err
    assert ("too small to count" in ran.out) == (code == 0)
    assert occ_cli("diff", "a.occ", "--against", "b.occ", "--absolute", 0).code == 5
    assert occ_cli("diff", "a.occ", "--against", "b.occ", "--absolute", 0, "--tolerance", 0.02).code == 0


def test_diff_of_every_node_names_the_first(model, occ_cli):
    ran = occ_cli("diff", model, "-t", "cpu-jit", "--every-node")
    assert ran.code == 0, ran.err
    assert "2 of 2 values of nodes are equal" in ran.err
    Path("wrong.py").write_text(
        "import occ\n@occ.rewrite\ndef wrong(p, x):\n    return p.Relu(x)\n@wrong.into\ndef _(b, x):\n    return b.Abs(x)\n"
    )
    ran = occ_cli("diff", model, "-t", "cpu-jit", "--every-node", "--rules", "wrong.py", "--json")
    assert ran.code == 5
    rows = [json.loads(line) for line in ran.out.splitlines()[:-1]]
    assert [(r["output"], r["node"], r["ok"]) for r in rows] == [
        ("y", "", False),
        ("h", "mul", True),
        ("r", "act", False),
    ]
    assert json.loads(ran.out.splitlines()[-1])["message"].endswith("node `act` first")
    ran = occ_cli("diff", model, "-t", "cpu-jit", "--node", "^mul$", "--rules", "wrong.py", "--json")
    assert [json.loads(line)["output"] for line in ran.out.splitlines()[:-1]] == ["y", "h"]
    assert occ_cli("diff", model, "--node", "nowhere").code == 2


@pytest.mark.parametrize(
    ("ends", "nodes", "inputs", "outputs"),
    [
        (["--from", "h", "--to", "r"], 1, ["h"], ["r"]),
        (["--from", "act", "--to", "act"], 1, ["h"], ["r"]),
        (["--to", "r"], 2, ["x"], ["r"]),
        (["--from", "r"], 1, ["r"], ["y"]),
        ([], 3, ["x"], ["y"]),
    ],
)
def test_extract(ends, nodes, inputs, outputs, model, occ_cli):
    ran = occ_cli("extract", model, *ends, "-o", "part.onnx")
    assert ran.code == 0, ran.err
    part = onnx.load("part.onnx")
    onnx.checker.check_model(part, full_check=True)
    assert len(part.graph.node) == nodes
    assert ([v.name for v in part.graph.input], [v.name for v in part.graph.output]) == (inputs, outputs)
    assert occ_cli("diff", "part.onnx", "-t", "interp", "--dim", "n=2").code == 0


def test_extract_takes_what_sub_graphs_read_and_external_data(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    text = """g (float[4] x, bool c) => (float[4] y) {
        a = Add(x, w)
        b = If <then_branch = t () => (float[4] u) { u = Mul(a, v) }, else_branch = e () => (float[4] z) { z = Neg(a) }> (c)
        y = Exp(b)
    }"""
    weights = {n: np.random.default_rng(1).standard_normal(4).astype(np.float32) for n in "wv"}
    whole = model_of(text, weights)
    Path("in").mkdir()
    onnx.save(whole, "in/m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert occ_cli("extract", "in/m.onnx", "--to", "b", "-o", "part.onnx").code == 0
    part = onnx.load("part.onnx")
    assert {t.name for t in part.graph.initializer} == {"w", "v"}
    x = np.float32([1, 2, 3, 4])
    (got,) = reference(part, {"x": x, "c": np.array(True)})
    np.testing.assert_allclose(got, (x + weights["w"]) * weights["v"], rtol=1e-6)


def test_extract_of_a_model_that_onnx_cannot_infer(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)  # the model does not import com.microsoft, as exporters forget
    text = "g (float[n,3] x) => (float[n,3] y) { h = Relu(x)  y = com.microsoft.Gelu(h) }"
    Path("m.onnx").write_bytes(model_of(text).SerializeToString())
    ran = occ_cli("extract", "m.onnx", "--to", "h", "-o", "part.onnx")
    assert ran.code in (0, 1)
    assert "OCC0901" not in ran.err


def test_extract_refuses_what_is_not_there(model, occ_cli):
    ran = occ_cli("extract", model, "--to", "acd", "-o", "part.onnx")
    assert ran.code == 2
    assert "did you mean `act`?" in ran.err
    assert occ_cli("extract", model, "-o", "m.onnx").code != 0, "the model itself is not replaced"
    assert onnx.load("m.onnx").graph.node


def test_reduce_demands_the_first_failure(tmp_path, monkeypatch, occ_cli):
    """The reduced model fails like the whole one, not in another way."""
    monkeypatch.chdir(tmp_path)
    text = "g (float[4] x) => (float[4] y) { a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Abs(c) }"
    Path("m.onnx").write_bytes(model_of(text).SerializeToString())
    judge = 'import sys; t = open(sys.argv[1]).read(); sys.exit(3 if "Exp(" in t else 4 if "Neg(" not in t else 0)'
    Path("judge.py").write_text(judge)
    ran = occ_cli("reduce", "m.onnx", "-t", "interp", "--test", "python3 judge.py {}", "-o", "small.occ")
    assert ran.code == 0, ran.err
    assert "exit code 3" in ran.err
    assert "Exp(" in Path("small.occ").read_text()


@pytest.mark.parametrize("stage", ["imported", "fused", "scheduled"])
def test_drawings(stage, model, occ_cli):
    dot = occ_cli("dump", model, "--stage", stage, "-t", "cpu-jit", "--format", "dot").out
    assert dot.startswith("digraph ")
    assert re.search(r'i0 \[label="x", shape=ellipse\]', dot)
    assert re.search(r"n\d -> o0", dot)
    mermaid = occ_cli("dump", model, "--stage", stage, "-t", "cpu-jit", "--format", "mermaid").out
    assert mermaid.startswith("flowchart TD\n")
    assert 'i0(["x"])' in mermaid


# The functions of the same names


def test_functions_do_what_the_commands_do(model):
    found = occ.diff(model, "cpu-jit", dims={"n": 3}, every_node=True)
    assert found.ok
    assert found.first is None
    assert [r.output for r in found.rows] == ["y", "h", "r"]
    with pytest.raises(CannotCompare):
        occ.diff(model, "interp", against="vibes")
    facts = occ.inspect(model)
    assert facts["operators"] == {"MatMul": 2, "Relu": 1}
    text = occ.dump(model, "canonical", "cpu-jit", weights="none")
    assert isinstance(text, str)
    assert "MatMul" in text
    assert isinstance(occ.dump(model, "canonical", format="onnx"), bytes)
    occ.dump(model, "canonical", out="d/c.occ")
    assert parsed(Path("d/c.occ").read_text(), path=Path("d/c.occ")).stage == "canonical"
    assert len(occ.extract(model, ["h"], ["r"]).graph.node) == 1
    timed = occ.bench(mlp(), "cpu-jit", rounds=1, threads=1)
    assert timed.times["occ"].ms > 0


def test_diff_of_halves_allows_units_of_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, occ_cli) -> None:
    """A unit of f16 is 1e-3: models that compute in it differed by default, whatever their outputs are."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((512, 64)).astype(np.float16)
    text = """g (float[n, 512] x) => (float[n, 64] y) {
        h = Cast<to = 10>(x)
        e = Exp(h)
        m = MatMul(e, w)
        y = Cast<to = 1>(m)
    }"""
    Path("half.onnx").write_bytes(model_of(text, {"w": w}).SerializeToString())
    made = occ.diff("half.onnx", "cpu-jit", dims={"n": 5})
    assert made.ok
    assert made.rows[0].difference > 1e-4
    assert occ_cli("diff", "half.onnx", "-t", "cpu-jit", "--dim", "n=5").code == 0
    assert occ_cli("diff", "half.onnx", "-t", "cpu-jit", "--dim", "n=5", "--tolerance", "1e-4").code == 5
