"""Options of `atc` that occ passes on, and types of inputs and outputs that it changes as `atc` does."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from building import mlp, model_of

import occ
from occ.compiler.codegen_cann.atc_options import ATC_OPTIONS
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.diagnostics import CompileError

_OPTIONS = AscendOptions.of("ascend310p")


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    return "m.onnx"


def _command(net: str, **options: str) -> list[str]:
    made = occ.build(net, "ascend310p", "m.occ", dims={"n": 2}, options=options)
    return made.manifest.parts[0].command


def test_all_options_of_atc_are_taken_or_answered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.cfg").write_text("")
    assert len(ATC_OPTIONS) >= 84
    for name, option in ATC_OPTIONS.items():
        value = option.values[0] if option.values else "file.cfg" if option.kind == "file" else "8"
        if option.is_passed:
            assert _OPTIONS.read("ascend310p", {f"atc.{name}": value}).atc[0][0] == name
        else:
            with pytest.raises(CompileError) as refused:
                _OPTIONS.read("ascend310p", {f"atc.{name}": value})
            assert refused.value.diagnostics[0].helps


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("atc.determnistic", "1", "did you mean `deterministic`"),
        ("atc.deterministic", "2", "one of: 0, 1"),
        ("atc.modify_mixlist", "none.json", "names no file"),
        ("atc.modify_mixlist", "x" * 5000, "names no file"),
        ("atc.precision_mode_v2", "fp16", "-C precision_mode_v2=fp16"),
        ("atc.out_nodes", "a:0", "occ extract"),
        ("atc.log", "error\n--model=x", "printable text"),
        ("fusion_switch_file", "none.cfg", "names no file"),
        ("input_fp16_nodes", "y", "which is not an input"),
        ("output_type", "FP8", "one of: FP32, FP16, UINT8, INT8"),
        ("output_type", "z:FP16", "outputs: `y`"),
    ],
)
def test_what_atc_has_not_is_refused_with_the_remedy(key, value, told, net, occ_cli):
    ran = occ_cli("build", net, "-t", "ascend310p", "--dim", "n=2", "-C", f"{key}={value}")
    assert ran.code == 2
    assert told in " ".join(ran.err.split())


def test_values_are_quoted_and_files_go_along(net, tmp_path, occ_cli):
    (tmp_path / "my mix.json").write_text('{"black-list": {}}')
    options = {
        "atc.modify_mixlist": "my mix.json",
        "atc.auto_tune_mode": "RL,GA; rm -rf x",
        "atc.mdl_bank_path": "bank",
    }
    command = _command(net, **options)
    assert command[-3:] == [
        "--modify_mixlist=modify_mixlist.json",
        "--auto_tune_mode=RL,GA; rm -rf x",
        f"--mdl_bank_path={tmp_path / 'bank'}",
    ]
    listed = occ_cli(
        "dump",
        net,
        "-t",
        "ascend310p",
        "--dim",
        "n=2",
        "--stage",
        "atc",
        *(a for k, v in options.items() for a in ("-C", f"{k}={v}")),
    )
    assert "'--auto_tune_mode=RL,GA; rm -rf x'" in listed.out
    with zipfile.ZipFile("m.occ") as artifact:
        assert json.loads(artifact.read("device/modify_mixlist.json")) == {"black-list": {}}


@pytest.mark.parametrize("spelled", ["True", "true", "TRUE", True, "1", "on"])
def test_true_in_every_spelling(spelled):
    assert _OPTIONS.read("ascend310p", {"enable_cann_graph": spelled}).enable_cann_graph is True


@pytest.mark.parametrize("spelled", ["False", "false", False, "0", "off"])
def test_false_in_every_spelling(spelled):
    assert _OPTIONS.read("ascend310p", {"enable_cann_graph": spelled}).enable_cann_graph is False


def test_values_of_any_length_and_a_hundred_gears(net, occ_cli):
    sizes = ",".join(map(str, range(1, 101)))
    ran = occ_cli("build", net, "-t", "ascend310p", "-C", f"dynamic_batch_size={sizes}", "-o", "g.occ")
    assert ran.code == 0, ran.err
    assert len(json.loads(occ_cli("inspect", "g.occ", "--json").out)["gears"]) == 100


def test_inputs_and_outputs_in_half_precision_compute_the_same(tmp_path, occ_cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = model_of(
        "g (float[2, 3] a, float[3] b, int64[2] i) => (float[2, 3] y, int64[2] j) { s = Add (a, b)\n y = Relu (s)\n j = Neg (i) }"
    )
    options = {"input_fp16_nodes": "a", "output_type": "y:FP16"}
    occ.build(model, "ascend310p", "m.occ", options=options)
    a = np.array([[1, -2, 3], [0.5, 6, -7]], np.float16)
    b, i = np.array([0.25, 0.5, 1], np.float32), np.array([3, -4], np.int64)
    np.savez("in.npz", a=a, b=b, i=i)
    ran = occ_cli("run", "m.occ", "--simulate", "--inputs", "in.npz", "--output", "out")
    assert ran.code == 0, ran.err
    made = (
        {p.stem: np.load(p) for p in (tmp_path / "out").glob("*.npy")}
        if (tmp_path / "out").is_dir()
        else dict(np.load("out.npz"))
    )
    assert made["y"].dtype == np.float16
    assert np.array_equal(made["y"], np.maximum(a.astype(np.float32) + b, 0).astype(np.float16))
    assert made["j"].tolist() == [-3, 4]
