"""Where results are written: not over the model, a device or a folder, and through links."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp

import occ


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), str(path))
    return path


def build(occ_cli, *args):
    return occ_cli("build", "m.onnx", "-t", "interp", *args)


def refused(ran, what: str) -> None:
    assert ran.code != 0
    assert "error[OCC0605]" in ran.err
    assert what in ran.err
    assert "help:" in ran.err
    assert ran.err.count("error[") == 1


@pytest.mark.parametrize(
    "command", [["build"], ["build", "--emit", "static"], ["dump", "--stage", "inferred"], ["reduce"]]
)
def test_the_model_is_not_written_over(occ_cli, model, command):
    before = model.read_bytes()
    Path("link.onnx").symlink_to(model)
    for out in ("m.onnx", "./m.onnx", "link.onnx"):
        refused(
            occ_cli(command[0], "m.onnx", "-t", "cpu-jit", *command[1:], "-o", out),
            "the file that the model is read from",
        )
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        ["build", "m.onnx", "-t", "interp"], ["build", "m.onnx", "-t", "cpu-jit", "--emit", "shared"],
        ["dump", "m.onnx", "--stage", "inferred"], ["report", "m.onnx", "-t", "cpu-jit"], ["extract", "m.onnx", "--to", "y"],
        ["run", "m.onnx", "-t", "interp"],
    ],
)  # fmt: skip
def test_folders_that_are_not_there_yet_are_made(occ_cli, model, command):
    ran = occ_cli(*command, "-o", "a/b/c")
    assert ran.code == 0, ran.err
    assert Path("a/b/c").exists()


def test_external_data_of_the_model_are_not_written_over(occ_cli, model):
    onnx.save(mlp(), "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0)
    before = Path("e.bin").read_bytes()
    refused(occ_cli("build", "e.onnx", "-t", "interp", "-o", "e.bin"), "the file that the model is read from")
    assert Path("e.bin").read_bytes() == before


def test_a_folder_is_not_replaced_by_a_file(occ_cli, model):
    Path("here").mkdir()
    refused(build(occ_cli, "-o", "here"), "is a folder")
    assert os.listdir("here") == []


def test_a_file_is_not_replaced_by_a_folder(occ_cli, model):
    Path("notes").write_text("x")
    refused(build(occ_cli, "--dir", "-o", "notes"), "is not a folder")
    assert Path("notes").read_text() == "x"


def test_devices_and_pipes_stay(occ_cli, model):
    os.mkfifo("pipe")
    Path("null").symlink_to("/dev/null")
    for out in ("pipe", "/dev/null", "null"):
        refused(build(occ_cli, "-o", out), "is a device, a pipe or a socket")
    assert Path("/dev/null").is_char_device()
    assert Path("pipe").is_fifo()


def test_a_link_stays_and_what_it_leads_to_is_written(occ_cli, model):
    Path("deep").mkdir()
    Path("m.occ").symlink_to("deep/real.occ")
    for _ in range(2):
        assert build(occ_cli, "-o", "m.occ").code == 0
        assert Path("m.occ").is_symlink()
    assert not Path("deep/real.occ").is_symlink()
    assert occ.load("m.occ")(np.zeros((1, 8), np.float32))[0].shape == (1, 4)


def test_dumps_go_to_devices(occ_cli, model):
    assert occ_cli("dump", "m.onnx", "--stage", "inferred", "-o", "/dev/null").code == 0


def test_the_api_refuses_likewise(model):
    with pytest.raises(occ.CompileError, match="the file that the model is read from"):
        occ.build("m.onnx", "interp", model)
    with pytest.raises(occ.CompileError, match="is a folder"):
        occ.build(mlp(), "interp", model.parent)
