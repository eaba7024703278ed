"""What --dim means, in every command that compiles."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import occ.compiler.driver.sessions as sessions


@pytest.fixture
def unnamed(tmp_path: Path) -> Path:
    """`y = x + x` of `x : f32[b, ?, ?]`."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", None, "?"]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "u.onnx")
    return tmp_path / "u.onnx"


@pytest.mark.parametrize("command", ["build", "check", "run", "bench", "diff", "dump", "bisect"])
def test_dims_without_a_name_are_given_by_what_inspect_calls_them(unnamed, occ_cli, command):
    flags = {"bench": ["--rounds", "1"], "dump": ["--stage", "inferred"]}.get(command, [])
    ran = occ_cli(command, unnamed, "-t", "interp", "--dim", "x_1=3", "--dim", "x_2=5", *flags)
    assert ran.code == 0, ran.err
    wrong = occ_cli(command, unnamed, "-t", "interp", "--dim", "x_3=5", *flags)
    assert wrong.code == 2
    assert "dims: `b`, `x_1`, `x_2`" in wrong.err


def test_free_dims_of_random_inputs_are_no_single_elements(unnamed, occ_cli):
    ran = occ_cli("run", unnamed, "-t", "interp", "--dim", "x_2=5")
    assert ran.code == 0, ran.err
    assert "random inputs with b=1, x_1=32; --dim sets other sizes" in ran.err


def test_a_profile_is_of_the_build_with_the_given_dims(unnamed, occ_cli, monkeypatch):
    asked = []
    whole = sessions.compile_model
    monkeypatch.setattr(
        sessions,
        "compile_model",
        lambda s, settings, *a, **k: asked.append(settings.overrides.dims) or whole(s, settings, *a, **k),
    )
    for command in ("run", "bench"):
        assert occ_cli(command, unnamed, "-t", "interp", "--dim", "x_1=3").code == 0
    assert asked == [{"x_1": 3}] * 2
