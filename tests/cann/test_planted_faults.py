"""One fault of each kind put into a right artifact: what the simulator says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from building import model_of, reference
from simulating import built, worst

from occ.compiler.driver.sessions import open_session
from occ.compiler.ge_simulator.schema import model_class
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError

RNG = np.random.default_rng(17)
GIVEN = {
    "x": RNG.standard_normal((1, 4, 5, 5), dtype=np.float32),
    "b": RNG.standard_normal((1, 2, 3, 3), dtype=np.float32),
}
MODEL = model_of(
    "g (float[1, 4, 5, 5] x, float[1, 2, 3, 3] b) => (float[1, 2, 3, 3] y) { c = Conv <pads = [0, 0, 0, 0]> (x, w) y = Add (c, b) }",
    {"w": RNG.standard_normal((2, 4, 3, 3), dtype=np.float32)},
)
Change = Callable[[dict[str, Any]], None]


def node(ops: dict[str, Any], kind: str, k: int = 0) -> Any:
    return [n for n in ops.values() if n.type == kind][k]


def strides(ops: dict[str, Any]) -> None:
    node(ops, "Conv2D").attr["strides"].list.i[2] = 64


def unknown_kernel(ops: dict[str, Any]) -> None:
    node(ops, "Add").type = "Einsum"


def exchanged_inputs(ops: dict[str, Any]) -> None:
    first, second = (node(ops, "Data", k).attr["index"] for k in (0, 1))
    first.i, second.i = second.i, first.i


def another_edge(ops: dict[str, Any]) -> None:
    add = node(ops, "Add")
    add.input[1] = f"{node(ops, 'Data').name}:0"


def missing_input(ops: dict[str, Any]) -> None:
    node(ops, "Data", 1).attr["index"].i = 2


def another_output(ops: dict[str, Any]) -> None:
    node(ops, "NetOutput").input[0] = f"{node(ops, 'Data').name}:0"


def stated_as_half(ops: dict[str, Any]) -> None:
    node(ops, "Conv2D").output_desc[0].dtype = node(ops, "Conv2D").output_desc[0].dtype + 1


def other_extents(ops: dict[str, Any]) -> None:
    node(ops, "Conv2D").output_desc[0].shape.dim[2] = 4


# what is changed in the graph -> what the simulator says
FAULTS: dict[str, tuple[Change, str]] = {
    "a limit": (strides, r"strides of Conv2D are \[1, 1, 64, 1\], Ascend910B takes 1..63"),
    "a kernel": (unknown_kernel, "no kernel of Einsum"),
    "inputs exchanged": (exchanged_inputs, "the graph takes b, x in this order, the plan passes x, b"),
    "an edge from elsewhere": (another_edge, "Add#2"),
    "an input that is not there": (missing_input, "holes"),
    "an output from elsewhere": (
        another_output,
        r"output 0 of the graph is float32\[1, 4, 5, 5\], the plan has float32\[1, 2, 3, 3\]",
    ),
    "an element type": (
        stated_as_half,
        r"Conv#1: Ascend910B has no kernel of Conv2D for FLOAT, FLOAT16: AICore has FLOAT16, FLOAT",
    ),
    "extents": (other_extents, r"Conv2D returned float32\[1, 2, 3, 3\], described as float32\[1, 2, 4, 3\]"),
}


def changed(made: Artifact, change: Change) -> Artifact:
    (part,) = made.manifest.parts
    message = model_class()()
    message.ParseFromString(made.files[part.air])
    change({op.name: op for op in message.graph[0].op})
    return replace(made, files={**made.files, part.air: message.SerializeToString()})


def run(made: Artifact) -> list[np.ndarray]:
    return list(open_session(made, 1, simulate=True).run(GIVEN).values())


@pytest.mark.parametrize(("change", "said"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_graph_is_named(change: Change, said: str):
    made = built(MODEL)
    assert worst(run(made), reference(MODEL, GIVEN)) < 1e-6
    with pytest.raises(RunError, match=said) as e:
        run(changed(made, change))
    assert e.value.help


def test_a_graph_for_another_chip_or_mode_is_refused():
    made = built(MODEL)
    (part,) = made.manifest.parts
    elsewhere = replace(made, manifest=replace(made.manifest, parts=[replace(part, soc="Ascend310P3")]))
    with pytest.raises(RunError, match="Ascend310P has no kernel of Conv2D for FLOAT"):
        run(elsewhere)
    halves = replace(made, manifest=replace(made.manifest, parts=[replace(part, precision="fp16")]))
    assert 1e-5 < worst(run(halves), reference(MODEL, GIVEN)) < 4e-3
