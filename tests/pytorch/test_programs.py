"""Programs of torch.export, and the `.pt2` files of them, as models."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import occ

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="torch's exporter needs onnxscript")


class Net(torch.nn.Module):
    """A Conv, a buffer, an output by name, and a symbolic batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.register_buffer("shift", torch.arange(8.0).reshape(8, 1, 1))

    def forward(self, picture, scale):
        y = torch.relu(self.conv(picture)) + self.shift
        return y.mean((2, 3)) * scale, y.amax((1, 2, 3))


@pytest.fixture
def program():
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)
    inputs = torch.randn(2, 3, 9, 9), torch.ones(8)
    return torch.export.export(Net().eval(), inputs, dynamic_shapes={"picture": {0: batch}, "scale": None})


@pytest.fixture
def file(program, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.export.save(program, "net.pt2")
    return Path("net.pt2")


def check(session, program) -> None:
    picture, scale = torch.randn(5, 3, 9, 9), torch.rand(8)
    expected = program.module()(picture, scale)
    for ours, theirs in zip(session(picture.numpy(), scale.numpy()), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_a_program_is_a_model(target, program):
    session = occ.compile(program, target)
    assert [p.name for p in session.inputs] == ["picture", "scale"]
    assert not isinstance(session.inputs[0].shape[0], int)
    check(session, program)
    assert occ.capability(program, target).ok


def test_a_file_is_a_model_of_every_command(file, program, occ_cli):
    ran = occ_cli("build", file, "-t", "cpu-jit", "-o", "net.occ")
    assert ran.code == 0, ran.err
    check(occ.load("net.occ"), program)
    check(occ.compile(file, "cpu-jit"), program)
    for words in (["run", file, "-t", "interp"], ["check", file], ["inspect", file], ["dump", file, "--stage", "inferred"],
                  ["diff", file, "-t", "cpu-jit", "--against", "reference", "--every-node"],
                  ["inspect", file, "--nodes"]):  # fmt: skip
        ran = occ_cli(*words)
        assert ran.code == 0, (words, ran.err)
    assert json.loads(occ_cli("inspect", file, "--json").out)["operators"]["Conv"] == 1


def test_the_onnx_model_of_a_file_can_be_had(file, program, occ_cli):
    assert occ_cli("dump", file, "--stage", "imported", "--format", "onnx", "-o", "net.onnx").code == 0
    check(occ.compile("net.onnx", "interp"), program)


def test_a_build_is_made_again_when_the_file_changes(file, occ_cli, monkeypatch):
    monkeypatch.setenv("OCC_CACHE_ARTIFACTS", "1")
    occ_cli("build", file, "-t", "interp", "-o", "a.occ")
    changed = Net().eval()
    with torch.no_grad():
        changed.conv.weight.zero_()
    torch.export.save(torch.export.export(changed, (torch.randn(2, 3, 9, 9), torch.ones(8))), file)
    occ_cli("build", file, "-t", "interp", "-o", "a.occ")
    mean, _ = occ.load("a.occ")(np.ones((2, 3, 9, 9), np.float32), np.ones(8, np.float32))
    assert np.ptp(mean[0] - np.maximum(changed.conv.bias.detach().numpy(), 0) - np.arange(8)) < 1e-5


def test_what_is_no_program_is_refused_in_a_line(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("text.pt2").write_text("a text")
    with zipfile.ZipFile("empty.pt2", "w") as z:
        z.writestr("a/archive_format", "pt2")
    torch.save({"a": torch.ones(2)}, "weights.pt2")
    for name, code in (("none", "OCC0101"), ("text", "OCC0102"), ("empty", "OCC0102"), ("weights", "OCC0102")):
        ran = occ_cli("build", f"{name}.pt2", "-t", "interp")
        assert (ran.code, code in ran.err, "Traceback" in ran.err) == (1, True, False), ran.err
    with pytest.raises(TypeError, match=r"torch\.export\.export"):
        occ.compile(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="int is not a model"):
        occ.compile(3)


def test_pickles_in_a_file_run_no_code(file, tmp_path, occ_cli):
    """torch reads sample inputs of a program as a pickle; what is not a tensor there is not made."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trapped"),)

    torch.save(Trap(), "trap.pt")
    assert pickle.dumps(Trap())
    with zipfile.ZipFile("net.pt2") as old, zipfile.ZipFile("bad.pt2", "w") as new:
        for item in old.infolist():
            trapped = "sample_inputs" in item.filename
            new.writestr(item.filename, Path("trap.pt").read_bytes() if trapped else old.read(item.filename))
    occ_cli("build", "bad.pt2", "-t", "interp")
    assert not (tmp_path / "trapped").exists()


def test_an_operator_without_an_onnx_form_is_named(occ_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)[1]

    torch.export.save(torch.export.export(Odd(), (torch.eye(3),)), "odd.pt2")
    ran = occ_cli("build", "odd.pt2", "-t", "interp")
    assert (ran.code, "OCC0110" in ran.err, "svd" in ran.err) == (1, True, True), ran.err
