"""The backend suite's node models with an open first extent: chips have kernels for what ranges make of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))
from simulating import built
from suite import _on

from occ.compiler.codegen_cann.options import SOCS
from occ.compiler.diagnostics import CompileError
from occ.compiler.ge_simulator.device import precision_on
from occ.compiler.ge_simulator.simulate import Simulator

_FEWEST = {"ascend310": 400}  # models that a chip takes; the 310 has ten operators that take unknown extents
_AT_LEAST = 1250


class Taken(Exception):
    """A model of the suite, instead of a run of it."""


class Take:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def run(self, inputs: Sequence[Any], **_: Any) -> None:
        raise Taken(self.model)


def with_range(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str] | None:
    """A model whose inputs have `n` rows, and the range of `n`; None where there are no rows."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if not made.graph.input or any(not i.type.HasField("tensor_type") for i in made.graph.input):
        return None
    shapes = [i.type.tensor_type.shape.dim for i in made.graph.input]
    rows = shapes[0][0].dim_value if shapes[0] else 0
    if not rows:
        return None
    for dims in shapes:
        if dims and dims[0].dim_value == rows:
            dims[0].dim_param = "n"
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    return made, f"n=1..{max(64, 2 * rows)}"


def count(target: str, step: int) -> int:
    """How many models the device takes with a range; each is loaded by the simulator."""
    tests, taken = _on(Take), 0
    for name in sorted(tests)[::step]:
        try:
            tests[name]()
        except Taken as e:
            ranged = with_range(e.args[0])
        except Exception:  # a kind of test that builds no model
            continue
        if ranged is None:
            continue
        try:
            made = built(ranged[0], target, dynamic_ranges=ranged[1], cpu_fallback="off")
        except CompileError as e:
            if e.exit_code == 70:  # a fault of occ
                raise
            continue
        for part in made.manifest.parts:
            files = {member.rpartition("/")[2]: made.files[member] for member in part.files}
            Simulator(made.files[part.air], files, precision_on(part.precision, part.soc))
        taken += bool(made.manifest.summary["device_ops"])
    return taken


@pytest.mark.parametrize("target", ["ascend310", "ascend310p", "ascend910b"])
def test_every_fortieth_model(target: str):
    assert count(target, 40) >= (8 if target in _FEWEST else 25)


@pytest.mark.slow
@pytest.mark.parametrize("target", SOCS)
def test_all_models(target: str):
    assert count(target, 1) >= _FEWEST.get(target, _AT_LEAST)
