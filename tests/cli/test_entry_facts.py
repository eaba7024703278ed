"""What a build and `occ inspect` say of the native entry of an artifact."""

import json
from pathlib import Path

import onnx
import pytest
from building import mlp, model_of

UNIQUE = "g (float16[n] x) => (float16[k] y) { [culprit] y = Unique(x) }"


@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_an_artifact_that_has_one(target, occ_cli, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    built = occ_cli("build", tmp_path / "m.onnx", "-t", target, "-o", tmp_path / "m.occ")
    assert built.code == 0, built.err
    assert "entry " not in built.err
    facts = json.loads(occ_cli("inspect", tmp_path / "m.occ", "--json").out)
    assert facts.get("entry") == ("native" if target == "cpu-jit" else None)


def test_the_nodes_that_python_runs(occ_cli, tmp_path: Path) -> None:
    onnx.save(model_of(UNIQUE), tmp_path / "m.onnx")
    built = occ_cli("build", tmp_path / "m.onnx", "-t", "cpu-jit", "-o", tmp_path / "m.occ")
    assert built.code == 0, built.err
    said = " ".join(built.err.split())
    assert "entry native, but needs Python: node `culprit` is a Unique of f16" in said
    (only,) = json.loads(occ_cli("inspect", tmp_path / "m.occ", "--json").out)["entry"]
    assert only.startswith("node `culprit`")


def test_texts_that_python_keeps(occ_cli, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>
    g (float[n, 3] x) => (string[n] label, seq(map(int64, float)) scores) {
        y = Relu(x)
        best = ArgMax <axis = 1, keepdims = 0> (y)
        [named] label = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1, 2], values_strings = ["a", "b", "c"]> (best)
        [mapped] scores = ai.onnx.ml.ZipMap <classlabels_int64s = [5, 6, 7]> (y)
    }"""
    onnx.save(model_of(text), tmp_path / "m.onnx")
    built = occ_cli("build", tmp_path / "m.onnx", "-t", "cpu-jit", "-o", tmp_path / "m.occ")
    assert built.code == 0, built.err
    assert "and 3 more, which `occ inspect` lists" in " ".join(built.err.split())
    facts = json.loads(occ_cli("inspect", tmp_path / "m.occ", "--json").out)
    assert [f.split()[1] for f in facts["entry"]] == ["`named`", "`mapped`", "is", "is"]
