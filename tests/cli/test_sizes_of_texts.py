"""--shape and --dim with .occ texts, whose extents are what they are: those of a run's inputs are taken, all others refused."""

from __future__ import annotations

import onnx
import pytest
from building import mlp

import occ
from occ.compiler.diagnostics import CompileError

REFUSED = "--shape and --dim need an ONNX model"


@pytest.fixture
def text(tmp_path, monkeypatch, occ_cli) -> str:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    assert occ_cli("dump", "m.onnx", "--stage", "imported", "-o", "t.occ").code == 0
    return "t.occ"


@pytest.mark.parametrize("command", ["build", "check", "dump", "rules"])
@pytest.mark.parametrize("sizes", [("--shape", "x=4,8"), ("--dim", "n=4"), ("--dim", "n=2..8:2")])
def test_a_text_has_its_extents_already(command, sizes, text, occ_cli):
    stage = ["--stage", "canonical"] if command == "dump" else []
    ran = occ_cli(command, text, "-t", "interp", *stage, *sizes)
    assert (ran.code, REFUSED in ran.err) == (2, True), ran.err


def test_runs_take_the_sizes_of_their_inputs(text, occ_cli):
    assert "float32[5, 4]" in occ_cli("run", text, "-t", "interp", "--dim", "n=5").out
    assert REFUSED in occ_cli("run", text, "-t", "interp", "--shape", "x=5,8").err
    for command in ("run", "bench", "diff", "report", "bisect", "reduce"):
        ran = occ_cli(command, text, "-t", "interp", "--dim", "batch=5")
        assert (ran.code, "the text has no symbolic dim `batch`" in ran.err, "its dims: n" in ran.err) == (
            2,
            True,
            True,
        )


def test_python_refuses_them_too(text):
    for sizes in ({"dims": {"n": 4}}, {"shapes": {"x": (4, 8)}}):
        with pytest.raises(CompileError, match=f"OCC0603.*{REFUSED}"):
            occ.build(text, "interp", **sizes)
