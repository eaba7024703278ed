"""`occ inspect` of an Ascend artifact: chip, precision, parts, GE operators, gears and ranges."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from building import mlp, model_of
from simulating import airs

from occ.compiler.ge_simulator.reader import read

MIXED = "g (float[4, 2] x) => (float[4, 2] y, float[i, 2] z) { y = Relu(x) a = Exp(x) z = Unique <axis = 0> (a) }"


@pytest.fixture
def inspected(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)

    def run(model, *options: str) -> tuple[dict, str]:
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        built = occ_cli("build", "m.onnx", "-t", "ascend310p", "-C", "cpu_fallback=cpu-jit", *options)
        assert built.code == 0, built.err
        return json.loads(occ_cli("inspect", "m.occ", "--json").out), occ_cli("inspect", "m.occ").out

    return run


def test_chip_precision_parts_and_operators(inspected, tmp_path):
    facts, text = inspected(mlp(), "--dim", "n=3", "-C", "soc_version=Ascend310P1", "-C", "precision_mode_v2=fp16")
    assert (facts["chip"], facts["precision"]) == ("Ascend310P1", "fp16")
    (part,) = facts["parts"]
    assert part.startswith("part0: device/part0.air, not compiled yet; 1 input, 1 output, ")
    (data,) = airs(tmp_path / "m.occ").values()
    types = Counter(n.type for g in read(data).values() for n in g.nodes)
    assert Counter(facts["ge_operators"]) == Counter(
        {k: v for k, v in types.items() if k not in ("Data", "Const", "NetOutput")}
    )
    assert facts["ge_operators"]
    assert facts["gears"] == facts["ranges"] == []
    assert "--soc_version=Ascend310P1" in facts["atc"][0]
    assert "chip: Ascend310P1\n" in text


def test_sizes_by_the_names_of_the_model(inspected):
    assert inspected(mlp(), "-C", "dynamic_batch_size=2,4")[0]["gears"] == ["n=2", "n=4"]
    ranges = inspected(mlp(), "-C", "dynamic_ranges=n=2..8:2")[0]["ranges"]
    assert ranges == ["n: 2 to 8 in steps of 2"]


def test_what_the_cpu_has(inspected):
    facts, _ = inspected(model_of(MIXED))
    assert facts["parts"][-1].endswith(": on the CPU")
    assert facts["on_the_cpu"] == ["Unique"]


def test_other_targets_have_no_chip(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    assert occ_cli("build", "m.onnx", "-t", "interp").code == 0
    assert "chip" not in json.loads(occ_cli("inspect", "m.occ", "--json").out)
