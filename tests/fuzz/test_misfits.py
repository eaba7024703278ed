"""A slice of the fuzzer of misfits: fixed seeds, on `interp` and `cpu-jit`. `make fuzz` does more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import parser

from occ.compiler.diagnostics import CompileError
from tools.fuzz.__main__ import _WAYS, main
from tools.fuzz.campaign import Say, Summary, campaign, counts
from tools.fuzz.changes import Extent, extents
from tools.fuzz.misfits import WAYS, Misfits, difference, with_constants
from tools.fuzz.native_sessions import NativeSessions
from tools.fuzz.valid_models import Valid, valid_models

OPERATORS = ("LinearAttention", "AffineGrid", "MoE", "MaxRoiPool", "GroupNormalization", "SpaceToDepth",
             "OneHot", "Expand", "NonMaxSuppression")  # fmt: skip


def seeds() -> list[int]:
    """Those of the first model of each of some operators, in all ways, and of every fortieth of the others in one."""
    first = {o: next(k for k, v in enumerate(valid_models()) if v.model.graph.node[0].op_type == o) for o in OPERATORS}
    ways = len(WAYS)
    others = [ways * k + k // 40 % ways for k in range(0, len(valid_models()), 40)]
    return sorted({*(ways * k + way for k in first.values() for way in range(ways)), *others})


def test_misfits_are_refused_or_computed_alike(tmp_path: Path) -> None:
    work, summary = Misfits(tmp_path, most=3), Summary()
    blocks = [range(s, s + 1) for s in seeds()]
    summary = campaign(work, tmp_path / "summary.json", blocks, float("inf"), lambda *_: None)
    assert not summary.faults, counts(summary)
    assert summary.cases["misfits"] > 60
    assert sum(n for k, n in summary.outcomes.items() if k.endswith("refused")) > 20
    assert sum(n for k, n in summary.outcomes.items() if k.endswith("same")) > 20


def test_way_of_its_own_and_a_way_that_is_none(tmp_path: Path) -> None:
    told = ["misfits", "--minutes", "9", "--seed", "0", "--count", "2", "--most", "1", "--out", str(tmp_path)]
    runner = CliRunner(env={"OCC_CACHE_DIR": str(tmp_path / "cache")})
    made = runner.invoke(main, [*told, "--cpu", "0", "--way", "constants", "--way", "attributes"])
    assert made.exit_code == 0, made.output
    ways = {k.partition(":")[0] for k in Summary.read(tmp_path / "summary.json").outcomes}
    assert ways == {"constants", "attributes"}
    assert set(WAYS) == set(_WAYS)
    assert runner.invoke(main, [*told, "--way", "walk"]).exit_code == 2


VALID = Valid(
    "add",
    parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[2,3] x, float[3] y) => (z) { z = Add(x, y) }'
    ),
    {"x": np.zeros((2, 3), np.float32), "y": np.ones(3, np.float32)},
)


def test_changes_of_every_axis_and_rank() -> None:
    assert [str(c) for c in extents({"y": VALID.feeds["y"]})] == [
        "y: axis 0 +1", "y: axis 0 -1", "y: axis 0 +17", "y: an axis more", "y: an axis less",
    ]  # fmt: skip


def test_end_of_a_process_names_the_operator(tmp_path: Path) -> None:
    def ends(first: int, last: int, say: Say) -> None:
        say({"seed": first, "doing": ": Add", "case": f"{first} add, y: axis 0 +1"})
        os.kill(os.getpid(), signal.SIGSEGV)

    made = campaign(ends, tmp_path / "summary.json", [range(3, 4)], float("inf"), lambda *_: None)
    assert made.faults["the process ended with SIGSEGV: Add"]["case"] == "3 add, y: axis 0 +1"


def test_changed_models_say_so() -> None:
    made = Extent("x", 1, 1).of(VALID)
    assert made.feeds["x"].shape == (2, 4)
    assert [d.dim_value for d in made.model.graph.input[0].type.tensor_type.shape.dim] == [2, 4]
    constants = with_constants(VALID)
    assert [*constants.feeds] == ["x"]
    assert [t.name for t in constants.model.graph.initializer] == ["y"]


@pytest.mark.parametrize(("x", "y", "text"), [
    (np.float32([1, 2]), np.float32([1, 2.001]), ""),
    (np.float32([1, np.nan]), np.float32([1, np.nan]), ""),
    (np.float32([1, 2]), np.float32([1, 2.2]), "z differs at 1 of 2 places"),
    (np.float32([1]), np.float32([[1]]), "z has [1] and [1, 1]"),
    (np.array(["a"], object), np.array(["b"], object), "z has other texts"),
])  # fmt: skip
def test_differences(x: np.ndarray, y: np.ndarray, text: str) -> None:
    found = difference({"z": x}, {"z": y})
    assert found.startswith(text)
    assert bool(found) == bool(text)


def test_native_code_of_many_models_or_why_there_is_none() -> None:
    """A model that cannot be compiled, or not even read, keeps no other back."""
    unread = Extent("y", 0, 1).of(VALID).model
    unread.graph.node[0].op_type = "NoSuchOperator"
    models = {(1, 0): VALID.model, (1, 1): Extent("y", 0, 1).of(VALID).model, (2, 0): unread}
    native = NativeSessions(models, {"optimize": "1"})
    found = native.session((1, 0)).run(dict(VALID.feeds))
    np.testing.assert_array_equal(found["z"], np.ones((2, 3), np.float32))
    for key in models.keys() - {(1, 0)}:
        with pytest.raises(CompileError):
            native.session(key)
    with pytest.raises(KeyError):
        native.session((1, 0))
