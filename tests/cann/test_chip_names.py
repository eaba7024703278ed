"""Which target a chip belongs to, and what is said to names of other ones."""

from __future__ import annotations

import pytest
from building import model_of
from simulating import built

from occ.compiler.codegen_cann.options import SOCS
from occ.compiler.diagnostics import CompileError

RELU = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
HINTS = [
    ("ascend910b", "Ascend910B", "first 910 generation, of `-t ascend910`"),
    ("ascend910b", "Ascend910_9391", "it is one of `-t ascend910_93`"),
    ("ascend310", "Ascend310B1", "it is one of `-t ascend310b`"),
    ("ascend310p", "Ascend310B4", "it is one of `-t ascend310b`"),
    ("ascend910b", "Ascend910_9589", "occ has no target for this generation"),
    ("ascend310p", "Ascend310P33", "did you mean `Ascend310P3`"),
]


@pytest.mark.parametrize(("target", "soc", "said"), HINTS)
def test_a_chip_of_another_target_is_answered_with_that_one(target: str, soc: str, said: str):
    with pytest.raises(CompileError, match=said):
        built(model_of(RELU), target, soc_version=soc)


@pytest.mark.parametrize("target", SOCS)
def test_every_chip_of_a_target_is_written_into_the_command(target: str):
    for soc in SOCS[target]:
        (part,) = built(model_of(RELU), target, soc_version=soc).manifest.parts
        assert f"--soc_version={soc}" in part.command


def test_no_chip_belongs_to_two_targets():
    chips = [c for each in SOCS.values() for c in each]
    assert len(chips) == len(set(chips))


@pytest.mark.parametrize(("soc", "target"), [("Ascend310B1", "ascend310b"), ("Ascend910_9362", "ascend910_93"), ("Ascend910B3", "ascend910b"), ("Ascend910B", "ascend910")])  # fmt: skip
def test_the_command_line_of_atc_finds_the_target(soc: str, target: str, tmp_path, occ_cli):
    (tmp_path / "m.onnx").write_bytes(model_of(RELU).SerializeToString())
    done = occ_cli(
        "atc", f"--model={tmp_path / 'm.onnx'}", "--framework=5", f"--output={tmp_path / 'm'}", f"--soc_version={soc}"
    )
    assert done.code == 0, done.err
    assert f"-t {target}" in done.err
    assert ("first 910 generation" in done.err) == (soc == "Ascend910B")


def test_the_command_line_of_atc_refuses_a_later_generation(tmp_path, occ_cli):
    (tmp_path / "m.onnx").write_bytes(model_of(RELU).SerializeToString())
    done = occ_cli(
        "atc", f"--model={tmp_path / 'm.onnx'}", "--framework=5", "--output=m", "--soc_version=Ascend910_9589"
    )
    assert done.code == 2
    assert "no target for this generation" in done.err


@pytest.mark.parametrize("name", ["ascend910_95", "ascend950"])
def test_a_target_of_a_later_generation_is_not_taken_for_another(name: str):
    with pytest.raises(CompileError, match="no target for this generation"):
        built(model_of(RELU), name)
