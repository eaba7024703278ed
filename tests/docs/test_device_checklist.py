"""The ten commands of docs/ascend-running.md: each is understood, and those that need no device do what the page says."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
from building import model_of

from occ.cli import cli

PAGE = Path(__file__).parents[2] / "docs/ascend-running.md"
MODEL = "g (float[n, 3, 224, 224] x) => (float[n, 3, 7, 7] y) { r = Relu(x) y = AveragePool <kernel_shape = [32, 32], strides = [32, 32]> (r) }"


def commands() -> list[list[str]]:
    block = PAGE.read_text("utf-8").partition("ten commands")[2].split("```")[1]
    return [shlex.split(line)[1:] for line in block.strip().splitlines()]


def test_all_ten_are_understood():
    assert len(commands()) == 10
    for name, *args in commands():
        command = cli.get_command(cli.make_context("occ", ["targets"]), name)
        assert command is not None
        command.make_context(name, args)  # refuses unknown options and values


def test_those_that_need_no_device(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of(MODEL), "model.onnx")
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    np.savez("x.npz", x=x)
    said = [occ_cli(*args) for args in commands()[:5]]
    assert [ran.code for ran in said] == [0] * 5, [ran.err for ran in said]
    assert "device   1 part " in said[1].err
    assert all(f"{word}:" in said[2].out for word in ("chip", "precision", "parts", "ge_operators"))
    assert "on_the_cpu" not in said[2].out  # nothing was left
    right = np.maximum(x, 0).reshape(1, 3, 7, 32, 7, 32).mean((3, 5))
    np.testing.assert_allclose(np.load("simulated/y.npy"), right, rtol=2e-3)
    assert any(line.startswith("atc ") for line in said[4].out.splitlines())
