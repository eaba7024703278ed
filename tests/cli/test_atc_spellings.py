"""Options of `atc` given to `occ build`: read as ours, or answered with ours."""

from __future__ import annotations

import json

import onnx
import pytest
from building import mlp, model_of

from occ.cli.atc_spellings import translated


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["--soc_version=Ascend310P3"], ["-t", "ascend310p", "-C", "soc_version=Ascend310P3"]),
        (["--soc_version", "Ascend910B2", "-t", "ascend910b"], ["-C", "soc_version=Ascend910B2", "-t", "ascend910b"]),
        (["--input_shape=a:b:1,3;c:"], ["--shape", "a:b=1,3", "--shape", "c="]),
        (["--dynamic_dims=1,2;3,4"], ["-C", "dynamic_dims=1,2;3,4"]),
        (["--insert_op_conf=aipp.cfg"], ["-C", "aipp=aipp.cfg"]),
        (["--op_select_implmode=high_precision"], ["-C", "op_select_impl_mode=high_precision"]),
        (["--model=m.onnx", "--framework=5", "--mode=0", "--output=out/m"], ["m.onnx", "-o", "out/m.occ"]),
        (["--output=m", "--emit", "om"], ["-o", "m.om", "--emit", "om"]),
        (["--emit=air", "--output", "m.air"], ["--emit=air", "-o", "m.air"]),
        (["--log=error", "-deterministic=1"], ["-C", "atc.log=error", "-C", "atc.deterministic=1"]),
        (["--input-fp16-nodes", "a;b", "--output_type=FP16"], ["-C", "input_fp16_nodes=a;b", "-C", "output_type=FP16"]),
        (["--is_output_adjust_hw_layout=false,false"], []),
        (["--is_input_adjust_hw_layout=false", "--target", "cpu"], ["--target", "cpu"]),
        (["m.onnx", "--", "--model=x"], ["m.onnx", "--", "--model=x"]),
        (["m.onnx", "-C", "soc_version=x", "--outputs", "y"], ["m.onnx", "-C", "soc_version=x", "--outputs", "y"]),
    ],
)
def test_what_means_the_same_is_read(typed, ours):
    assert translated(typed) == ours


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--out_nodes=a:0", "occ extract MODEL --to NAME"),
        ("--framework=3", "export the model to ONNX"),
        ("--input_format=NHWC", "Transpose"),
        ("--input_shape=x:1~8,4~9", "the constant 8 in the model: use 8"),
        ("--input_shape=x:a~8,8", "takes ranges such as 1~8"),
        ("--input_shape=x:3~3,8", "is one size: use 3"),
        ("--is_input_adjust_hw_layout=false,true", "leave it out"),
        ("--output_tpye=FP16", "did you mean `output_type`"),
        ("--input_shape=1,8", "--input_shape takes NAME:"),
        ("--soc_version=Ascend310P33", "did you mean `Ascend310P3`"),
        ("--soc_version", "takes a value"),
    ],
)
def test_what_does_not_is_answered(typed, told, tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    ran = occ_cli("build", "m.onnx", typed)
    assert ran.code == 2
    assert told in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_a_command_of_atc_builds(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    given = [
        "--model=m.onnx",
        "--framework=5",
        "--output=m",
        "--soc_version=Ascend310P1",
        "--precision_mode=force_fp16",
    ]
    ran = occ_cli("build", *given, "--input_shape=x:-1,8", "--dynamic_batch_size=2,4")
    assert ran.code == 0, ran.err
    assert "read as  occ build m.onnx -o m.occ -t ascend310p" in ran.err
    facts = json.loads(occ_cli("inspect", "m.occ", "--json").out)
    assert (facts["chip"], facts["precision"], facts["gears"]) == ("Ascend310P1", "fp16", ["n=2", "n=4"])


def test_minus_one_leaves_an_extent_and_minus_two_is_none(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    assert occ_cli("build", "m.onnx", "-t", "interp", "--shape", "x=-1,8").code == 0
    assert json.loads(occ_cli("inspect", "m.occ", "--json").out)["inputs"] == ["x: f32[n,8]"]
    assert "has the extent -2" in occ_cli("build", "m.onnx", "-t", "interp", "--shape", "x=-2,8").err


def test_minus_one_leaves_an_extent_of_what_onnxruntime_gets(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    ran = occ_cli("build", "m.onnx", "--emit", "ort", "-t", "cpu-jit", "-o", "e.onnx", "--shape", "x=-1,8")
    assert ran.code == 0, ran.err
    (given,) = onnx.load("e.onnx").graph.input
    assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] == ["n", 8]


def test_sizes_count_in_the_order_of_the_shapes_that_were_typed(tmp_path, occ_cli):
    """atc counts in the order of --input_shape, occ in the order of the model: if these differ, nothing is guessed."""
    model = model_of("g (float[n, m] a, float[k, n] b) => (float[k, m] y) { y = MatMul (b, a) }")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    flags = [
        "build",
        str(tmp_path / "m.onnx"),
        "-t",
        "ascend310p",
        "-o",
        str(tmp_path / "m.occ"),
        "-C",
        "cpu_fallback=cpu-jit",
    ]
    ran = occ_cli(*flags, "--input_shape=b:-1,-1;a:-1,-1", "--dynamic_dims=2,4,4,8;3,4,4,8")
    assert ran.code == 2
    assert "follows the order of --input_shape, b, a; the model has a, b" in " ".join(ran.err.split())
    assert occ_cli(*flags, "--input_shape=a:-1,-1;b:-1,-1", "--dynamic_dims=4,8,2,4;4,8,3,4").code == 0
