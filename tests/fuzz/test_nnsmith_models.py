"""The harness of nnsmith, without it: what it makes, what it rejects, and what it says where nnsmith is missing."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto, helper

from tools.fuzz.__main__ import main
from tools.fuzz.nnsmith import Generator, Models, values
from tools.fuzz.oracle import model_of


def cast(to: int, numbers: list[float]) -> tuple[ModelProto, dict[str, np.ndarray]]:
    x = np.array(numbers, np.float32)
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=to)]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("y", to, x.shape),
    ]
    return model_of(helper.make_graph(nodes, "g", ends[:1], ends[1:]), 14), {"x": x}


def said(made: tuple[ModelProto, dict[str, np.ndarray]], folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"outcomes": [], "faults": []}

    def say(what: dict[str, Any]) -> None:
        for key in found:
            found[key] += what.get(key, [])

    Models(folder, ("nnsmith",), cpu=10**6, generator=lambda seed: made)(1, 2, say)
    return found


def test_model_is_run_in_every_way(tmp_path: Path) -> None:
    found = said(cast(TensorProto.INT8, [1.5, -127.9, 128.5]), tmp_path)
    ways = {"interp", "cpu passes", "cpu-jit 1", "cpu-jit 2"}
    assert set(found["outcomes"]) == {f"{w}: same" for w in ways}
    assert not found["faults"]


@pytest.mark.parametrize("numbers", [[np.nan], [129.0], [-128.0], [np.inf]])
def test_cast_that_onnx_leaves_open_is_no_case(numbers: list[float], tmp_path: Path) -> None:
    found = said(cast(TensorProto.INT8, numbers), tmp_path)
    assert found["outcomes"] == ["not made: ONNX leaves open what it computes"]


def test_wrong_result_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.fuzz.nnsmith.values", lambda m, f: {k: x + 1 for k, x in values(m, f).items()})
    monkeypatch.setattr("tools.fuzz.judge.other_oracle", lambda *_: "")
    found = said(cast(TensorProto.INT8, [1.5]), tmp_path)
    assert {key.split()[0] for key, _, _ in found["faults"]} == {"interp:", "cpu:", "cpu-jit:"}
    assert all("expected" in text for _, _, text in found["faults"])
    assert (tmp_path / "nnsmith-1.onnx").is_file()


def test_values_are_known_where_onnxruntime_has_no_kernel() -> None:
    node = helper.make_node("Abs", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [1]) for n in "xy"]
    model = model_of(helper.make_graph([node], "g", ends[:1], ends[1:]), 14)
    found = values(model, {"x": np.array([-2], ml_dtypes.bfloat16)})
    assert found["y"] == 2


def test_missing_nnsmith_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nnsmith", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = CliRunner().invoke(main, ["nnsmith", "--out", str(tmp_path)])
    assert found.exit_code == 1
    assert found.output.startswith("Error: nnsmith is an extra of its own: pip install -e '.[nnsmith]'")


@pytest.mark.slow
def test_operators_are_found_whatever_chance_chooses(tmp_path: Path) -> None:
    """Reshape of two axes or more may be tried with sizes below 0, by which the search of nnsmith ends."""
    pytest.importorskip("nnsmith")
    random.seed(2)
    assert any(o.__name__ == "Reshape" for o in Generator(4, tmp_path)._operators)
