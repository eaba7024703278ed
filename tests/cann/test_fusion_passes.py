"""Operators that a pass of GE replaces by others: TopK goes to AI Core where the kernel of TopKD takes it, by both tables."""

from __future__ import annotations

import json

import numpy as np
import pytest
from building import model_of, reference
from simulating import built, simulated, worst

from occ.compiler.ge_simulator.device import precision_on
from occ.compiler.ge_simulator.simulate import Simulator
from occ.runtime.artifact import Artifact

RNG = np.random.default_rng(23)
OLD = ("ascend310", "ascend310b", "ascend910")
NEW = ("ascend310p", "ascend910b", "ascend910_93")


def top_k(shape: list[int], k: int, dtype: str = "float", **attrs: int) -> object:
    listed = ", ".join(f"{name} = {value}" for name, value in attrs.items())
    sizes = ", ".join(map(str, shape))
    text = (
        f"g ({dtype}[{sizes}] x) => ({dtype}[?, ?] v, int64[?, ?] i) {{ v, i = TopK <{listed or 'axis = -1'}> (x, k) }}"
    )
    return model_of(text, {"k": np.array([k])})


def units(made: Artifact, kind: str) -> tuple[list[str], list[str]]:
    """What runs the nodes of a type, as the generator and as the simulator see it."""
    (part,) = made.manifest.parts
    files = {name.rpartition("/")[2]: made.files[name] for name in part.files}
    seen = Simulator(made.files[part.air], files, precision_on(part.precision, part.soc))
    nodes = json.loads(made.files[f"device/{part.name}.units.json"])
    placed = [n["unit"] for n in nodes if n["operator"] == kind]
    return placed, [c.unit for n, c in seen.computed.items() if n.type == kind]


ON_CORE = (["vector"], ["AICore"])
ON_CPU = (["AI CPU"], ["AICPU"])


@pytest.mark.parametrize("target", [*OLD, *NEW])
@pytest.mark.parametrize(
    ("shape", "k", "dtype", "wanted"),
    [
        ([3, 50], 5, "float", ON_CORE), ([3, 50], 5, "int64", ON_CPU), ([8, 5000], 5, "float", ON_CPU), ([8, 5000], 16, "float", ON_CORE),
        ([1, 5000], 4097, "float", ON_CPU), ([5, 1], 1, "float", ON_CPU), ([5, 1], 1, "float16", ON_CORE),
    ],
)  # fmt: skip
def test_top_k_is_on_ai_core_where_the_kernel_takes_it(target: str, shape: list[int], k: int, dtype: str, wanted):
    assert units(built(top_k(shape, k, dtype), target), "TopK") == wanted


@pytest.mark.parametrize("target", OLD)
def test_kernels_of_half_precision_alone_do_not_serve_what_stays_float(target: str):
    assert units(built(top_k([3, 50], 5), target, precision_mode_v2="origin"), "TopK") == ON_CPU


@pytest.mark.parametrize("target", [*OLD, *NEW])
@pytest.mark.parametrize("attrs", [{"axis": 0}, {"axis": 1, "largest": 0}])
def test_results_are_those_of_onnx(target: str, attrs: dict[str, int]):
    model = top_k([30, 40], 7, **attrs)
    x = {"x": RNG.permutation(1200).reshape(30, 40).astype(np.float32)}
    assert worst(simulated(built(model, target), x), reference(model, x)) == 0


@pytest.mark.parametrize("target", [*OLD, *NEW])
def test_negative_indices_keep_64_bits_where_ai_core_selects_such(target: str):
    model = model_of(
        "g (float[9, 4] x, int64[3, 2] i) => (float[3, 2, 4] a, float[9, 4] b) { a = Gather (x, i) b = ScatterND (x, i, u) }",
        {"u": RNG.standard_normal(3, dtype=np.float32)},
    )
    made = built(model, target)
    x = {"x": RNG.standard_normal((9, 4), dtype=np.float32), "i": np.array([[-9, -1], [0, -4], [8, 2]])}
    assert worst(simulated(made, x), reference(model, x)) == 0
    casts, _ = units(made, "Cast")
    assert (casts == []) == (target != "ascend310")
